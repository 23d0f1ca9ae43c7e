"""segment_topk against topk of each segment, bit for bit; bad offsets; what is beyond the table."""

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
from topk_reference import DISTRIBUTIONS, DTYPES, bits, fill_value, random_input, reference
from torch._dynamo.testing import CompileCounterWithBackend

import torch_gpuprims
from torch_gpuprims import Segments, segment_topk
from torch_gpuprims.nn import SegmentTopK


def expected(x, indptr, k, largest=True, counts=None):
    """By the reference of topk, a segment at a time."""
    x, ends = x.cpu(), indptr.tolist()
    values = torch.empty(len(ends) - 1, k, dtype=x.dtype)
    values[:] = fill_value(x.dtype, largest)
    indices = torch.full((len(ends) - 1, k), -1)
    for s, (begin, end) in enumerate(pairwise(ends)):
        wanted = min(k, end - begin, k if counts is None else int(counts[s]))
        if wanted:
            best, at = reference(x[begin:end], wanted, 0, largest, None)
            bits_of = bits(values[s])
            bits_of[:wanted] = bits(best)
            indices[s, :wanted] = at + begin
    return values, indices


def check(x, indptr, k, largest=True, counts=None, index_dtype=torch.int64, as_segments=False):
    device = x.device
    offsets = indptr.to(device)
    how_many = k if counts is None else counts.to(device)
    result = segment_topk(
        x, Segments(offsets) if as_segments else offsets, how_many,
        max_k=None if counts is None else k, largest=largest, index_dtype=index_dtype,
    )  # fmt: skip
    values, indices = expected(x, indptr, k, largest, counts)
    assert isinstance(result, torch_gpuprims.TopK) and result.indices.dtype == index_dtype
    assert torch.equal(result.indices.cpu().long(), indices)
    assert torch.equal(bits(result.values), bits(values))


def cut(lengths):
    return torch.tensor([0, *np.cumsum(lengths, dtype=np.int64).tolist()])


LENGTHS = st.lists(
    st.sampled_from([0, 0, 1, 2, 3, 9, 31, 32, 33, 64, 100, 128, 160, 161, 513, 700]), max_size=30
)


@st.composite
def problems(draw):
    return {
        "lengths": draw(LENGTHS),
        "k": draw(st.sampled_from([0, 1, 2, 5, 23, 24, 40, 800])),
        "dtype": draw(st.sampled_from(DTYPES)),
        "largest": draw(st.booleans()),
        "ties": draw(st.booleans()),
        "counted": draw(st.booleans()),
        "stepped": draw(st.booleans()),
        "as_segments": draw(st.booleans()),
        "index_dtype": draw(st.sampled_from([torch.int64, torch.int32])),
        "offset_dtype": draw(st.sampled_from([torch.int64, torch.int32])),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


class TestValues:
    @given(problem=problems())
    def test_any_segments(self, device, problem):
        generator = np.random.default_rng(problem["seed"])
        indptr = cut(problem["lengths"])
        n, k = int(indptr[-1]), problem["k"]
        x = random_input((n + 1,), problem["dtype"], generator, problem["ties"]).to(device)[1:]
        if problem["stepped"]:
            x = torch.stack([x, x], 1)[:, 0]
        counts = (
            torch.from_numpy(generator.integers(0, k + 3, len(indptr) - 1)) if problem["counted"] else None
        )
        check(
            x, indptr.to(problem["offset_dtype"]), k, problem["largest"], counts, problem["index_dtype"],
            problem["as_segments"],
        )  # fmt: skip

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_every_path_of_every_dtype(self, device, dtype):
        generator = np.random.default_rng(0)
        indptr = cut([3, 0, 150_000, 20, 9000, 700, 0, 70_001, 33, 160, 5, 0])
        for ties in (False, True):
            x = random_input((int(indptr[-1]),), dtype, generator, ties).to(device)
            for k in (1, 20, 100, 1500):
                check(x, indptr, k, largest=k != 20)

    @pytest.mark.parametrize("kind", DISTRIBUTIONS)
    def test_distributions(self, device, kind):
        indptr = cut([200_000, 0, 10, 3000, 40_000, 500])
        x = DISTRIBUTIONS[kind]((1, int(indptr[-1])))[0].to(device)
        for k in (1, 8, 97, 2048):
            check(x, indptr, k, largest=k != 8)

    def test_k_beyond_4096(self, device):
        indptr = cut([5, 12_000, 0, 4096, 4097, 300_000, 8192])
        x = torch.randn(int(indptr[-1])).mul(100).round().to(device)
        check(x, indptr, 9000)
        counts = torch.tensor([9, 12_000, 1, 5000, 4097, 8999, 8193])
        check(x, indptr, 9000, False, counts)

    @pytest.mark.parametrize("n, k", [(600, 5000), (5000, 8192), (5000, 10_000), (20_000, 30_000)])
    def test_k_beyond_the_elements(self, device, n, k):
        x = torch.randn(n + 3).mul(100).round().to(device)
        check(x, cut([n, 0, 3]), k)
        check(x, cut([3, n]), k, False)

    def test_millions_of_empty_segments_and_a_long_one(self, device):
        lengths = torch.zeros(2_000_003, dtype=torch.int64)
        lengths[[5, 1_000_000, -1]] = torch.tensor([3, 400_000, 40])
        indptr = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(device)
        x = torch.randn(int(lengths.sum()), device=device)
        values, indices = segment_topk(x, indptr, 2)
        full = lengths.to(device) > 0
        assert (indices[~full] == -1).all() and values[~full].eq(-torch.inf).all()
        for s in full.nonzero()[:, 0].tolist():
            begin, end = int(indptr[s]), int(indptr[s + 1])
            best = torch.topk(x[begin:end], 2)
            assert torch.equal(values[s], best.values) and torch.equal(indices[s], best.indices + begin)

    def test_segments_of_ten(self, device):
        x = torch.randint(0, 6, (200_000,), device=device).float()
        values, indices = segment_topk(x, torch.arange(0, 200_001, 10, device=device), 4)
        order = torch.sort(x.view(-1, 10), descending=True, stable=True)
        assert torch.equal(values, order.values[:, :4])
        shift = torch.arange(0, 200_000, 10, device=device)[:, None]
        assert torch.equal(indices, order.indices[:, :4] + shift)

    def test_threads_do_not_matter(self):
        indptr = cut([100_000, 7, 0, 3_000_000, 50, *[30] * 20_000])
        x = torch.randint(0, 1000, (int(indptr[-1]),))
        threads, results = torch.get_num_threads(), []
        try:
            for count in (1, 2, 7):
                torch.set_num_threads(count)
                results.append(segment_topk(x, indptr, 12).indices)
        finally:
            torch.set_num_threads(threads)
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
        best = torch.sort(x[100_007:3_100_007], descending=True, stable=True).indices[:12]
        assert torch.equal(results[0][3], best + 100_007)


N = 4000

HOSTILE = {
    "alternating": [0, N] * 50 + [0],
    "alternating to the end": [0, N] * 50,
    "negative": [0, -5, 10, N],
    "huge": [0, 2**62, -(2**62), N],
    "start": [1, 5, N],
    "short": [0, 5, N - 1],
    "long": [0, 5, N + 1],
}


class TestBadData:
    @pytest.mark.parametrize("name", HOSTILE)
    @pytest.mark.parametrize("offset_dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize("n", [N, 200_000])
    def test_outputs_are_filled(self, name, offset_dtype, n, device):
        ends = torch.tensor(HOSTILE[name])
        ends = torch.where(ends.abs() < 2**31, ends * (n // N), ends) + (ends == N + 1)
        if offset_dtype == torch.int32:
            ends = ends.clamp(-(2**31), 2**31 - 1)
        indptr = ends.to(device, offset_dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
            for k in (3, 50):
                values, indices = segment_topk(torch.ones(n, dtype=dtype, device=device), indptr, k)
                assert (indices == -1).all()
                assert values.isnan().all() if dtype.is_floating_point else (values == 0).all()
        good = segment_topk(torch.ones(3, device=device), torch.tensor([0, 3], device=device), 1)
        assert good.indices.tolist() == [[0]]  # the context lives

    def test_negative_count(self, device):
        indptr = torch.tensor([0, 2, 4], device=device)
        values, indices = segment_topk(
            torch.rand(4, device=device), Segments(indptr), torch.tensor([1, -1], device=device), max_k=2
        )
        assert values.isnan().all() and (indices == -1).all()

    def test_check_variable_raises(self, device):
        code = f"""
import torch, torch_gpuprims


x = torch.rand(5, device="{device}")
for indptr, k in (([0, 3, 2, 5], 1), ([0, 3, 5], [1, -2]), ([0, 3, 5], [9, 0])):
    k = torch.tensor(k, device="{device}") if isinstance(k, list) else k
    try:
        torch_gpuprims.segment_topk(
            x, torch.tensor(indptr, device="{device}"), k, max_k=None if isinstance(k, int) else 2)
        print("fine")
    except RuntimeError as error:
        print(error)
for indptr in ([0], [0, 3, 2, 5], [0, 5]):  # where nothing is to be selected
    for k, n in ((1, 5), (0, 5), (1, 0)):
        if k == 0 or len(indptr) == 1:
            try:
                torch_gpuprims.segment_topk(x[:n], torch.tensor(indptr, device="{device}"), k)
                print("fine")
            except RuntimeError as error:
                print("bad" if "indptr must start at 0" in str(error) else error)
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "GPUPRIMS_CHECK": "1"}, cwd=Path(__file__).parents[1],
        )  # fmt: skip
        assert done.stdout.splitlines() == [
            "segment_topk: indptr must start at 0, not decrease and end at the number of values (5)",
            "segment_topk: k must not be negative in any segment",
            "fine",
            *("bad", "bad", "fine"),
            *("bad", "fine"),
        ]

    def test_wrapper(self, device):
        x, indptr = torch.rand(5, device=device), torch.tensor([0, 5], device=device)
        counts = torch.tensor([1], device=device)
        with pytest.raises(ValueError, match="max_k, the width of the result, must be given where k is"):
            segment_topk(x, indptr, counts)
        with pytest.raises(ValueError, match="max_k goes with a tensor k"):
            segment_topk(x, indptr, 2, max_k=2)
        with pytest.raises(
            RuntimeError, match="values must have 5 elements \\(the end of the segments\\), got 4"
        ):
            segment_topk(x[1:], Segments(indptr), 2)
        with pytest.raises(RuntimeError, match="index_dtype must be int64 or int32"):
            segment_topk(x, indptr, 2, index_dtype=torch.int16)
        for words, call in {
            "values must be a dense tensor, got a sparse layout": lambda: segment_topk(
                x.to_sparse(), indptr, 2
            ),
            "indptr must be a dense tensor, got a sparse layout": lambda: segment_topk(
                x, indptr.to_sparse(), 2
            ),
            "k must be a dense tensor, got a sparse layout": lambda: segment_topk(
                x, indptr, counts.to_sparse(), max_k=2
            ),
            "indptr must be on the device of values": lambda: segment_topk(x, indptr.to("meta"), 2),
            "k must be on the device of values": lambda: segment_topk(x, indptr, counts.to("meta"), max_k=2),
            "out of memory allocating 1 * 4611686018427387904 slots": lambda: segment_topk(x, indptr, 2**62),
            "k must not be negative, got -2": lambda: segment_topk(x, indptr, -2),
            "index_dtype int32 holds no index of 2147483648 values": lambda: segment_topk(
                x[:1].expand(2**31), indptr, 2, index_dtype=torch.int32
            ),
        }.items():
            with pytest.raises(RuntimeError) as error:
                call()
            assert str(error.value) == f"segment_topk: {words}"

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
    def test_devices(self):
        with pytest.raises(RuntimeError, match="segment_topk: indptr must be on the device of values"):
            segment_topk(torch.rand(5, device="cuda"), torch.tensor([0, 5]), 2)


class TestTransforms:
    def test_compile_once(self, device):
        module, counter = SegmentTopK(3), CompileCounterWithBackend("aot_eager")
        torch._dynamo.reset()
        compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
        for n, segments in ((50, 4), (70, 9), (33, 5)):
            x = torch.randn(n, device=device)
            indptr = torch.linspace(0, n, segments + 1).long().to(device)
            assert all(map(torch.equal, compiled(x, indptr), module(x, indptr)))
        assert counter.frame_count == 1

    def test_vmap_over_offsets_and_counts(self, device):
        x = torch.randn(3, 20, device=device)
        indptr = torch.tensor([[0, 4, 4, 20], [0, 0, 19, 20], [0, 10, 15, 20]], device=device)
        counts = torch.tensor([[1, 0, 2], [5, 2, 1], [0, 0, 0]], device=device)

        def run(t, at, k):
            return tuple(segment_topk(t, at, k, max_k=2))

        loop = [torch.stack(out) for out in zip(*map(run, x, indptr, counts), strict=True)]
        assert all(map(torch.equal, torch.vmap(run)(x, indptr, counts), loop))
        loop = [torch.stack(out) for out in zip(*(run(t, indptr[0], counts[0]) for t in x), strict=True)]
        shared = torch.vmap(run, in_dims=(0, None, None))(x, indptr[0], counts[0])
        assert all(map(torch.equal, shared, loop))
        bad = torch.vmap(run, in_dims=(0, None, None))(x, indptr[0] - 1, counts[0])
        assert bad[0].isnan().all() and (bad[1] == -1).all()

    def test_gradient_of_missing_slots_is_dropped(self, device):
        x = torch.tensor([3.0, 9.0, 4.0, 7.0], device=device, requires_grad=True)
        values, indices = segment_topk(x, torch.tensor([0, 3, 3, 4], device=device), 2)
        assert values.requires_grad and not indices.requires_grad
        values.backward(torch.arange(1.0, 7.0, device=device).view(3, 2))
        assert x.grad.tolist() == [0, 1, 2, 5]

    def test_module_and_docstrings(self, device):
        module = SegmentTopK(2, largest=False, index_dtype=torch.int32)
        assert repr(module) == "SegmentTopK(k=2, largest=False, index_dtype=torch.int32)"
        x, indptr = torch.rand(9, device=device), torch.tensor([0, 4, 9], device=device)
        assert torch.equal(module(x, indptr).values, segment_topk(x, indptr, 2, largest=False).values)
        counts = torch.tensor([1, 3], device=device)
        module = SegmentTopK(counts.cpu(), max_k=4).to(device)
        assert repr(module) == "SegmentTopK(k=tensor of [2], largest=True, index_dtype=torch.int64, max_k=4)"
        ours, want = module(x, indptr), segment_topk(x, indptr, counts, max_k=4)
        assert all(map(torch.equal, ours, want)) and not module.state_dict()
        for part in (segment_topk.__module__, Segments.__module__, SegmentTopK.__module__):
            assert doctest.testmod(sys.modules[part], extraglobs={"torch": torch}).failed == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_workspace_is_small():
    for n, k, dtype in ((50_000_000, 20, torch.float32), (50_000_000, 4096, torch.float16)):
        x = torch.randn(n, device="cuda", dtype=dtype)
        indptr = torch.tensor([0, n // 3, n // 3, n], device="cuda")
        segment_topk(x, indptr, k)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = segment_topk(x, indptr, k)
        kept = result.values.nbytes + result.indices.nbytes
        assert torch.cuda.max_memory_allocated() - before - kept <= 0.05 * x.nbytes + (16 << 20)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_replays_follow_new_offsets():
    """What a captured call does is decided by the offsets of each replay."""
    n = 300_000
    x = torch.randn(n, device="cuda")
    indptr = torch.tensor([0, 10, 20, n], device="cuda")
    segment_topk(x, indptr, 30)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, indices = segment_topk(x, indptr, 30)
    for ends in ([0, 0, n, n], [0, 200_000, 200_500, n], [0, 5, 4, n], [0, 32, 64, n]):
        x.normal_()
        indptr.copy_(torch.tensor(ends))
        graph.replay()
        again = segment_topk(x, indptr.clone(), 30)
        assert torch.equal(indices, again.indices)
        assert torch.equal(values.nan_to_num(), again.values.nan_to_num())
