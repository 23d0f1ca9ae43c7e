"""NeighborAggregation and GCNConv against dense formulas."""

import pytest
import torch
from aggregate_cases import random_graph

from torch_gpuprims import Graph, neighbor_aggregate
from torch_gpuprims.nn import GCNConv, NeighborAggregation


def test_neighbor_aggregation_module(device):
    graph, x = random_graph(6, 25, device), torch.rand(6, 3, device=device)
    module = NeighborAggregation("mean")
    assert torch.equal(module(x, graph), neighbor_aggregate(x, graph, reduce="mean"))
    assert repr(module) == "NeighborAggregation(reduce='mean')"


def dense_gcn(layer, x, ends, weight, nodes):
    matrix = torch.zeros(nodes, nodes, dtype=x.dtype, device=x.device)
    matrix = matrix.index_put((ends[1], ends[0]), weight, accumulate=True)
    if layer.add_self_loops:
        fill = 2.0 if layer.improved else 1.0
        missing = torch.ones(nodes, dtype=x.dtype, device=x.device)
        missing[ends[0][ends[0] == ends[1]]] = 0
        matrix = matrix + fill * missing.diag()
    degree = matrix.sum(1)
    scale = torch.where(degree > 0, degree.clamp(min=1e-30) ** -0.5, 0.0)
    return scale[:, None] * matrix * scale @ (x @ layer.lin.weight.t()) + layer.bias


@pytest.mark.parametrize("options", [{}, {"improved": True}, {"add_self_loops": False}])
def test_gcn_conv_against_the_formula(options, device):
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(9, (2, 30), generator=generator)
    keep = (ends[0] != ends[1]) | (torch.arange(30) == (ends[0] == ends[1]).nonzero()[0])  # one loop
    ends = ends[:, keep].to(device)
    x = torch.randn(9, 5, generator=generator, dtype=torch.float64).to(device).requires_grad_()
    weight = (torch.rand(ends.shape[1], generator=generator, dtype=torch.float64) + 0.1).to(device)
    layer = GCNConv(5, 4, **options).double().to(device)
    torch.nn.init.normal_(layer.bias)
    graph = Graph.from_coo(ends, 9)
    for w in (None, weight.requires_grad_()):
        expected = dense_gcn(layer, x, ends, torch.ones_like(weight) if w is None else w, 9)
        wanted = [x, *layer.parameters(), *([] if w is None else [w])]
        theirs = torch.autograd.grad(expected.sin().sum(), wanted)
        for given_graph in (graph, ends):
            out = layer(x, given_graph, w)
            torch.testing.assert_close(out, expected)
            for a, b in zip(torch.autograd.grad(out.sin().sum(), wanted), theirs, strict=True):
                torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_gcn_conv_sparse_features(device):
    graph, layer = random_graph(9, 30, device), GCNConv(5, 4).to(device)
    x = torch.rand(9, 5, device=device) * (torch.rand(9, 5, device=device) > 0.5)
    expected = torch.autograd.grad(layer(x, graph).sin().sum(), list(layer.parameters()))
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        torch.testing.assert_close(layer(sparse, graph), layer(x, graph))
        ours = torch.autograd.grad(layer(sparse, graph).sin().sum(), list(layer.parameters()))
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(a, b)


def test_gcn_conv_state_is_pyg_s():
    layer = GCNConv(50, 40)
    assert {name: tuple(t.shape) for name, t in layer.state_dict().items()} == {
        "lin.weight": (40, 50),
        "bias": (40,),
    }
    assert layer.bias.eq(0).all()
    bound = (6 / 90) ** 0.5
    assert 0.9 * bound < layer.lin.weight.abs().max() <= bound
    assert "bias" not in dict(GCNConv(5, 4, bias=False).named_parameters())
    assert repr(layer) == "GCNConv(50, 40)"


def test_gcn_conv_caches(device):
    ends = torch.tensor([[0, 1, 2], [1, 2, 0]], device=device)
    layer, x = GCNConv(3, 2).to(device), torch.rand(3, 3, device=device)
    graph = Graph.from_coo(ends, 3)
    layer(x, graph)
    assert graph.gcn_norm()[0] is graph.gcn_norm()[0]
    first = layer(x, ends)
    ends[0, 0] = 2  # noticed
    assert not torch.equal(layer(x, ends), first)
    with torch.inference_mode():  # a tensor without a version is converted on every call
        other = torch.tensor([[0, 1, 2], [1, 2, 0]], device=device)
        torch.testing.assert_close(layer(x, other), first)
        other[0, 0] = 2
        assert not torch.equal(layer(x, other), first)
    kept = GCNConv(3, 2, cached=True).to(device)
    before = kept(x, graph)
    assert torch.equal(kept(x, Graph.from_coo(ends, 3)), before)


def test_gcn_conv_compiles_and_autocasts(device):
    torch._dynamo.reset()
    graph, layer = random_graph(9, 30, device).prepare(gcn_norm=True), GCNConv(5, 4).to(device)
    x = torch.rand(9, 5, device=device)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, graph), layer(x, graph))
    compiled(x, graph).sum().backward()
    with torch.autocast(device, torch.bfloat16):
        assert layer(x, graph).dtype == torch.bfloat16


@pytest.mark.parametrize("width", [3, 8, 64, 192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reordered", [False, True])
def test_gcn_conv_without_gradients(width, dtype, reordered, device):
    """Factor and bias within the sum's kernel, where it can be: with long rows and hubs."""
    g = torch.Generator().manual_seed(1)
    src, dst = torch.randint(300, (9000,), generator=g), torch.randint(300, (9000,), generator=g)
    dst[:2600] = 7
    dst[2600:2900] = 8
    graph = Graph.from_coo(torch.stack([src, dst]).to(device), 300)
    graph = graph.reorder("degree") if reordered else graph
    layer = GCNConv(5, width).to(device, dtype)
    torch.nn.init.uniform_(layer.bias)
    x = torch.rand(300, 5, generator=g).to(device, dtype)
    with torch.no_grad():
        out = layer(x, graph)
    expected = layer(x, graph).detach()
    assert out.dtype == dtype
    assert (out - expected).double().norm() <= (1e-6 if dtype == torch.float32 else 1e-2) * expected.norm()
