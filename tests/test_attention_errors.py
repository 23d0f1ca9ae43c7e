"""Raw attention ops with offsets that are none: filled outputs, a live context, an error if asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_aggregate_errors import HOSTILE, N

from torch_gpuprims import Graph, neighbor_attention

raw = torch.ops.gpuprims


def all_nan(*results: torch.Tensor) -> bool:
    return all(bool(t.isnan().all()) and t.numel() > 0 for t in results)


def hostile(name: str, index_dtype: torch.dtype, device: str) -> torch.Tensor:
    values = torch.tensor(HOSTILE[name])
    if index_dtype == torch.int32:
        values = values.clamp(-(2**31), 2**31 - 1)
    return values.to(device, index_dtype)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_hostile_offsets_fill_the_outputs(name, index_dtype, device):
    bad = hostile(name, index_dtype, device)
    rows = len(bad) - 1
    nodes = torch.zeros(N, dtype=index_dtype, device=device)
    ids = torch.arange(N, device=device, dtype=index_dtype)
    transpose = torch.tensor([0, N - 2, N - 1, N], device=device, dtype=index_dtype), nodes, ids
    x, a_src, att = (torch.rand(shape, device=device) for shape in ((3, 2, 5), (3, 2), (2, 5)))
    x_dst, a_dst = torch.rand(rows, 2, 5, device=device), torch.rand(rows, 2, device=device)
    edge = torch.rand(N, 2, device=device)
    terms = (x, a_src, a_dst, edge, None, bad, nodes)
    out, lse, positive = raw.neighbor_attention(*terms, want_positive=True)
    assert all_nan(out, lse, positive)
    for kept in (None, positive):
        grads = raw.neighbor_attention_grad(
            x_dst, None, out, lse, *terms, None, *transpose, positive=kept
        )  # fmt: skip
        assert all_nan(*grads)
    assert all_nan(raw.edge_softmax(edge, bad), raw.edge_softmax_grad(edge, edge, bad))
    assert all_nan(raw.gatv2_score(x, x_dst, att, None, bad, nodes))
    # The gradient in x_src is gathered through the transpose, which is good: a GPU does not look at indptr.
    assert all_nan(*raw.gatv2_score_grad(edge, x, x_dst, att, None, bad, nodes, None, *transpose)[1:])
    graph = Graph.from_coo(torch.tensor([[0, 1, 2], [1, 2, 0]], device=device))
    assert neighbor_attention(x, graph, a_src).isfinite().all()  # the context lives


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_offsets_of_the_transpose_fill_the_gradients(name, device):
    bad = hostile(name, torch.int64, device)
    sources = len(bad) - 1
    nodes, ids = torch.zeros(N, dtype=torch.int64, device=device), torch.arange(N, device=device)
    csr = torch.tensor([0, N - 2, N], device=device), nodes, None
    x, a_src = torch.rand(sources, 2, 5, device=device), torch.rand(sources, 2, device=device)
    x_dst, a_dst = torch.rand(2, 2, 5, device=device), torch.rand(2, 2, device=device)
    edge, att = torch.rand(N, 2, device=device), torch.rand(2, 5, device=device)
    terms = (x, a_src, a_dst, edge, None, *csr)
    out, lse, _ = raw.neighbor_attention(*terms)
    assert out.isfinite().all()
    assert all_nan(*raw.neighbor_attention_grad(x_dst, None, out, lse, *terms, bad, nodes, ids)[:2])
    assert all_nan(raw.gatv2_score_grad(edge, x, x_dst, att, None, *csr, bad, nodes, ids)[0])
    assert torch.rand(3, device=device).isfinite().all()  # the context lives


CHECKED = """
import torch, torch_gpuprims
raw = torch.ops.gpuprims
x, a, e = (torch.rand(s, device="{device}") for s in ((3, 1, 4), (3, 1), (3, 1)))
bad, nodes = torch.tensor([0, 2, 1, 3], device="{device}"), torch.tensor([0, 1, 2], device="{device}")
for call in (
    lambda: raw.neighbor_attention(x, a, None, None, None, bad, nodes),
    lambda: raw.edge_softmax(e, bad),
    lambda: raw.gatv2_score(x, x, x[0], None, bad, nodes),
    lambda: raw.neighbor_attention(x, a, None, None, None, torch.arange(4, device="{device}"), nodes),
):
    try:
        call()
        print("fine")
    except RuntimeError as error:
        print(error)
"""


def test_check_variable_raises(device):
    done = subprocess.run(
        [sys.executable, "-c", CHECKED.format(device=device)], capture_output=True, text=True, check=True,
        env={**os.environ, "GPUPRIMS_CHECK": "1"}, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    words = "indptr must start at 0, not decrease and end at the number of edges (3)"
    ops = ("neighbor_attention", "edge_softmax", "gatv2_score")
    assert done.stdout.splitlines() == [*(f"{op}: {words}" for op in ops), "fine"]
