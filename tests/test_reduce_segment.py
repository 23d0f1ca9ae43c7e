"""segment_reduce against NumPy in float64; bad offsets; transforms."""

import doctest
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reduce_segment_reference import (
    FLOATS,
    INTS,
    OPS,
    check,
    cut,
    draw,
)
from torch._dynamo.testing import CompileCounterWithBackend

from torch_gpuprims import Segments, explain, segment_expand, segment_reduce
from torch_gpuprims.nn import SegmentReduce

LENGTHS = st.lists(
    st.sampled_from([0, 0, 1, 2, 3, 9, 10, 16, 17, 31, 32, 33, 64, 65, 100, 128, 129, 300, 1025, 4097]),
    max_size=25,
)


class TestValues:
    @given(
        lengths=LENGTHS, op=st.sampled_from(OPS), dtype=st.sampled_from(FLOATS + INTS),
        shape=st.sampled_from([(), (1,), (2,), (4,), (3, 2), (0,)]), seed=st.integers(0, 2**31),
        narrow=st.booleans(), stepped=st.booleans(), as_segments=st.booleans(),
    )  # fmt: skip
    def test_any_segments(self, device, lengths, op, dtype, shape, seed, narrow, stepped, as_segments):
        if op in ("mean", "logsumexp") and not dtype.is_floating_point:
            dtype = torch.float32
        indptr = cut(lengths)
        x = draw((int(indptr[-1]) + 1, *shape), dtype, seed, op == "prod").to(device)[1:]
        if stepped:
            x = torch.stack([x, x], 1)[:, 0]
        offsets = indptr.to(device, torch.int32 if narrow else torch.int64)
        check(x, indptr, op, Segments(offsets) if as_segments else offsets)

    @pytest.mark.parametrize("op", OPS)
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_every_length(self, device, op, dtype):
        indptr = cut([3, 0, 150_000, 20, 9000, 700, 0, 40_001, 33, 160, 4096, 4097, 0])
        for shape in ((), (4,), (5,)):
            check(draw((int(indptr[-1]), *shape), dtype, 0, op == "prod").to(device), indptr, op)

    def test_many_of_each_kind(self, device):
        g = torch.Generator().manual_seed(0)
        for lengths in (
            torch.full((50_000,), 10), torch.randint(0, 40, (20_000,), generator=g),
            torch.cat([torch.zeros(300_000).long(), torch.tensor([70_000]), torch.zeros(1000).long()]),
            torch.full((700,), 1000), torch.randint(0, 3000, (800,), generator=g),
        ):  # fmt: skip
            indptr = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
            x = torch.randint(-50, 50, (int(indptr[-1]),), generator=g)
            sums = torch.nn.functional.pad(x.cumsum(0), (1, 0))
            want = sums[indptr[1:]] - sums[indptr[:-1]]
            assert torch.equal(segment_reduce(x.float().to(device), indptr.to(device)).cpu().long(), want)
            assert torch.equal(segment_reduce(x.to(device), indptr.to(device)).cpu(), want)
            rows = torch.stack([x, -x, 2 * x], 1).float().to(device)
            out = segment_reduce(rows, indptr.to(device)).cpu().long()
            assert torch.equal(out, torch.stack([want, -want, 2 * want], 1))
            ids = torch.arange(len(lengths)).repeat_interleave(lengths)
            spread = segment_expand(want.to(device), indptr.to(device), len(x))
            assert torch.equal(spread.cpu(), want[ids])

    @pytest.mark.parametrize("op", ["max", "min", "sum", "mean", "prod", "logsumexp"])
    def test_nan_and_infinities(self, device, op):
        rows = [[1, np.nan, 2], [np.inf, 1], [-np.inf, -np.inf], [-np.inf, 3], [np.inf, np.inf], [-0.0]]
        x = torch.tensor([x for row in rows for x in row], device=device)
        indptr = cut([len(row) for row in rows])
        for dtype in FLOATS:
            for values in (x.to(dtype), x.to(dtype)[:, None].expand(-1, 2).contiguous()):
                with np.errstate(invalid="ignore"):
                    check(values, indptr, op)
        if op in ("max", "min", "sum"):
            zero = segment_reduce(x, indptr.to(device), op)[-1]
            assert not torch.signbit(zero)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_lengths_from_none_to_1e8():
    indptr = cut([0, 1, 100_000_000, 0, 3, *[10] * 1000, 40_000, 0, 700]).cuda()
    g = torch.Generator(device="cuda").manual_seed(0)
    x = (torch.rand(int(indptr[-1]), device="cuda", generator=g) < 0.1).to(torch.uint8)
    sums = torch.nn.functional.pad(x.cumsum(0, dtype=torch.int64), (1, 0))
    want = sums[indptr[1:]] - sums[indptr[:-1]]
    assert torch.equal(segment_reduce(x, indptr), want)
    assert torch.equal(segment_reduce(x.float(), indptr), want.float())  # 1e7 ones: exact in float32
    x[0], x[77_000_000] = 9, 7
    assert segment_reduce(x, indptr, "max")[:4].tolist() == [0, 9, 7, 0]


N = 4000

HOSTILE = {
    "alternating": [0, N] * 50 + [0],
    "alternating to the end": [0, N] * 50,
    "negative": [0, -5, 10, N],
    "huge": [0, 2**62, -(2**62), N],
    "start": [1, 5, N],
    "short": [0, 5, N - 1],
    "long": [0, 5, N + 1],
    "far away": [0, *[2**40] * 600, N],
}


class TestBadData:
    @pytest.mark.parametrize("name", HOSTILE)
    @pytest.mark.parametrize("offset_dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize("shape", [(), (3,)])
    def test_outputs_are_filled(self, name, offset_dtype, shape, device):
        ends = torch.tensor(HOSTILE[name])
        if offset_dtype == torch.int32:
            ends = ends.clamp(-(2**31), 2**31 - 1)
        indptr = ends.to(device, offset_dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
            for op in ("sum", "max"):
                out = segment_reduce(torch.ones((N, *shape), dtype=dtype, device=device), indptr, op)
                assert out.isnan().all() if dtype.is_floating_point else (out == 0).all()
            spread = segment_expand(
                torch.ones((len(ends) - 1, *shape), dtype=dtype, device=device), indptr, N
            )
            assert spread.isnan().all() if dtype.is_floating_point else (spread == 0).all()
        good = segment_reduce(torch.ones(3, device=device), torch.tensor([0, 3], device=device))
        assert good.tolist() == [3]  # the context lives

    def test_check_variable_raises(self, device):
        code = f"""
import torch, torch_gpuprims


x = torch.rand(5, device="{device}")
for indptr in ([0, 3, 2, 5], [0, 3, 5]):
    at = torch.tensor(indptr, device="{device}")
    for run in (lambda: torch_gpuprims.segment_reduce(x, at),
                lambda: torch_gpuprims.segment_expand(x[:len(indptr) - 1], at, 5)):
        try:
            run()
            print("fine")
        except RuntimeError as error:
            print(error)
for values, at in ((x, [0]), (x[:, None][:, :0], [0, 3])):  # nothing to compute
    try:
        torch_gpuprims.segment_reduce(values, torch.tensor(at, device="{device}"))
    except RuntimeError as error:
        print(error)
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "GPUPRIMS_CHECK": "1"}, cwd=Path(__file__).parents[1],
        )  # fmt: skip
        words = "indptr must start at 0, not decrease and end at the number of rows (5)"
        assert done.stdout.splitlines() == [
            f"segment_reduce: {words}", f"segment_expand: {words}", "fine", "fine",
            f"segment_reduce: {words}", f"segment_reduce: {words}",
        ]  # fmt: skip

    def test_wrapper(self, device):
        x, indptr = torch.rand(5, device=device), torch.tensor([0, 5], device=device)
        with pytest.raises(ValueError, match=r"op must be one of sum, mean, .*, got 'median'"):
            segment_reduce(x, indptr, "median")
        with pytest.raises(
            RuntimeError, match="values must have 5 rows \\(the end of the segments\\), got 4"
        ):
            segment_reduce(x[1:], Segments(indptr))
        with pytest.raises(
            RuntimeError, match="segment_expand: n must be 5 \\(the end of the segments\\), got 6"
        ):
            segment_expand(x[:1], Segments(indptr), 6)
        with pytest.raises(RuntimeError, match="values must be a dense tensor, got a sparse layout"):
            segment_reduce(x.to_sparse(), indptr)
        for run in (lambda at: segment_reduce(x, at), lambda at: segment_expand(x[:1], at, 5)):
            with pytest.raises(RuntimeError, match="indptr must be a dense tensor, got a sparse layout"):
                run(indptr.to_sparse())
            with pytest.raises(RuntimeError, match="indptr must be on the device of values"):
                run(indptr.to("meta"))
        with pytest.raises(ValueError, match=r"Segments: indptr must not decrease, but indptr\[2\] = 3"):
            Segments(torch.tensor([0, 5, 3], device=device))


class TestGradients:
    def test_first_extremum(self, device):
        x = torch.tensor([2.0, 5, 5, 1, 1, float("nan"), 3], device=device, requires_grad=True)
        indptr = torch.tensor([0, 3, 5, 5, 7], device=device)
        segment_reduce(x, indptr, "max").backward(torch.tensor([10.0, 20, 30, 40], device=device))
        assert x.grad.tolist() == [0, 10, 0, 20, 0, 40, 0]

    @pytest.mark.parametrize("zeros", [0, 1, 2, 3])
    def test_two_derivatives_of_prod_with_zeros(self, zeros, device):
        x = torch.tensor([1.5, -2, 0.5, 3, -1, 2], dtype=torch.float64, device=device)
        x[1 : 1 + zeros] = 0
        indptr = torch.tensor([0, 5, 5, 6], device=device)

        def run(t):
            return segment_reduce(t, indptr, "prod")

        x.requires_grad_()
        assert torch.autograd.gradcheck(run, [x]) and torch.autograd.gradgradcheck(run, [x])
        want = torch.autograd.functional.jacobian(lambda t: t[:5].prod()[None], x)
        assert torch.allclose(torch.autograd.functional.jacobian(run, x)[0], want[0])

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_16_bits(self, dtype, device):
        indptr = cut([0, 70_000, 3]).to(device)
        for op in OPS:
            x = draw((70_003,), dtype, 0, op == "prod").to(device).requires_grad_()
            y = x.detach().float().requires_grad_()
            segment_reduce(x, indptr, op)[1:].sum().backward()
            segment_reduce(y, indptr, op)[1:].sum().backward()
            assert x.grad.dtype == dtype
            torch.testing.assert_close(x.grad.float(), y.grad, rtol=0.05, atol=1e-3)

    def test_vmap_over_offsets(self, device):
        x = torch.randn(3, 20, device=device)
        indptr = torch.tensor([[0, 4, 4, 20], [0, 0, 19, 20], [0, 10, 15, 20]], device=device)
        loop = torch.stack([segment_reduce(t, at) for t, at in zip(x, indptr, strict=True)])
        assert torch.equal(torch.vmap(segment_reduce)(x, indptr), loop)
        bad = torch.vmap(segment_reduce, in_dims=(0, None))(x, indptr[0] - 1)
        assert bad.isnan().all()
        spread = torch.vmap(lambda t, at: segment_expand(t, at, 20))(loop, indptr)
        want = [segment_expand(t, at, 20) for t, at in zip(loop, indptr, strict=True)]
        assert torch.equal(spread, torch.stack(want))


def test_docstrings_and_explain():
    module = sys.modules[segment_reduce.__module__]
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
    text = explain("segment_reduce", torch.empty(1000), torch.tensor([0, 1000]), "max")
    assert text.startswith("segment_reduce max of float32 [1000, 1] in 1 segments -> tiles of 8 segments")


def test_module_compiles_once_and_has_gradients(device: str) -> None:
    module, counter = SegmentReduce("mean"), CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    for n, segments in ((50, 4), (70, 9), (33, 5)):
        x = torch.randn(n, device=device, requires_grad=True)
        indptr = torch.linspace(0, n, segments + 1).long().to(device)
        got, want = compiled(x, indptr), segment_reduce(x, indptr, "mean")
        assert torch.equal(got, want)
        weights = torch.arange(1.0, segments + 1, device=device)
        (grad,), (expected,) = (torch.autograd.grad(y @ weights, x) for y in (got, want))
        assert torch.equal(grad, expected)
    assert counter.frame_count == 1


def test_module_says_what_it_is(device: str) -> None:
    module = SegmentReduce("max")
    assert repr(module) == "SegmentReduce('max')"
    x, indptr = torch.rand(9, 2, device=device), torch.tensor([0, 4, 4, 9], device=device)
    assert torch.equal(module(x, indptr), segment_reduce(x, indptr, "max"))
    assert torch.equal(module(x, Segments(indptr)), module(x, indptr))
    with pytest.raises(ValueError, match="segment_reduce: op must be one of sum, mean, max"):
        SegmentReduce("median")
    names = {"torch": torch}
    assert doctest.testmod(sys.modules[SegmentReduce.__module__], extraglobs=names).failed == 0
