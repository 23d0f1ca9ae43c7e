"""What layers take for edges, how long they keep it, and what they say of bad arguments; no PyG needed."""

import gc

import pytest
import torch
from aggregate_cases import random_graph

from torch_gpuprims import Graph, nn
from torch_gpuprims.nn import _edges


def layers(device):
    made = [
        nn.GCNConv(6, 4), nn.SAGEConv(6, 4), nn.GATConv(6, 4, heads=2), nn.GATv2Conv(6, 4, heads=2),
        nn.GINConv(torch.nn.Linear(6, 4)), nn.MaxKConv(6, 4, 2),
        nn.PNAConv(6, 4, ["mean", "max"], ["identity"], torch.tensor([0, 3, 2])),
        nn.NeighborAggregation("max"),
    ]  # fmt: skip
    return [layer.to(device) for layer in made]


def test_graph_edge_index_and_sparse_matrix_agree(device):
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(9, (2, 40), generator=g).unique(dim=1)
    x = torch.randn(9, 6, generator=g).to(device)
    ends = ends.to(device)
    matrix = torch.sparse_coo_tensor(
        ends.flip(0), torch.ones(ends.shape[1], device=device), (9, 9)
    ).coalesce()
    for layer in layers(device):
        expected = layer(x, Graph.from_coo(ends, 9))
        torch.testing.assert_close(layer(x, ends), expected)
        torch.testing.assert_close(layer(x, matrix), expected)
        assert expected.shape[0] == 9 and repr(layer)


def test_a_converted_graph_lives_as_long_as_the_tensor(device):
    base = torch.randint(5, (2, 9), device=device)
    view = base[:, 1:]
    kept = len(_edges._converted)
    graph = _edges.as_graph(view, 5)
    assert _edges.as_graph(base[:, 1:], 5) is graph  # another view of the same edges
    assert _edges.as_graph(base, 5) is not graph and _edges.as_graph(view, 6) is not graph
    base[0, 3] = 0  # the version counts for views too
    assert _edges.as_graph(view, 5) is not graph
    for shift in range(20):
        _edges.as_graph(base[:, shift % 8 :], 5)
    assert all(len(graphs) <= 8 for _, _, graphs in _edges._converted.values())
    del base, view
    gc.collect()
    assert len(_edges._converted) == kept


def test_attention_loops_are_pyg_s(device):
    """Loops of the graph go, one on each node that is both source and destination comes last in its row."""
    graph = Graph.from_coo(
        torch.tensor([[0, 1, 1, 2, 3, 2], [0, 0, 1, 1, 1, 1]], device=device), num_src=4, num_dst=3
    )
    looped, origin = _edges.with_attention_loops(graph)
    assert looped.indptr.tolist() == [0, 2, 6, 7]
    assert looped.indices.tolist() == [1, 0, 2, 3, 2, 1, 2]
    assert origin.tolist() == [1, 6, 3, 4, 5, 7, 8]
    assert _edges.with_attention_loops(graph)[0] is looped


def test_attention_dropout_is_for_training_alone(device):
    graph, x = random_graph(9, 40, device), torch.rand(9, 6, device=device)
    for layer in (nn.GATConv(6, 4, 2, dropout=0.5).to(device), nn.GATv2Conv(6, 4, 2, dropout=0.5).to(device)):
        assert not torch.equal(layer(x, graph), layer(x, graph))
        _, (ends, alpha) = layer(x, graph, return_attention_weights=True)
        layer.eval()
        whole = layer(x, graph, return_attention_weights=True)[1][1]
        assert ends.shape[1] == alpha.shape[0] and 0 < alpha.eq(0).sum() < alpha.numel()
        torch.testing.assert_close(alpha, torch.where(alpha == 0, 0.0, 2 * whole))
        assert torch.equal(layer(x, graph), layer(x, graph))


@pytest.mark.parametrize(
    "make", [lambda: nn.GATConv(6, 4, 2), lambda: nn.SAGEConv(6, 4), lambda: nn.GATv2Conv(6, 4)]
)
def test_layers_compile_and_autocast(make, device):
    torch._dynamo.reset()
    layer, x = make().to(device), torch.rand(9, 6, device=device)
    graph = layer.prepare(random_graph(9, 40, device))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, graph), layer(x, graph))
    compiled(x, graph).sum().backward()
    with torch.autocast(device, torch.bfloat16):
        assert layer(x, graph).dtype == torch.bfloat16
        layer(x, graph).sum().backward()


def test_maxk(device):
    x = torch.tensor([[3.0, -1.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]], device=device, requires_grad=True)
    out = nn.MaxK(2)(x)
    assert out.tolist() == [[3, 0, 2, 0], [0, 0, 0, 0]]
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [[1, 0, 1, 0], [1, 1, 0, 0]]
    assert torch.equal(nn.MaxK(9)(x), x)


BAD = [
    (lambda: nn.SAGEConv(6, 4, aggr="lstm"), "SAGEConv: aggr must be one or several of"),
    (lambda: nn.SAGEConv(-1, 4), "SAGEConv: in_channels must be given, got -1"),
    (
        lambda: nn.GCNConv(6, 4, add_self_loops=True, normalize=False),
        "GCNConv: add_self_loops needs normalize",
    ),
    (lambda: nn.GATConv(6, 4, fill_value="mul"), "GATConv: fill_value must be one of"),
    (lambda: nn.PNAConv(6, 4, ["median"], ["identity"], torch.ones(2)), "PNAConv: aggregators must be among"),
    (
        lambda: nn.PNAConv(6, 4, ["mean"], ["identity"], torch.ones(2), pre_layers=2),
        "PNAConv: pre_layers must be 1",
    ),
    (
        lambda: nn.TopKPooling(6, nonlinearity="cube"),
        "TopKPooling: nonlinearity must be a function or one of",
    ),
    (lambda: nn.MaxK(0), "MaxK: k must be at least 1, got 0"),
]


@pytest.mark.parametrize("make, message", BAD, ids=[message.split(":")[0] for _, message in BAD])
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_edges_name_the_entry(device):
    layer, x = nn.GATConv(6, 4).to(device), torch.rand(3, 6, device=device)
    with pytest.raises(ValueError, match=r"source must be in \[0, 3\), but source\[1\] = 7"):
        layer(x, torch.tensor([[0, 7], [1, 2]], device=device))
    with pytest.raises(ValueError, match=r"edge_index must have shape \[2, num_edges\]"):
        layer(x, torch.tensor([[0, 1, 2]], device=device))
    with pytest.raises(RuntimeError, match="Error"):
        layer.load_state_dict(nn.GATConv(6, 5).state_dict())
