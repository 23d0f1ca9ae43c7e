"""Sums and means of few features against float64."""

import pytest
import torch
from aggregate_cases import random_csr
from devices import DEVICES

from torch_gpuprims import Graph, neighbor_aggregate

DEGREES = [0, 3, 70, 1, 0, 1500, 31, 64, 63, 0, 200, 5, 1024, 1023, *range(60)]


def make_graph(device, sources=50, degrees=DEGREES):
    indptr, indices = random_csr(degrees, sources, torch.Generator().manual_seed(1))
    dense = torch.zeros(len(degrees), sources, dtype=torch.float64)
    rows = torch.arange(len(degrees)).repeat_interleave(indptr.diff())
    dense.index_put_((rows, indices), torch.ones(len(rows), dtype=torch.float64), accumulate=True)
    graph = Graph.from_csr(indptr, indices.int(), num_src=sources).to(device)
    return graph, dense.to(device), indptr.diff().to(device)


def close(out, expected, magnitude):
    bound = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-12}
    assert ((out.double() - expected).abs() <= bound[out.dtype] * magnitude + 1e-30).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("features", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_few_features(device, dtype, features, reduce):
    for degrees in (DEGREES, [2000, 0, 1, 4000], [0, 0], [1] * 5000, [30] * 3000):
        graph, dense, degree = make_graph(device, degrees=degrees)
        x = torch.rand(50, features).to(device, dtype)
        expected = dense @ x.double() / (1 if reduce == "sum" else degree.clamp(min=1)[:, None])
        out = neighbor_aggregate(x, graph, reduce=reduce)
        close(out, expected, expected)
        ordered = graph.reorder(order=torch.randperm(len(dense)).to(device))
        assert torch.equal(neighbor_aggregate(x, ordered, reduce=reduce), out)
        wide = torch.cat([x, x], 1)[:, :features]
        assert torch.equal(neighbor_aggregate(wide, graph, reduce=reduce), out)
