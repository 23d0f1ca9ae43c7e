"""segment_reduce against NumPy in float64, bit for bit against its written tree; bad offsets; transforms."""

import doctest
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

from torch_gpuprims import Segments, explain, reduce, segment_expand, segment_reduce
from torch_gpuprims.nn import SegmentReduce

OPS = ("sum", "mean", "max", "min", "prod", "logsumexp")
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTS = (
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
)  # fmt: skip


def cut(lengths):
    return torch.tensor([0, *np.cumsum(lengths, dtype=np.int64).tolist()])


def draw(shape, dtype, seed, small=False):
    """Values whose product stays finite where `small`."""
    g = np.random.default_rng(seed)
    if dtype.is_floating_point:
        x = np.exp(g.normal(0, 0.01, shape)) * g.choice([-1, 1], shape) if small else g.normal(0, 3, shape)
        return torch.from_numpy(x).to(dtype)
    if dtype == torch.bool:
        return torch.from_numpy(g.integers(0, 2, shape).astype(bool))
    info = torch.iinfo(dtype)
    x = g.integers(max(info.min, -(2**63)), min(info.max, 2**63 - 1), shape, endpoint=True)
    x = np.where(g.integers(0, 2, shape) == 0, np.clip(x, -3 if info.min < 0 else 0, 3), x)
    return torch.from_numpy(x).to(dtype)


def empty_value(op, dtype):
    if op in ("sum", "prod", "mean"):
        return {"sum": 0, "prod": 1, "mean": np.nan}[op]
    if dtype.is_floating_point:
        return np.inf if op == "min" else -np.inf
    if dtype == torch.bool:
        return op == "min"
    return torch.iinfo(dtype).max if op == "min" else torch.iinfo(dtype).min


def numpy_of(x):
    return x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()


def reference(part, op, dtype):
    """In NumPy, float64; integers exact, modulo 2^64."""
    if part.shape[0] == 0:
        return np.full(part.shape[1:], empty_value(op, dtype))
    if dtype.is_floating_point:
        x = part.astype(np.float64)
        if op == "logsumexp":
            return np.logaddexp.reduce(x, axis=0)
        return {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}[op](x, axis=0)
    if op in ("sum", "prod"):
        x = part.astype(np.int64)
        return x.sum(0) if op == "sum" else x.prod(0)
    return part.max(0) if op == "max" else part.min(0)


def check(x, indptr, op, offsets=None):
    out = segment_reduce(x, indptr.to(x.device) if offsets is None else offsets, op)
    counts = op in ("sum", "prod") and not x.dtype.is_floating_point
    assert out.dtype == (torch.int64 if counts else x.dtype)
    assert out.shape == (len(indptr) - 1, *x.shape[1:])
    got, values = numpy_of(out.cpu()), numpy_of(x.cpu())
    for s, (begin, end) in enumerate(pairwise(indptr.tolist())):
        want = reference(values[begin:end], op, x.dtype)
        if not x.dtype.is_floating_point:
            assert np.array_equal(got[s], want), (op, s)
            continue
        eps = torch.finfo(x.dtype).eps
        size = np.abs(values[begin:end].astype(np.float64)).sum(0) if op == "sum" else np.abs(want)
        if op == "mean":
            size = np.abs(values[begin:end].astype(np.float64)).mean(0) if end > begin else 0
        steps = 4 + (end - begin if op == "prod" else np.log2(end - begin + 1))
        bound = np.where(np.isfinite(want), 2 * eps * np.asarray(size), 0)
        bound = bound + steps * torch.finfo(torch.float64 if x.dtype == torch.float64 else
                                            torch.float32).eps * np.asarray(size)  # fmt: skip
        most = torch.finfo(x.dtype).max
        over = np.abs(want) > most
        fine = (got[s] == want) | (np.isnan(got[s]) & np.isnan(want)) | over
        with np.errstate(invalid="ignore"):
            fine |= np.abs(got[s] - want) <= bound + 1e-7 * (op == "logsumexp")
        assert np.all(fine), (op, s, got[s], want)


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


def tree(x, op="sum"):
    """The tree of a flat float32 segment, as docs/reduce_ladder.md defines it, in NumPy float32."""
    x = np.asarray(x, dtype=np.float32)
    chunks = []
    for at in range(0, len(x), 4096):
        part = np.pad(x[at : at + 4096], (0, -len(x[at : at + 4096]) % 128)).reshape(-1, 32, 4)
        acc = np.zeros((32, 4), np.float32)
        for row in part:
            acc = acc + row
        acc = acc[:, :2] + acc[:, 2:]
        acc = (acc[:, :1] + acc[:, 1:])[:, 0]
        for half in (16, 8, 4, 2, 1):
            acc = acc[:half] + acc[half : 2 * half]
        chunks.append(acc[0])
    groups = []
    for at in range(0, len(chunks), 8):
        v = np.array(chunks[at : at + 8] + [0] * (8 - len(chunks[at : at + 8])), np.float32)
        while len(v) > 1:
            v = v[::2] + v[1::2]
        groups.append(v[0])
    acc = np.zeros(256, np.float32)
    for g, value in enumerate(groups):
        acc[g % 256] += value
    for half in (128, 64, 32, 16, 8, 4, 2, 1):
        acc = acc[:half] + acc[half : 2 * half]
    return acc[0]


def tree_of_rows(x):
    """The tree of rows: pieces of 64, eight lanes."""
    values = [np.asarray(row, np.float32) for row in x]
    while True:
        pieces = []
        for at in range(0, len(values), 64):
            lanes = [np.zeros_like(values[0]) for _ in range(8)]
            for i, row in enumerate(values[at : at + 64]):
                lanes[i % 8] = lanes[i % 8] + row
            while len(lanes) > 1:
                half = len(lanes) // 2
                lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
            pieces.append(lanes[0])
        values = pieces
        if len(values) == 1:
            return values[0]


class TestBits:
    @pytest.mark.parametrize("length", [1, 5, 10, 32, 33, 127, 128, 129, 1000, 4096, 4097, 40_000, 300_001])
    def test_written_tree(self, device, length):
        x = np.random.default_rng(length).normal(size=length).astype(np.float32)
        out = segment_reduce(torch.from_numpy(x).to(device), torch.tensor([0, length], device=device))
        assert out.item() == tree(x)
        mean = segment_reduce(
            torch.from_numpy(x).to(device), torch.tensor([0, length], device=device), "mean"
        )
        assert mean.item() == tree(x) / np.float32(length)

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    @pytest.mark.parametrize("op", ["sum", "mean", "prod", "max", "min"])
    def test_bits_of_reduce(self, device, dtype, op):
        for length in (1, 9, 16, 17, 32, 33, 129, 300, 1000, 4096, 4097, 40_000, 300_001):
            x = draw((length + 1,), dtype, length, op == "prod").to(device)[1:]
            out = segment_reduce(x, torch.tensor([0, length], device=device), op)
            assert torch.equal(out[0], reduce(x, op)), length

    @pytest.mark.parametrize("length", [1, 7, 64, 65, 256, 257, 4096, 5000, 20_000])
    def test_written_tree_of_rows(self, device, length):
        x = np.random.default_rng(length).normal(size=(length, 4)).astype(np.float32)
        for columns in (3, 4):
            values = torch.from_numpy(x[:, :columns].copy()).to(device)
            out = segment_reduce(values, torch.tensor([0, length], device=device))
            assert np.array_equal(out.cpu().numpy()[0], tree_of_rows(x)[:columns])

    @pytest.mark.parametrize("op", OPS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
    @pytest.mark.parametrize("shape", [(), (3,), (4,)])
    def test_place_and_neighbours_change_nothing(self, device, op, dtype, shape):
        for length in (7, 31, 33, 500, 1100, 5000, 50_000):
            part = draw((length, *shape), dtype, length, op == "prod").to(device)
            alone = segment_reduce(part, torch.tensor([0, length], device=device), op)
            for before, after in (
                ([1], []),
                ([3, 0, 2], [4000]),
                ([10] * 3001, [10] * 5000),
                ([100_001], []),
            ):
                indptr = cut([*before, length, *after]).to(device)
                x = torch.zeros((int(indptr[-1]), *shape), dtype=dtype, device=device)
                at = int(indptr[len(before)])
                x[at : at + length] = part
                out = segment_reduce(x, indptr, op)[len(before)]
                assert torch.equal(out, alone[0]), (length, before[:3])

    def test_threads_do_not_matter(self):
        indptr = cut([100_000, 7, 0, 3_000_000, 50, *[30] * 20_000])
        x = torch.randn(int(indptr[-1]))
        threads, results = torch.get_num_threads(), []
        try:
            for count in (1, 2, 7):
                torch.set_num_threads(count)
                results.append((segment_reduce(x, indptr), segment_reduce(x, indptr, "logsumexp")))
        finally:
            torch.set_num_threads(threads)
        for other in results[1:]:
            assert all(map(torch.equal, results[0], other))

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_cuda_has_the_bits_of_the_cpu(self, dtype):
        indptr = cut(
            [3, 0, 150_000, 20, 9000, 700, 0, 1_040_001, 33, 160, 4096, 4097, *[10] * 3000, *range(300)]
        )
        for shape in ((), (4,), (5,)):
            x = draw((int(indptr[-1]), *shape), dtype, 0)
            for op in ("sum", "mean", "max", "min"):
                cpu, cuda = segment_reduce(x, indptr, op), segment_reduce(x.cuda(), indptr.cuda(), op)
                assert torch.equal(cpu.nan_to_num(7), cuda.cpu().nan_to_num(7)), (op, shape)


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
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "GPUPRIMS_CHECK": "1"}, cwd=Path(__file__).parents[1],
        )  # fmt: skip
        words = "indptr must start at 0, not decrease and end at the number of rows (5)"
        assert done.stdout.splitlines() == [
            f"segment_reduce: {words}", f"segment_expand: {words}", "fine", "fine",
        ]  # fmt: skip

    def test_wrapper(self, device):
        x, indptr = torch.rand(5, device=device), torch.tensor([0, 5], device=device)
        with pytest.raises(ValueError, match=r"op must be one of sum, mean, .*, got 'median'"):
            segment_reduce(x, indptr, "median")
        with pytest.raises(
            RuntimeError, match="values must have 5 rows \\(the end of the segments\\), got 4"
        ):
            segment_reduce(x[1:], Segments(indptr))
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
