"""What issue 4 asks of large and mixed input: out of core, memory, rows of 2^31, a million empty segments."""

import itertools
import sys

import numpy as np
import pytest
import torch
from topk_reference import DTYPES, bits, random_input, reference

from torch_gpuprims import segment_sort, sort, sort_keys, sort_out_of_core


@pytest.mark.parametrize("at", [1, 5, 9, 12])
def test_an_interrupted_sort_out_of_core_loses_nothing(at, device, monkeypatch):
    module, calls = sys.modules["torch_gpuprims.sort_out_of_core"], []
    whole = module._sorted

    def interrupted(*args):
        calls.append(args)
        if len(calls) == at:
            raise KeyboardInterrupt
        return whole(*args)

    keys, payload = torch.randn(50_000, generator=torch.Generator().manual_seed(1)), torch.arange(50_000)
    before = keys.clone()
    budget = keys.nbytes * 3 // 8 * 10
    monkeypatch.setattr(module, "_sorted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sort_out_of_core(keys, payload, budget=budget, device=device)
    assert torch.equal(keys, before)
    assert torch.equal(payload, torch.arange(50_000))
    got, order = sort_out_of_core(keys, payload, budget=budget, device=device)  # and nothing stays behind
    assert torch.equal(got, keys[order])
    assert torch.equal(order, keys.sort(stable=True).indices)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_million_empty_segments_and_one_of_1e8():
    lengths = torch.zeros(1_000_400, dtype=torch.int64)
    lengths[500_000] = 100_000_000
    lengths[1_000_000:] = torch.arange(400)
    lengths[7], lengths[900_000] = 5000, 1_000_000
    indptr = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    g = torch.Generator("cuda").manual_seed(2)
    keys = torch.randint(
        -(1 << 20), 1 << 20, (int(indptr[-1]),), device="cuda", dtype=torch.int32, generator=g
    )
    values, indices, _ = segment_sort(keys, indptr.cuda())
    for segment in (7, 500_000, 900_000, 1_000_001, 1_000_032, 1_000_200, 1_000_399):
        begin, end = indptr[segment].item(), indptr[segment + 1].item()
        expected = keys[begin:end].sort(stable=True)
        assert torch.equal(values[begin:end], expected.values), segment
        assert torch.equal(indices[begin:end], expected.indices + begin), segment


class TestOutOfCore:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("ties", [False, True])
    def test_an_eighth_of_the_array(self, device, dtype, descending, ties):
        n = 50_000
        keys = random_input((n,), dtype, np.random.default_rng(5), ties)
        before = bits(keys).clone()
        payload = torch.arange(n)
        budget = n * (dtype.itemsize + 8) // 8
        got, order = sort_out_of_core(keys, payload, budget=budget, descending=descending, device=device)
        values, indices = reference(keys, n, 0, descending, None)
        assert torch.equal(order, indices)
        assert torch.equal(bits(got), bits(values))
        assert torch.equal(bits(keys), before)

    def test_a_last_chunk_of_any_length(self, device):
        budget = 400_000
        chunk = budget // (2 * (2 * 4 + 8 + 8 + 1))
        for more in (1, 2, 7, chunk // 20, chunk // 2, chunk - 1):
            keys = torch.randn(4 * chunk + more)
            got = sort_out_of_core(keys, budget=budget, device=device)[0]
            assert torch.equal(got, keys.sort().values)

    def test_constant_and_tiny(self, device):
        for n in (0, 1, 5, 1000):
            keys = torch.ones(n)
            got, order = sort_out_of_core(keys, torch.arange(n), budget=100_000, device=device)
            assert torch.equal(got, keys) and torch.equal(order, torch.arange(n))

    def test_errors(self, device):
        keys = torch.zeros(100_000)
        with pytest.raises(
            RuntimeError, match=r"budget must be at least \d+ bytes for 100000 elements, got 9"
        ) as e:
            sort_out_of_core(keys, budget=9, device=device)
        with pytest.raises(TypeError, match=r"^sort_out_of_core: budget must be an integer, got 100000\.0$"):
            sort_out_of_core(keys, budget=1e5, device=device)
        need = int(str(e.value).split("at least ")[1].split()[0])
        assert torch.equal(sort_out_of_core(keys, budget=need, device=device)[0], keys)
        for words, call in {
            "keys must have 1 dimension, got 2": lambda: sort_out_of_core(keys[None], budget=1 << 20),
            "payload 0 must have the length of keys (100000), got shape [99999]": (
                lambda: sort_out_of_core(keys, keys[1:], budget=1 << 20)
            ),
            "dtype complex64 is not supported": lambda: sort_out_of_core(keys.to(torch.complex64), budget=9),
            "keys must be a dense tensor, got a sparse layout": (
                lambda: sort_out_of_core(keys.to_sparse(), budget=1 << 20)
            ),
            "payload 1 must be a dense tensor, got a sparse layout": (
                lambda: sort_out_of_core(keys, keys, keys.to_sparse(), budget=1 << 20)
            ),
            "keys and payloads must be on the CPU, got meta": (
                lambda: sort_out_of_core(keys.to("meta"), budget=1 << 20)
            ),
            "device must be a CUDA device or the CPU, got meta": (
                lambda: sort_out_of_core(keys, budget=1 << 20, device="meta")
            ),
        }.items():
            with pytest.raises(RuntimeError) as error:
                call()
            assert str(error.value) == f"sort_out_of_core: {words}"

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
    def test_device_memory_stays_within_the_budget(self, dtype):
        n = 20_000_000
        keys = torch.randint(-(2**31), 2**31 - 1, (n,)).to(dtype)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before, budget = torch.cuda.memory_allocated(), n * (dtype.itemsize + 8) // 8
        got, order = sort_out_of_core(keys, torch.arange(n), budget=budget, device="cuda")
        assert torch.cuda.max_memory_allocated() - before <= budget
        assert torch.equal(got, keys[order]) and bool((got[1:] >= got[:-1]).all())
        assert bool((order[1:] > order[:-1])[got[1:] == got[:-1]].all())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
class TestMemory:
    """Workspace: at most a second buffer of keys and 32-bit indices, and 5 %."""

    @staticmethod
    def peak(run, kept):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before - kept

    def test_pairs(self):
        n = 400_000_000 if torch.cuda.mem_get_info()[0] > 40 << 30 else 20_000_000
        x = torch.randn(n, device="cuda")
        assert self.peak(lambda: sort(x), n * 12) <= n * 8 * 1.05 + (4 << 20)

    def test_keys(self):
        n = 50_000_000
        x = torch.randint(-(2**62), 2**62, (n,), device="cuda")
        assert self.peak(lambda: sort_keys(x), n * 8) <= n * 8 * 1.05 + (4 << 20)
        assert self.peak(lambda: sort(x), n * 16) <= n * 12 * 1.05 + (4 << 20)

    def test_in_place(self):
        n = 50_000_000
        x = torch.randint(-(2**62), 2**62, (n,), device="cuda")
        assert self.peak(lambda: sort_keys(x, inplace=True), 0) <= n * 8 * 1.05 + (4 << 20)
        rows = torch.randn(1000, 10_000, device="cuda")
        assert self.peak(lambda: sort_keys(rows, inplace=True), 0) == 0


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_rows_beyond_2_31_take_all_passes():
    """Keys that differ in every digit."""
    n, part = 2**31 + 1000, 1 << 28
    if torch.cuda.mem_get_info()[0] < n * (4 + 4 + 8 + 8) + 12 * part * 8:
        pytest.skip("too little device memory")
    x = torch.empty(n, dtype=torch.int32, device="cuda")
    for begin in range(0, n, part):  # wraps; the last 1,000 repeat the first
        end = min(begin + part, n)
        x[begin:end] = torch.arange(begin, end, device="cuda").mul_(2 * 2_654_435_761).to(torch.int32)
    for descending in (False, True):
        values, indices = sort(x, descending=descending)
        for begin in range(0, n, part):
            chunk, at = values[begin : begin + part + 1], indices[begin : begin + part + 1]
            assert bool((x[at] == chunk).all())  # one element more than the part: the seam
            low, high = (chunk[1:], chunk[:-1]) if descending else (chunk[:-1], chunk[1:])
            assert bool(((low < high) | ((low == high) & (at[:-1] < at[1:]))).all())
            del chunk, at, low, high
        del indices
        if not descending:
            assert torch.equal(sort_keys(x), values)
        del values


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32], ids=str)
def test_rows_beyond_2_31(dtype):
    n = 2**31 + 1000
    if torch.cuda.mem_get_info()[0] < n * (3 * dtype.itemsize + 26):
        pytest.skip("too little device memory")
    x = torch.arange(n, device="cuda").mul_(40_503).bitwise_and_(255).to(dtype)
    count = torch.bincount(x[: 1 << 20].long(), minlength=256) * 0
    for part in x.split(1 << 28):
        count += torch.bincount(part, minlength=256)
    values, indices = sort(x)
    expected = torch.repeat_interleave(torch.arange(256, device="cuda", dtype=dtype), count)
    assert torch.equal(values, expected)
    assert torch.equal(sort_keys(x), expected)
    del expected
    starts = torch.cat([count.new_zeros(1), count.cumsum(0)]).tolist()
    for begin, end in list(itertools.pairwise(starts))[::51]:
        part = indices[begin:end]
        assert bool((part[1:] > part[:-1]).all())
        assert bool((x[part] == values[begin]).all())
