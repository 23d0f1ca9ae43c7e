"""topk on a GPU, long rows of floats: `part_row`, and what it leaves to `split_row`, beside a stable sort."""

import pytest
import torch
from test_topk_large import data, same, same_for_every_kind

from bench.topk_data import fill
from torch_gpuprims import explain, topk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]
FLOATS = [torch.float32, torch.float16, torch.bfloat16]

#: (rows, n, k) of part_row: many parts, two that are ranked without a bound, a block a row.
PARTS = [
    (1, 1_000_000, 20), (1, 1_000_008, 1), (1, 10_000_000, 24), (2, 3_000_000, 40), (64, 250_000, 100),
    (9, 1_000_000, 192), (100, 50_000, 64), (131, 40_000, 96), (132, 300_000, 150), (1, 5_000_000, 5),
    (40, 262_144, 10), (60, 200_000, 110), (20, 250_000, 160),
]  # fmt: skip
#: k too large, or rows that are no whole vectors.
LEFT = [(1, 10_000_000, 96), (64, 131_072, 2048), (1, 1_000_003, 50), (3, 500_000, 1000)]


@pytest.mark.parametrize("rows, n, k", PARTS + LEFT)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_parts_match_a_stable_sort(rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    if (rows, n, k) in PARTS:
        assert "part_row" in explain("topk", torch.empty(rows, n, dtype=dtype, device="cuda"), k)
    if rows * n > 2e7:
        for kind in ("normal", "few"):
            same(data(kind, rows, n, dtype), k, True)
        return
    same_for_every_kind(rows, n, k, dtype)
    same(data("normal", rows, n, dtype), k, False)
    if n % 8 == 0:
        # All the best in one group of threads: they are more than there is room for.
        x = data("normal", rows, n, dtype)
        x.view(rows, -1, 16 // x.element_size())[:, 3::128] += 1000
        same(x, k, True)
        same(data("normal", rows, n + 8, dtype)[:, 8:], k, True)  # rows apart


@pytest.mark.parametrize("kind", ["sorted", "reversed", "narrow", "outliers", "hidden", "shown"])
@pytest.mark.parametrize("rows, n, k", [(1, 3_000_000, 20), (64, 200_000, 100), (20, 200_000, 500)])
def test_parts_of_odd_data(rows: int, n: int, k: int, kind: str) -> None:
    for dtype in FLOATS:
        x = torch.empty(rows, n, device="cuda", dtype=dtype)
        fill(x, kind)
        same(x, k, True)


def test_tickets_are_a_streams_own_and_a_graphs_own() -> None:
    x = torch.randn(1, 2_000_000, device="cuda")
    want = torch.sort(x, descending=True, stable=True).indices[:, :20]
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = []
    torch.cuda.synchronize()
    for _ in range(10):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(topk(x, 20).indices)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = topk(x, 20)
    torch.cuda.synchronize()
    assert all(torch.equal(result, want) for result in results)
    for _ in range(4):
        x.normal_()
        graph.replay()
        topk(x, 20)
        assert torch.equal(out.indices, torch.sort(x, descending=True, stable=True).indices[:, :20])
