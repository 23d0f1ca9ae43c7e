"""Values of reduce that random numbers seldom hold: rare truths, products that wrap, NaN, denormals."""

import math

import numpy as np
import pytest
import torch
from devices import no_cuda
from reduce_cases import FLOATS, INTEGERS, close, expected, make, ops_for
from reduce_reference import tree

import torch_gpuprims as gp
from torch_gpuprims.reduce import REDUCE_OPS

LAYOUTS = (lambda x: (x, 1), lambda x: (x.t().contiguous(), 0))  # rows and columns: (tensor, dim)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_any_and_all_see_one_element(dtype: torch.dtype, device: str) -> None:
    for n in (1, 3, 64, 129, 1000, 5000, 40_000):
        for at in {0, n // 2, n - 1}:
            rare = torch.zeros(2, n, dtype=torch.float64)
            rare[1, at] = 1
            for layout in LAYOUTS:
                x, dim = layout(rare.to(dtype).to(device))
                assert gp.reduce(x, "any", dim).tolist() == [False, True], (n, at)
                x, dim = layout((1 - rare).to(dtype).to(device))
                assert gp.reduce(x, "all", dim).tolist() == [True, False], (n, at)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_takes_minus_zero_for_zero_and_nan_for_true(dtype: torch.dtype, device: str) -> None:
    x = torch.tensor([[-0.0] * 70, [-0.0] * 69 + [math.nan]], dtype=dtype, device=device)
    for layout in LAYOUTS:
        y, dim = layout(x)
        assert gp.reduce(y, "any", dim).tolist() == torch.any(y, dim).tolist() == [False, True]
        assert gp.reduce(y, "all", dim).tolist() == torch.all(y, dim).tolist() == [False, False]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_products_of_integers_are_exact_modulo_2_64(dtype: torch.dtype, device: str) -> None:
    for n in (1, 7, 130, 5000):
        odd = make((3, n), dtype, "cpu", n)
        odd = odd if dtype == torch.bool else (odd.to(torch.int64) // 2 * 2 + 1).to(dtype)  # never 0 mod 2^64
        want = np.multiply.reduce(odd.numpy().astype(object), 1)
        for layout in LAYOUTS:
            x, dim = layout(odd.to(device))
            got = gp.reduce(x, "prod", dim)
            assert got.dtype == (torch.uint64 if dtype == torch.uint64 else torch.int64)
            assert [int(g) % 2**64 for g in got.cpu().numpy()] == [int(w) % 2**64 for w in want], n


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin"])
def test_nan_and_infinities_in_every_float(op: str, dtype: torch.dtype, device: str) -> None:
    """As test_reduce has them for float32."""
    inf, nan = math.inf, math.nan
    for n in (3, 60, 200, 5000):
        for values in ([nan], [inf], [-inf], [inf, nan], [nan, -inf], [-nan], [-inf] * n, [nan] * n):
            for at in {0, n // 2, n - len(values)} if len(values) < n else {0}:
                x = make((2, n), dtype, "cpu", n)
                x[1, at : at + len(values)] = torch.tensor(values, dtype=dtype)
                name = op if op.startswith("arg") else f"a{op}"
                want = getattr(torch, name)(x.double(), 1)
                for layout in LAYOUTS:
                    y, dim = layout(x.to(device))
                    got = gp.reduce(y, op, dim).cpu().double()
                    torch.testing.assert_close(got, want.double(), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_denormal_sums_follow_the_written_tree(dtype: torch.dtype, device: str) -> None:
    """Where every number is denormal, and so is the sum, flushing to zero leaves nothing."""
    tiny = torch.finfo(dtype).tiny / 2**20
    for n in (3, 200, 5000, 40_000):
        x = (1 + torch.arange(2 * n).view(2, n) % 7).to(dtype) * tiny
        for layout, strided in zip(LAYOUTS, (False, True), strict=True):
            y, dim = layout(x.to(device))
            want = torch.from_numpy(tree(x.numpy(), dtype.itemsize, strided=strided))
            got = gp.reduce(y, "sum", dim).cpu()
            assert torch.equal(got, want) and bool((got > 0).all()), n
            mean = gp.reduce(y, "mean", dim).cpu()
            assert torch.equal(mean, want / n) and bool((mean > 0).all()), n
            assert gp.reduce(y, "max", dim).tolist() == x.amax(1).tolist()
            assert gp.reduce(y, "any", dim).all()


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "norm"])
def test_float64_of_float32(op: str, device: str) -> None:
    for n in (7, 300, 5000):
        x = 1 + make((3, n), torch.float32, device, n) / 64
        wide = x.double()
        want = torch.linalg.vector_norm(wide, dim=1) if op == "norm" else getattr(torch, op)(wide, 1)
        for layout in LAYOUTS:
            y, dim = layout(x)
            got = gp.reduce(y, op, dim, dtype=torch.float64)
            assert got.dtype == torch.float64
            torch.testing.assert_close(got, want, rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_several_dims(dtype: torch.dtype, device: str) -> None:
    """In any order, side by side in memory or not, of contiguous and of permuted input."""
    x = make((4, 33, 5, 9), dtype, device)
    x = x / 8 if dtype.is_floating_point else x
    for source in (x, x.permute(2, 0, 3, 1), x[:, ::2]):
        for dims in ((0, 2), (3, 1), (2, 3), (1, 0), (3, 0, 2), (0, 1, 2, 3)):
            kept = [d for d in range(4) if d not in dims]
            flat = source.permute(*kept, *dims).reshape(*(source.shape[d] for d in kept), -1)
            for op in ops_for(dtype):
                if op in ("prod", "argmax", "argmin"):
                    continue
                got, want = gp.reduce(source, op, dims), expected(flat, op, flat.dim() - 1)
                assert got.shape == want.shape
                if op in ("any", "all"):
                    assert torch.equal(got.cpu(), want.bool()), (op, dims)
                else:
                    close(got, want, dtype, scale=30.0)


@pytest.mark.gpu
@no_cuda
@pytest.mark.parametrize("op", REDUCE_OPS)
def test_strided_and_expanded_input_is_not_copied(op: str) -> None:
    x = torch.rand(2048, 2048, device="cuda")
    views = [
        (x.t(), 0), (x.t(), 1), (x[:, ::2], 0), (x[1:, 3:-5], 1), (x[:, None].expand(2048, 8, 2048), 1),
        (x.view(32, 64, 2048), (0, 2)) if op not in ("argmax", "argmin") else (x[::3], 0),
        (x[:1].expand(4096, 2048), 0),
    ]  # fmt: skip
    for view, dim in views:
        gp.reduce(view, op, dim)  # tickets
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = gp.reduce(view, op, dim)
        peak = torch.cuda.max_memory_allocated() - before
        assert peak <= out.nbytes + x.nbytes // 8, (list(view.shape), view.stride(), dim)


@pytest.mark.gpu
@no_cuda
def test_denormal_sums_on_cuda_have_the_bits_of_the_cpu() -> None:
    for dtype, word in ((torch.float32, torch.int32), (torch.float64, torch.int64)):
        x = make((300, 5000), dtype, "cpu") * torch.finfo(dtype).tiny
        for dim in (0, 1, None):
            for op in ("sum", "mean"):
                here, there = gp.reduce(x, op, dim), gp.reduce(x.cuda(), op, dim).cpu()
                assert torch.equal(here.view(word), there.view(word)), (dtype, dim, op)
                assert here.abs().max() > 0
