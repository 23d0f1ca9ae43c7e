"""Candidates of topk (csrc/topk/trial.h) on a GPU, each switched on, beside a stable sort. Goes with them."""

import ctypes
from collections.abc import Iterator

import pytest
import torch
from test_topk_large import data, same, same_for_every_kind

import torch_gpuprims
from bench.topk_data import fill
from torch_gpuprims import topk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]
FEW, MANY, EARLY = 1, 2, 4
FLOATS = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def trial(request: pytest.FixtureRequest) -> Iterator[None]:
    library = ctypes.CDLL(torch_gpuprims._native.loaded["_C_cuda.so"]["file"])
    library.gpuprims_topk_trial(FEW | MANY | EARLY)
    yield
    library.gpuprims_topk_trial(0)


#: part_row with parts, a block a row, many rows; split_row with early tiles (k or rows that part_row leaves).
SHAPES = [
    (1, 1_000_000, 20), (1, 1_000_008, 1), (1, 10_000_000, 24), (2, 3_000_000, 40), (64, 250_000, 100),
    (9, 1_000_000, 192), (100, 50_000, 64), (131, 40_000, 96), (132, 300_000, 150),
    (300, 32_768, 64), (1024, 16_384, 96), (1500, 8192, 1), (1, 10_000_000, 96), (64, 131_072, 2048),
    (1, 1_000_003, 50), (3, 500_000, 1000),
]  # fmt: skip


@pytest.mark.parametrize("rows, n, k", SHAPES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_candidates_match_a_stable_sort(rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    if rows * n > 2e7:
        for kind in ("normal", "few"):
            same(data(kind, rows, n, dtype), k, True)
        return
    same_for_every_kind(rows, n, k, dtype)
    same(data("normal", rows, n, dtype), k, False)
    if n % 8 == 0:
        x = data(
            "normal", rows, n, dtype
        )  # all the best in one group of threads: more than there is room for
        x.view(rows, -1, 16 // x.element_size())[:, 3::128] += 1000
        same(x, k, True)
        same(data("normal", rows, n + 8, dtype)[:, 8:], k, True)  # rows apart


@pytest.mark.parametrize("kind", ["sorted", "reversed", "narrow", "outliers", "hidden", "shown"])
@pytest.mark.parametrize("rows, n, k", [(1, 3_000_000, 20), (300, 32_768, 64), (20, 200_000, 500)])
def test_candidates_on_odd_data(rows: int, n: int, k: int, kind: str) -> None:
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
