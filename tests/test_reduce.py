"""reduce, stats and dot beside PyTorch and beside the tree of docs/reduce.md."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reduce_reference import strided_class, tree

import torch_gpuprims as gp
import torch_gpuprims.nn
from torch_gpuprims.reduce import REDUCE_OPS

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool,
]  # fmt: skip
#: Around the limits of every kernel: vector, slot, accumulators, chunk, group, finals.
LENGTHS = [
    1,
    2,
    3,
    4,
    5,
    8,
    31,
    64,
    65,
    100,
    127,
    128,
    129,
    255,
    256,
    257,
    500,
    512,
    513,
    1000,
    4095,
    4096,
    4097,
]
LONG = [8192, 10_001, 32_768, 32_769, 40_000, 300_001]


def make(shape: tuple[int, ...], dtype: torch.dtype, device: str, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype).to(device)
    if dtype == torch.bool:
        return (torch.rand(shape, generator=g) < 0.7).to(device)
    low = 0 if not dtype.is_signed else -100
    whole = torch.randint(low, 100, shape, generator=g)
    if dtype.itemsize > 1 and not dtype.is_signed:  # beyond the signed half
        whole = torch.where(
            torch.rand(shape, generator=g) < 0.1, whole + 2 ** (8 * dtype.itemsize - 1), whole
        )
    return whole.to(dtype).to(device)


def integers(x: torch.Tensor) -> np.ndarray:
    return x.cpu().numpy().astype(object)


def expected(x: torch.Tensor, op: str, dim: int) -> torch.Tensor:
    """PyTorch's answer in float64; NumPy's exact integers."""
    if not x.dtype.is_floating_point and op in ("max", "min", "sum", "argmax", "argmin"):
        values = integers(x)
        if op in ("argmax", "argmin"):
            return torch.from_numpy(np.asarray(getattr(np, op)(x.cpu().numpy(), dim)))
        result = np.asarray(getattr(np, op)(values, dim), dtype=object)
        if x.dtype == torch.uint64:
            return torch.from_numpy(np.asarray(result % 2**64).astype(np.uint64))
        return torch.from_numpy(result.astype(np.int64))
    x = x.cpu().double()
    match op:
        case "max" | "min":
            return getattr(torch, f"a{op}")(x, dim)
        case "norm":
            return torch.linalg.vector_norm(x, dim=dim)
        case "logsumexp":
            return torch.logsumexp(x, dim)
    return getattr(torch, op)(x, dim)


def close(actual: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, scale: float = 1.0) -> None:
    if dtype == torch.uint64:
        assert np.array_equal(actual.cpu().numpy(), want.numpy())
        return
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 3e-6, torch.float64: 1e-13}
    bound = tolerance.get(dtype, 0) * scale
    torch.testing.assert_close(
        actual.cpu().double(), want.double(), rtol=bound, atol=bound * 4, equal_nan=True
    )


def ops_for(dtype: torch.dtype) -> list[str]:
    if dtype.is_floating_point:
        return list(REDUCE_OPS)
    return ["sum", "max", "min", "argmax", "argmin", "any", "all"]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_every_op(dtype: torch.dtype, dim: int, device: str) -> None:
    for n in (*LENGTHS[:10], 130, 260, 600, 4100):
        shape = [3, 2, 2]
        shape[dim] = n
        x = make(tuple(shape), dtype, device, n)
        if dtype.is_floating_point and n > 300:
            x = x / 8
        for op in ops_for(dtype):
            if op == "prod" and n > 200:
                continue
            if op in ("var", "std") and n == 1:
                continue
            got, want = gp.reduce(x, op, dim), expected(x, op, dim)
            assert got.shape == want.shape, (op, n)
            if op in ("argmax", "argmin", "any", "all"):
                assert torch.equal(got.cpu().long(), want.long()), (op, n)
            else:
                close(got, want, dtype, scale=max(1.0, math.sqrt(n)) if op in ("sum", "mean") else 4.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.bfloat16], ids=str)
def test_long_rows(dtype: torch.dtype, device: str) -> None:
    for n in LONG:
        x = make((n,), dtype, device, n)
        for op in ops_for(dtype):
            if op == "prod":
                continue
            got, want = gp.reduce(x, op), expected(x, op, 0)
            if op in ("argmax", "argmin", "any", "all"):
                assert torch.equal(got.cpu().long(), want.long()), (op, n)
            else:
                close(got, want, dtype, scale=math.sqrt(n))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_follow_the_written_tree(dtype: torch.dtype, device: str) -> None:
    acc = np.float64 if dtype == torch.float64 else np.float32
    for n in (*LENGTHS, 12_345, 36_864, 70_001):
        x = make((2, n), dtype, device, n) * 3
        values = (x.cpu() if dtype in (torch.float32, torch.float64) else x.cpu().float()).numpy()
        for source, dim in ((x, 1), (x.t().contiguous(), 0), (x.t().contiguous().t(), 1)):
            strided = strided_class(source.stride(dim), n)
            want = torch.from_numpy(tree(values, dtype.itemsize, strided=strided).astype(acc))
            got = gp.reduce(source, "sum", dim)
            assert torch.equal(got.cpu(), want.to(dtype)), (n, dim)
            mean = torch.from_numpy((want.numpy() / acc(n)).astype(acc))
            assert torch.equal(gp.reduce(source, "mean", dim).cpu(), mean.to(dtype)), (n, dim)


def test_float64_sum_of_float32(device: str) -> None:
    for n in (5, 128, 1000, 5000, 40_000):
        x = make((2, n), torch.float32, device, n)
        for source, dim in ((x, 1), (x.t().contiguous(), 0)):
            strided = strided_class(source.stride(dim), n)
            want = torch.from_numpy(tree(x.cpu().double().numpy(), 4, strided=strided))
            got = gp.reduce(source, "sum", dim, dtype=torch.float64)
            assert got.dtype == torch.float64 and torch.equal(got.cpu(), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("op", [op for op in REDUCE_OPS if op not in ("any", "all")])
def test_same_bits_alone_in_a_batch_and_at_odd_offsets(op: str, dtype: torch.dtype, device: str) -> None:
    for n in (7, 64, 100, 130, 300, 1001, 4096, 5000, 33_000):
        rows = make((5, n), dtype, device, n) / 4
        rows = 1 + rows / 16 if op == "prod" else rows  # products of many numbers below 1 are all 0
        whole = gp.reduce(rows, op, -1)
        for i in range(5):
            assert torch.equal(gp.reduce(rows[i], op), whole[i]), (n, i)
        for shift in (1, 2, 3, 5):
            wide = rows.new_zeros(5, n + shift)
            wide[:, shift:] = rows
            assert torch.equal(gp.reduce(wide[:, shift:], op, -1), whole), (n, shift)
        many = rows.repeat(200 if n < 1000 else 8, 1)
        assert torch.equal(gp.reduce(many, op, -1)[:5], whole), n
        turned = rows.t().contiguous()
        columns = gp.reduce(turned, op, 0)  # the strided class has bits of its own
        alone = torch.stack([gp.reduce(turned[:, i : i + 1].expand(n, 2), op, 0)[0] for i in range(5)])
        if n > 1:
            assert torch.equal(columns, alone), n
            wide = turned.repeat(1, 30)
            assert torch.equal(gp.reduce(wide, op, 0)[:5], columns), n


def test_sum_depends_on_the_class_of_strides_alone(device: str) -> None:
    x = make((6, 50, 7), torch.float32, device)
    want = gp.reduce(x, "sum", 1)
    assert torch.equal(gp.reduce(x.permute(2, 1, 0), "sum", 1), want.t())
    assert torch.equal(gp.reduce(x.permute(1, 2, 0).contiguous(), "sum", 0), want.t())
    assert torch.equal(gp.reduce(torch.stack([x, x], -1), "sum", 1)[..., 1], want)
    assert torch.equal(gp.reduce(x, "sum"), gp.reduce(x.permute(2, 0, 1), "sum"))


@pytest.mark.gpu
@given(
    st.lists(st.integers(0, 5), min_size=0, max_size=5),
    st.data(),
    st.sampled_from(["sum", "max", "any", "var", "mean", "logsumexp", "norm"]),
)
def test_dims_and_strides(sizes: list[int], data: st.DataObject, op: str) -> None:
    rank = len(sizes)
    order = data.draw(st.permutations(range(rank)))
    x = make(tuple(sizes[d] for d in order), torch.float64, "cpu").permute(
        [order.index(d) for d in range(rank)]
    )
    if rank and data.draw(st.booleans()):
        x = x.unsqueeze(0).expand(2, *x.shape)
    if x.dim() and data.draw(st.booleans()):
        x = x[..., ::2]
    dims = data.draw(st.lists(st.integers(0, max(x.dim() - 1, 0)), unique=True)) if x.dim() else []
    dims = data.draw(st.permutations(dims))
    if op == "max" and 0 in [x.shape[d] for d in (dims or range(x.dim()))]:
        return
    keepdim = data.draw(st.booleans())
    theirs = {"max": torch.amax, "norm": torch.linalg.vector_norm}.get(op) or getattr(torch, op)
    if op == "any" and not dims:
        want = torch.any(x)
        want = want.reshape([1] * x.dim()) if keepdim else want
    else:
        want = theirs(x, dim=dims or list(range(x.dim())), keepdim=keepdim)
    for device in ["cpu", *["cuda"] * torch.cuda.is_available()]:
        got = gp.reduce(x.to(device) if device == "cuda" else x, op, dims or None, keepdim)
        torch.testing.assert_close(got.cpu(), want, equal_nan=True)


@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin", "sum", "logsumexp", "mean", "var"])
@pytest.mark.parametrize("n", [3, 60, 200, 5000])
def test_nan_and_infinities(op: str, n: int, device: str) -> None:
    nan, inf = math.nan, math.inf
    for values in (
        [nan],
        [inf],
        [-inf],
        [inf, nan],
        [inf, -inf],
        [-inf] * n,
        [inf] * n,
        [nan] * n,
        [-0.0] * n,
    ):
        for at in {0, n // 2, n - len(values)} if len(values) < n else {0}:
            x = make((2, n), torch.float32, "cpu", n)
            x[1, at : at + len(values)] = torch.tensor(values)
            for source, dim in ((x.to(device), 1), (x.t().contiguous().to(device), 0)):
                got, want = gp.reduce(source, op, dim).cpu(), expected(x, op, 1)
                if op in ("argmax", "argmin"):
                    assert torch.equal(got, want), (values[:2], at)
                elif op == "var" and not bool(want.isfinite().all()):
                    assert torch.equal(got.isfinite(), want.isfinite())
                else:
                    torch.testing.assert_close(got, want.float(), equal_nan=True, rtol=2e-5, atol=2e-5)


def test_ties_go_to_the_lowest_index(device: str) -> None:
    for n in (10, 100, 1000, 9000, 70_000):
        x = torch.zeros(n, device=device)
        for spots in ([3, 7], [n - 2, n - 1], [0, n - 1], [n // 2, n - 1]):
            y = x.clone()
            y[torch.tensor(spots, device=device)] = 2
            assert gp.reduce(y, "argmax").item() == min(spots)
            assert gp.reduce(-y, "argmin").item() == min(spots)
            assert gp.reduce(torch.stack([y, x], 1), "argmax", 0).tolist() == [min(spots), 0]
        assert gp.reduce(torch.full((n,), -math.inf, device=device), "argmax").item() == 0


def test_argmax_counts_in_the_order_of_indices(device: str) -> None:
    x = make((7, 9, 4), torch.float32, device)
    for y in (x, x.permute(2, 0, 1), x[::2], x.mT[:, 1:]):
        assert gp.reduce(y, "argmax").item() == torch.argmax(y).item()


def test_variance_is_accurate_far_from_zero(device: str) -> None:
    for n in (50, 1000, 5000, 100_000):
        for offset, tolerance in ((1e3, 1e-5), (1e5, 1e-4)):  # float32 means are 0.004 off at 1e5
            x = (make((2, n), torch.float64, "cpu", n) + offset).float()
            want = x.double().var(-1)
            for source, dim in ((x.to(device), 1), (x.t().contiguous().to(device), 0)):
                torch.testing.assert_close(
                    gp.reduce(source, "var", dim).cpu().double(), want, rtol=tolerance, atol=0
                )
        first = make((2, n), torch.float64, "cpu", n).float()
        empty = first + 1e3
        first[:, 0] = 1e4  # an outlier where sums are shifted from
        empty[:, : n // 8] = 0  # and nothing but what is far from the mean
        for x in (first, empty):
            want = x.double().var(-1)
            for source, dim in ((x.to(device), 1), (x.t().contiguous().to(device), 0)):
                torch.testing.assert_close(
                    gp.reduce(source, "var", dim).cpu().double(), want, rtol=2e-5, atol=0
                )


def test_correction(device: str) -> None:
    x = make((4, 6), torch.float64, device)
    for correction in (0, 1, 2.5, 6, 9):
        for op in ("var", "std"):
            got = gp.reduce(x, op, 1, correction=correction)
            torch.testing.assert_close(got, getattr(torch, op)(x, 1, correction=correction), equal_nan=True)
    assert gp.reduce(x[:, :1], "var", 1).isnan().all()


def test_norms(device: str) -> None:
    for dtype in FLOATS:
        x = make((3, 700), dtype, device)
        for ord in (1, 2, math.inf):
            want = torch.linalg.vector_norm(x.double(), ord, dim=1)
            close(gp.reduce(x, "norm", 1, ord=ord), want.cpu(), dtype, 30)
            close(gp.reduce(x.t(), "norm", 0, ord=ord), want.cpu(), dtype, 30)


def test_result_dtypes(device: str) -> None:
    x = make((3, 100), torch.int32, device)
    assert gp.reduce(x, "sum").dtype == torch.int64
    assert gp.reduce(x.to(torch.uint64), "sum").dtype == torch.uint64
    assert gp.reduce(x, "prod", 1).dtype == torch.int64
    assert gp.reduce(x, "any").dtype == torch.bool
    assert torch.equal(gp.reduce(x, "mean", 1, dtype=torch.float64), x.double().mean(1))
    assert torch.equal(gp.reduce(x, "sum", 1, dtype=torch.int32), x.sum(1, dtype=torch.int32))
    half = make((3, 3000), torch.float16, device) * 100
    assert torch.equal(gp.reduce(half, "sum", 1, dtype=torch.float32).half(), gp.reduce(half, "sum", 1))


def test_integers_wrap(device: str) -> None:
    x = torch.full((5000,), 2**62, dtype=torch.int64, device=device)
    assert gp.reduce(x, "sum").item() == x.sum().item()
    assert gp.reduce(x[:3] + 1, "prod").item() == (x[:3] + 1).prod().item()
    y = torch.full((5000,), 2**63 + 7, dtype=torch.uint64).to(device)
    assert gp.reduce(y, "sum").item() == 5000 * (2**63 + 7) % 2**64


def test_empty(device: str) -> None:
    x = torch.zeros(3, 0, device=device)
    assert gp.reduce(x, "sum", 1).tolist() == [0, 0, 0]
    assert gp.reduce(x, "prod", 1).tolist() == [1, 1, 1]
    assert gp.reduce(x, "mean", 1).isnan().all() and gp.reduce(x, "var", 1).isnan().all()
    assert gp.reduce(x, "logsumexp", 1).tolist() == [-math.inf] * 3
    assert gp.reduce(x, "all", 1).tolist() == [True] * 3 and gp.reduce(x, "any", 1).tolist() == [False] * 3
    assert gp.reduce(x.int(), "all", 1).tolist() == [True] * 3
    assert gp.reduce(x, "norm").item() == 0
    assert gp.reduce(x, "max", 0).shape == (0,)
    assert gp.dot(x[0], x[0]).item() == 0
    with pytest.raises(RuntimeError, match="max of no elements is not defined"):
        gp.reduce(x, "max", 1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_stats(dtype: torch.dtype, device: str) -> None:
    for n in (2, 33, 64, 200, 900, 4096, 9000, 40_000):
        x = make((3, n), dtype, device, n)
        x[1, n // 2] = math.nan
        for source, dim in ((x, 1), (x.t().contiguous(), 0)):
            for indices in (False, True):
                s = gp.stats(source, dim, indices=indices)
                wide = x.cpu().double()
                close(s.min, wide.amin(1), dtype)
                close(s.max, wide.amax(1), dtype)
                close(s.mean, wide.mean(1), dtype, 10)
                close(s.var, wide.var(1), dtype, 10)
                assert s.nan_count.tolist() == [0, 1, 0]
                if indices:
                    assert torch.equal(s.argmin.cpu(), wide.argmin(1))
                    assert torch.equal(s.argmax.cpu(), wide.argmax(1))
                else:
                    assert s.argmin is None and s.argmax is None
    one = gp.stats(torch.tensor([math.inf, 1.0], device=device))
    assert one.mean.item() == math.inf and one.var.isnan()


def test_stats_of_several_dims(device: str) -> None:
    x = make((4, 5, 6), torch.float32, device)
    s = gp.stats(x, (0, 2), True, correction=0)
    torch.testing.assert_close(s.mean, x.mean((0, 2), keepdim=True))
    torch.testing.assert_close(s.var, x.var((0, 2), keepdim=True, correction=0))
    assert s.nan_count.shape == (1, 5, 1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dot(dtype: torch.dtype, device: str) -> None:
    for n in (1, 5, 129, 4097, 40_000, 300_000):
        x, y = make((n,), dtype, device), make((n,), dtype, device, 1)
        wide = torch.float32 if dtype.itemsize == 2 else dtype
        got = gp.dot(x, y)
        want = tree((x.to(wide) * y.to(wide)).cpu().numpy(), dtype.itemsize) if n < 50_000 else None
        if want is not None:
            assert torch.equal(got.cpu(), torch.from_numpy(np.asarray(want)).to(dtype)), n
        close(got, torch.dot(x.double().cpu(), y.double().cpu()), dtype, 4 * math.sqrt(n))
        for shift in (1, 2, 3):
            wide_x = x.new_zeros(n + shift)
            wide_x[shift:] = x
            assert torch.equal(gp.dot(wide_x[shift:], y), got)
        assert torch.equal(gp.dot(torch.stack([x, x], 1)[:, 0], y), got)


def test_gradients_of_extremes_go_to_the_first(device: str) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]], device=device, requires_grad=True)
    gp.reduce(x, "max", 1).sum().backward()
    assert x.grad.tolist() == [[0, 1, 0], [1, 0, 0]]
    x.grad = None
    gp.reduce(x, "min").backward()
    assert x.grad.tolist() == [[0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "max", "min", "norm", "var", "std", "logsumexp"])
@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2), (2, 1)])
def test_gradients(op: str, dim: object, device: str) -> None:
    g = torch.Generator().manual_seed(3)
    x = (torch.randperm(24, generator=g).double() / 6 - 2.03).reshape(2, 3, 4).to(device).requires_grad_()
    for keepdim in (False, True):
        assert torch.autograd.gradcheck(lambda t: gp.reduce(t, op, dim, keepdim), x)  # noqa: B023
    assert torch.autograd.gradgradcheck(lambda t: gp.reduce(t, op, dim), x)
    assert torch.autograd.gradgradcheck(lambda t: torch.ops.gpuprims.reduce(t, 6 + 4, [1]), x)


@pytest.mark.parametrize("ord", [1, 2, math.inf])
def test_gradients_of_norms(ord: float, device: str) -> None:
    x = (torch.arange(12).double().reshape(3, 4) / 3 - 1.1).to(device).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: gp.reduce(t, "norm", 1, ord=ord), x)
    zero = torch.zeros(3, device=device, requires_grad=True)
    gp.reduce(zero, "norm", ord=ord).backward()
    assert zero.grad.tolist() == [0, 0, 0]


def test_gradient_of_a_product_with_zeros(device: str) -> None:
    for values in ([2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [2.0, 4.0, 3.0]):
        x = torch.tensor(values, dtype=torch.float64, device=device, requires_grad=True)
        assert torch.autograd.gradcheck(lambda t: gp.reduce(t, "prod"), x)
        assert torch.autograd.gradgradcheck(lambda t: gp.reduce(t, "prod"), x)


def test_gradients_of_stats_and_dot(device: str) -> None:
    x = (torch.arange(12).double().reshape(3, 4) * 7 % 12 / 3 - 1.1).to(device).requires_grad_()
    for dim in (None, 0, 1, (0, 1)):
        assert torch.autograd.gradcheck(lambda t: gp.stats(t, dim)[:4], x)  # noqa: B023
        assert torch.autograd.gradgradcheck(lambda t: gp.stats(t, dim)[:4], x)  # noqa: B023
    y = x.detach()[0].clone().requires_grad_()
    assert torch.autograd.gradcheck(gp.dot, (x[0], y))
    assert torch.autograd.gradgradcheck(gp.dot, (x[0], y))


def test_messages(device: str) -> None:
    x = torch.zeros(3, 4, device=device)
    cases = [
        (ValueError, "reduce: op must be one of sum, mean, prod", lambda: gp.reduce(x, "median")),
        (ValueError, "reduce: ord must be 1, 2 or inf, got 3", lambda: gp.reduce(x, "norm", ord=3)),
        (RuntimeError, "reduce: dim must be between -2 and 1, got 2", lambda: gp.reduce(x, "sum", 2)),
        (RuntimeError, "reduce: dim 1 appears twice", lambda: gp.reduce(x, "sum", (1, -1))),
        (RuntimeError, "argmax takes one dim or None, got 2 dims", lambda: gp.reduce(x, "argmax", (0, 1))),
        (RuntimeError, "var is not defined for int32", lambda: gp.reduce(x.int(), "var")),
        (RuntimeError, "mean is not defined for int32 without", lambda: gp.reduce(x.int(), "mean")),
        (RuntimeError, "max takes no dtype", lambda: gp.reduce(x, "max", dtype=torch.float64)),
        (RuntimeError, "float32 cannot have dtype int32", lambda: gp.reduce(x, "sum", dtype=torch.int32)),
        (RuntimeError, "dtype complex64 is not supported", lambda: gp.reduce(x + 0j, "sum")),
        (RuntimeError, "must be a dense tensor", lambda: gp.reduce(x.to_sparse(), "sum")),
        (RuntimeError, "must be a dense tensor", lambda: gp.stats(x.to_sparse())),
        (RuntimeError, "max of no elements is not defined", lambda: gp.reduce(x[:0], "max")),
        (RuntimeError, "norm of no elements is not defined", lambda: gp.reduce(x[:0], "norm", ord=math.inf)),
        (RuntimeError, "dot: other must be a dense tensor", lambda: gp.dot(x[0], x[0].to_sparse())),
        (RuntimeError, "other must be on the device of input", lambda: gp.dot(x[0], x[0].to("meta"))),
        (RuntimeError, "stats: input must be floating, got int32", lambda: gp.stats(x.int())),
        (RuntimeError, "dot: input and other must be vectors", lambda: gp.dot(x, x)),
        (TypeError, "out= is not supported", lambda: gp.reduce(x, "sum", out=x)),
    ]  # fmt: skip
    for kind, words, call in cases:
        with pytest.raises(kind, match=words.replace("(", r"\(")):
            call()


def test_modules(device: str) -> None:
    x = make((4, 8), torch.float32, device).requires_grad_()
    assert torch.equal(gp.nn.Reduce("max", -1)(x), gp.reduce(x, "max", -1))
    with pytest.raises(ValueError, match="op must be one of"):
        gp.nn.Reduce("median")
    norm = gp.nn.Stats(-1, True, correction=0)
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    for module in (norm, compiled):
        s = module(x)
        y = (x - s.mean) * (s.var + 1e-5).rsqrt()
        torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (8,)))
        (grad,) = torch.autograd.grad(y.square().mul(torch.arange(8, device=device)).sum(), x)
        z = torch.nn.functional.layer_norm(x, (8,))
        (want,) = torch.autograd.grad(z.square().mul(torch.arange(8, device=device)).sum(), x)
        torch.testing.assert_close(grad, want, rtol=1e-4, atol=1e-4)


def test_modules_compile() -> None:
    x = make((4, 8), torch.float32, "cpu").requires_grad_()
    torch._dynamo.reset()
    for module in (gp.nn.Reduce("var", (0, 1), True), gp.nn.Reduce("norm", 0, ord=1), gp.nn.Reduce("mean")):
        traced = torch.compile(module, fullgraph=True, backend="aot_eager")
        (grad,), (want,) = (torch.autograd.grad(m(x).sin().sum(), x) for m in (traced, module))
        assert torch.equal(traced(x), module(x)) and torch.equal(grad, want)


def test_explain() -> None:
    def of(*shape: int, dim: int | None = None, op: str = "sum") -> str:
        return gp.explain("reduce", torch.empty(shape, device="meta"), op, dim)

    assert "packed_rows, 4 lanes a row" in of(1_000_000, 64, dim=-1)
    assert "long_rows, 8 chunks of 4096 a row, 8 in a block" in of(4096, 32_768, dim=-1)
    assert "strided" in of(32_768, 4096, dim=0)
    assert "reduce stats float32" in gp.explain("stats", torch.empty(100, 100), 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("op", ["max", "argmin", "var", "logsumexp", "stats"])
def test_rows_that_come_past_the_registers_change_no_bits(op: str) -> None:
    """Much input has its rows in a ring in shared memory; the same rows alone have not."""
    torch.manual_seed(0)

    def of(x: torch.Tensor, dim: int) -> list[torch.Tensor]:
        found = gp.stats(x, dim) if op == "stats" else gp.reduce(x, op, dim)
        return list(found) if isinstance(found, tuple) else [found]

    columns = torch.randn(66_001, 256, device="cuda") + 3
    rows = torch.randn(300_000, 64, device="cuda") - 50
    long = torch.randn(256, 65_536, device="cuda")
    for x in (columns, rows, long):
        x[60, 3], x[2, 60], x[3, 3] = math.nan, math.inf, -math.inf
    for x, alone, dim in (
        (columns, columns[:, :4].contiguous(), 0), (columns[:64].repeat(1, 300), columns[:64], 0),
        (rows, rows[:64], 1), (long, long[:4], 1), (long, long[2:3, :], 1),
    ):  # fmt: skip
        first = 2 if alone.shape[0] == 1 else 0
        for a, b in zip(of(x, dim), of(alone, dim), strict=True):
            torch.testing.assert_close(a[first : first + len(b)], b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_other_grids_give_the_same_bits() -> None:
    """Subprocesses, because the switch is read once."""
    script = (
        "import torch, torch_gpuprims as gp, hashlib\n"
        "g = torch.Generator().manual_seed(5); h = hashlib.sha256()\n"
        "for dtype in (torch.float32, torch.float16, torch.bfloat16):\n"
        " for shape, dim in (((3, 50_000), 1), ((2**21 + 5,), 0), ((20_000, 70), 0), ((5000, 3), 0)):\n"
        "  x = torch.randn(shape, generator=g).to(dtype).cuda()\n"
        "  for op in gp.reduce.__globals__['REDUCE_OPS']:\n"
        "   for ord in (1, 2, float('inf')) if op == 'norm' else (2,):\n"
        "    y = 1 + x / 1000 if op == 'prod' else x\n"
        "    h.update(gp.reduce(y, op, dim, ord=ord).double().cpu().numpy().tobytes())\n"
        "  h.update(gp.dot(x.flatten(), x.flatten()).double().cpu().numpy().tobytes())\n"
        "  for t in gp.stats(x, dim, indices=True): h.update(t.double().cpu().numpy().tobytes())\n"
        "print(h.hexdigest())\n"
    )
    seen = set()
    for chunks in ("", "1", "2", "4", "8"):
        env = {**os.environ, "GPUPRIMS_REDUCE_CHUNKS": chunks}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        seen.add(done.stdout)
    assert len(seen) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_cuda_sums_have_the_bits_of_the_cpu() -> None:
    for dtype in (torch.float32, torch.float64):
        for shape, dim in (
            ((2**20 + 3,), 0),
            ((300, 1000), 1),
            ((5000, 64), 0),
            ((9, 40_001), 1),
            ((8, 300, 70), 1),
        ):
            x = make(shape, dtype, "cpu", shape[0]) * 1e-3
            x.reshape(-1)[::97] *= 1e-38  # denormal
            word = torch.int64 if dtype == torch.float64 else torch.int32
            for op in ("sum", "mean", "norm"):
                there, here = (gp.reduce(t, op, dim, ord=1).cpu() for t in (x.cuda(), x))
                assert torch.equal(there.view(word), here.view(word)), (op, shape)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_streams_and_repeats_leave_the_tickets_clean() -> None:
    x = torch.randn(2**20, device="cuda")
    want = gp.reduce(x, "sum")
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results = []
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(gp.reduce(x, "sum"))
    torch.cuda.synchronize()
    assert all(torch.equal(r, want) for r in results)
