"""reduce where the input is converted or copied first (other dtypes, many groups of dims); its arguments."""

import itertools
import math

import numpy as np
import pytest
import torch
from reduce_cases import FLOATS

import torch_gpuprims as gp


def test_floating_sums_of_integers_beyond_int64(device: str) -> None:
    big = torch.full((10,), 1_700_000_000_000_000_000, device=device)
    unsigned = torch.tensor([2**63, 3], dtype=torch.uint64).to(device)
    for dtype in FLOATS:
        for x, total in ((big, 1.7e19), (-big, -1.7e19), (unsigned, 2.0**63 + 3)):
            for op, want in (("sum", total), ("mean", total / x.numel())):
                got = gp.reduce(x, op, dtype=dtype)
                assert got.dtype == dtype
                torch.testing.assert_close(got.cpu(), torch.tensor(want, dtype=torch.float64).to(dtype))
    assert gp.reduce(torch.full((4,), 2**62, device=device), "mean", dtype=torch.float64).item() == 2.0**62


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int32, torch.uint32, torch.int64, torch.uint64], ids=str
)
def test_floating_products_of_integers_beyond_int64(dtype: torch.dtype, device: str) -> None:
    x = torch.arange(1, 31).to(dtype).to(device)
    for out in (torch.float32, torch.float64):
        for y, dim in ((x, None), (x.expand(3, 30), 1), (x.unsqueeze(1), 0)):
            got = gp.reduce(y, "prod", dim, dtype=out).cpu().double()
            torch.testing.assert_close(
                got, torch.full_like(got, float(math.factorial(30))), rtol=1e-7, atol=0
            )
    assert gp.reduce(x, "prod", dtype=torch.float16).item() == math.inf
    whole = gp.reduce(x, "prod").cpu().numpy()
    assert int(whole) % 2**64 == math.factorial(30) % 2**64  # without a dtype they wrap


def test_narrow_integers_are_still_added_exactly(device: str) -> None:
    x = torch.full((5,), 2**31 - 1, dtype=torch.int32, device=device)
    x[0] -= 1
    assert gp.reduce(x, "sum", dtype=torch.float32).item() == np.float32(5 * (2**31 - 1) - 1)
    assert gp.reduce(x, "sum", dtype=torch.float64).item() == 5 * (2**31 - 1) - 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_float64_of_16_bits_is_added_in_float64(dtype: torch.dtype, device: str) -> None:
    n = 2**24 + 1
    for x in (
        torch.ones(n, dtype=dtype, device=device),
        torch.ones(1, 1, device=device, dtype=dtype).expand(n, 1),
    ):
        assert gp.reduce(x, "sum", 0, dtype=torch.float64).item() == n
    x = torch.tensor([1.0, 2.0**-14, 1.0], dtype=dtype, device=device).repeat(50)
    wide = x.double()
    assert gp.reduce(x, "norm", ord=1, dtype=torch.float64).item() == wide.abs().sum().item()
    for op in ("mean", "prod"):
        torch.testing.assert_close(
            gp.reduce(x, op, dtype=torch.float64), getattr(torch, op)(wide), rtol=1e-14, atol=0
        )
    x.requires_grad_()
    gp.reduce(x, "sum", dtype=torch.float64).backward()
    assert x.grad.dtype == dtype and bool((x.grad == 1).all())


def test_dims_in_more_groups_than_kernels_take(device: str) -> None:
    x = torch.randn([2] * 22, device=device, dtype=torch.float64)
    for dims in (list(range(0, 22, 2)), list(range(1, 22, 2))):
        torch.testing.assert_close(gp.reduce(x, "sum", dims), x.sum(dims))
        torch.testing.assert_close(gp.reduce(x, "max", dims, True), x.amax(dims, True))
        found = gp.stats(x, dims)
        assert torch.equal(found.min, x.amin(dims))
        torch.testing.assert_close(found.var, x.var(dims))
    apart = torch.randn([3] * 24, device="meta")[..., 0, 0]  # and without data
    assert gp.reduce(apart, "sum", list(range(0, 22, 2))).shape == (3,) * 11
    turned = x.permute(*range(21, -1, -1))[(slice(None, None, 2),) * 2]
    assert gp.reduce(turned, "argmax").item() == turned.argmax().item()
    assert torch.equal(gp.reduce(turned, "argmax", 7), turned.argmax(7))


def test_dims_may_be_integers_of_numpy(device: str) -> None:
    x = torch.arange(24.0, device=device).reshape(2, 3, 4)
    for dim, same in (
        (np.int64(1), 1),
        (np.int32(-1), -1),
        ((np.int64(0), 2), (0, 2)),
        (np.array([0, 1]), (0, 1)),
    ):
        assert torch.equal(gp.reduce(x, "sum", dim), gp.reduce(x, "sum", same))
        assert torch.equal(gp.stats(x, dim).max, gp.stats(x, same).max)
    assert gp.explain("reduce", x, "sum", np.int64(1)) == gp.explain("reduce", x, "sum", 1)


def test_arguments_that_are_none_at_all(device: str) -> None:
    x = torch.ones(3, device=device)
    with pytest.raises(ValueError, match=r"reduce: op must be one of sum, .*, got \['sum'\]"):
        gp.reduce(x, ["sum"])
    with pytest.raises(ValueError, match=r"reduce: ord must be 1, 2 or inf, got \[1\]"):
        gp.reduce(x, "norm", ord=[1])
    for op, dim in itertools.product(("sum", "max"), (-(2**63), -2, 2**63 - 1)):
        with pytest.raises(RuntimeError, match=f"reduce: dim must be between -1 and 0, got {dim}"):
            gp.reduce(x, op, dim)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_2_to_the_32_rows_of_float64_sums_are_refused() -> None:
    """long_rows has several rows a block, so more of them than its 32 bits number."""
    x = torch.ones(1, 2, device="cuda").expand(2**32 + 8, 2)
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB")
    with pytest.raises(RuntimeError, match="reduce: too many results for one launch"):
        gp.reduce(x, "sum", 1, dtype=torch.float64)
