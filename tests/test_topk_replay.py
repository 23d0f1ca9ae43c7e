"""CUDA graphs of topk, replayed with data of other kinds: buffers that overflow and samples that mislead are
dealt with on the device, so a graph that was captured with tame data is right on any."""

import pytest
import torch

from bench.topk_data import DISTRIBUTIONS, fill
from torch_gpuprims import topk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

#: (rows, n, k, dtype): several blocks a row, a block, a warp, lanes, threads; radix.
CASES = [
    (1, 1_000_000, 20, torch.float32), (3, 300_000, 2048, torch.float32), (64, 20_000, 100, torch.float32),
    (300, 32_768, 64, torch.bfloat16), (4096, 4096, 32, torch.float32), (16_384, 256, 8, torch.float32),
    (20_000, 100, 5, torch.float16), (1, 300_000, 5000, torch.float32),
]  # fmt: skip


@pytest.mark.parametrize("rows, n, k, dtype", CASES, ids=str)
def test_replays_of_any_data(rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    x = torch.empty(rows, n, dtype=dtype, device="cuda")
    fill(x, "normal")
    topk(x, k)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, indices = topk(x, k)
    for kind in (*DISTRIBUTIONS, "normal"):
        fill(x, kind)
        graph.replay()
        key = torch.where(x.isnan(), torch.inf, x.float()) + 0.0  # one zero, NaN above all
        want = torch.sort(key, dim=-1, descending=True, stable=True).indices[:, :k]
        assert torch.equal(indices, want), kind
        assert torch.equal(values.view(torch.uint8), x.gather(-1, want).view(torch.uint8)), kind
