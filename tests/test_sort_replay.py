"""CUDA graphs of the sorts, replayed with other kinds of data: what is skipped, copied, packed, mended or
sorted anew is decided on the device, and so differs between the replays of one graph."""

from itertools import pairwise

import pytest
import torch

from bench.sort_data import DISTRIBUTIONS, make
from torch_gpuprims import argsort, segment_sort, sort, sort_keys

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

#: A warp and a block a row, passes of one row and of several, codes of several rows and of one.
CASES = [
    ((2000, 300), torch.float32), ((20, 30_000), torch.float32), ((300_001,), torch.float32),
    ((3, 100_003), torch.int64), ((5, 70_000), torch.float16), ((100, 65_536), torch.float32),
    ((8_000_000,), torch.int64),
]  # fmt: skip


def captured(run):
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        return graph, run()


@pytest.mark.parametrize("shape, dtype", CASES, ids=str)
def test_replays_decide_anew(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = make(shape, dtype, "normal", "cuda")
    graph, (pairs, order, keys) = captured(lambda: (sort(x), argsort(x, descending=True), sort_keys(x)))
    for kind in (*DISTRIBUTIONS, "normal"):
        x.copy_(make(shape, dtype, kind, "cuda"))
        graph.replay()
        up, down = (torch.sort(x, stable=True, descending=way) for way in (False, True))
        assert torch.equal(pairs.values, up.values), kind
        assert torch.equal(pairs.indices, up.indices), kind
        assert torch.equal(order, down.indices), kind
        assert torch.equal(keys, up.values), kind


@pytest.mark.parametrize("n", [400_000, 3_000_001])
def test_replays_by_buckets(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPRIMS_SORT_SPREAD", "-1")
    test_replays_decide_anew((n,), torch.float32)


def test_replays_in_place() -> None:
    """Passes of which an even and an odd number is left."""
    x = torch.empty(200_000, dtype=torch.int32, device="cuda")
    x.zero_()
    graph, _ = captured(lambda: sort_keys(x, inplace=True))
    for bits in (1, 8, 9, 17, 25, 31):
        fresh = torch.randint(0, (1 << bits) - 1, x.shape, dtype=torch.int32, device="cuda")
        x.copy_(fresh)
        graph.replay()
        assert torch.equal(x, fresh.sort().values), bits


def test_replays_with_other_segments() -> None:
    n = 300_000
    keys, payload = torch.randn(n, device="cuda"), torch.arange(n, device="cuda")
    indptr = torch.tensor([0, 10, 5000, n], device="cuda")
    graph, got = captured(lambda: segment_sort(keys, indptr, payload))
    for ends in ([0, 0, n, n], [0, 200_000, 200_500, n], [0, 5, 4, n], [0, 32, 1000, n]):
        keys.normal_()
        indptr.copy_(torch.tensor(ends))
        graph.replay()
        if ends[2] < ends[1]:
            assert bool(got.keys.isnan().all()) and bool((got.indices == -1).all())
            assert not bool(got.values.any())
            continue
        for begin, end in pairwise(ends):
            want = torch.sort(keys[begin:end], stable=True)
            assert torch.equal(got.keys[begin:end], want.values)
            assert torch.equal(got.indices[begin:end], want.indices + begin)
        assert torch.equal(got.values, got.indices)
