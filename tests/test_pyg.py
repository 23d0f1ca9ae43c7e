"""accelerate and the Aggregation, inside PyTorch Geometric's own models."""

import copy

import pytest
import torch

geometric = pytest.importorskip("torch_geometric.nn", reason="needs torch_geometric")
from torch_gpuprims import nn, pyg  # noqa: E402

NODES = 30


def edges(device):
    return torch.randint(NODES, (2, 140), generator=torch.Generator().manual_seed(0)).to(device)


class Model(torch.nn.Module):
    def __init__(self, ends):
        super().__init__()
        deg = torch.bincount(torch.bincount(ends[1].cpu(), minlength=NODES))
        hidden = torch.nn.Sequential(torch.nn.Linear(16, 9), torch.nn.ReLU(), torch.nn.Linear(9, 16))
        self.first = geometric.GCNConv(12, 16)
        self.middle = torch.nn.ModuleList([
            geometric.SAGEConv(16, 16, aggr="max"), geometric.GINConv(hidden),
            geometric.GATConv(16, 4, heads=4), geometric.GATv2Conv(16, 8, heads=2),
            geometric.PNAConv(16, 16, ["mean", "std"], ["identity"], deg),
        ])  # fmt: skip
        self.again = self.middle[0]
        self.cheb = geometric.ChebConv(16, 3, 2)

    def forward(self, x, ends):
        x = self.first(x, ends)
        for layer in self.middle:
            x = layer(x, ends).relu()
        return self.cheb(self.again(x, ends), ends)


def test_accelerate_keeps_parameters_and_results(device):
    torch.manual_seed(0)
    ends, x = edges(device), torch.randn(NODES, 12, dtype=torch.float64).to(device)
    model = Model(ends).double().to(device)
    before, state = copy.deepcopy(model), torch.get_rng_state()
    parameters = {name: id(p) for name, p in model.named_parameters()}
    report = pyg.accelerate(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: id(p) for name, p in model.named_parameters()} == parameters
    assert sorted(kind for _, kind in report.replaced) == [
        "GATConv", "GATv2Conv", "GCNConv", "GINConv", "PNAConv", "SAGEConv", "SAGEConv"
    ]  # fmt: skip
    assert report.left == [("cheb", "ChebConv", "no counterpart here")]
    assert "left cheb: ChebConv (no counterpart here)" in str(report)
    assert model.again is model.middle[0] and type(model.again) is nn.SAGEConv
    expected, got = before(x, ends), model(x, ends)
    torch.testing.assert_close(got, expected)
    theirs = torch.autograd.grad(expected.sin().sum(), list(before.parameters()))
    ours = torch.autograd.grad(got.sin().sum(), list(model.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    before.load_state_dict(model.state_dict())
    assert pyg.accelerate(model).replaced == []


@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GIN", "GAT", "PNA"])
def test_accelerate_in_pyg_s_own_models(name, device):
    """These call their layers with edge_weight= and edge_attr=."""
    ends, x = edges(device), torch.randn(NODES, 12, dtype=torch.float64).to(device)
    deg = torch.bincount(torch.bincount(ends[1].cpu(), minlength=NODES))
    words = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"], "deg": deg}
    options = words if name == "PNA" else {"v2": True, "heads": 2} if name == "GAT" else {}
    model = getattr(geometric, name)(12, 8, 2, 3, **options).double().to(device).eval()
    weight = torch.rand(ends.shape[1], dtype=torch.float64, device=device)
    calls = [{}, {"edge_weight": weight}] if name == "GCN" else [{}]
    expected = [model(x, ends, **call) for call in calls]
    report = pyg.accelerate(model)
    assert len(report.replaced) == 2 and not report.left
    for call, want in zip(calls, expected, strict=True):
        torch.testing.assert_close(model(x, ends, **call), want)
    by_name = model(x, edge_index=ends)
    torch.testing.assert_close(by_name, expected[0])


def test_accelerate_in_a_graph_u_net(device):
    """TopKPooling inside a model that calls it by names; GCNConv with improved stays, as the report says."""
    ends, x = edges(device), torch.randn(NODES, 12, dtype=torch.float64).to(device)
    model = geometric.GraphUNet(12, 8, 3, depth=2).double().to(device).eval()
    expected = model(x, ends)
    report = pyg.accelerate(model)
    assert [kind for _, kind in report.replaced] == ["TopKPooling", "TopKPooling"]
    assert all("improved" in why for _, _, why in report.left)
    torch.testing.assert_close(model(x, ends), expected)


def test_accelerate_keeps_activations(device):
    ends, x = edges(device), torch.randn(NODES, 12, dtype=torch.float64).to(device)
    deg = torch.bincount(torch.bincount(ends[1].cpu(), minlength=NODES))
    words = ["mean"], ["identity"], deg
    model = torch.nn.ModuleList([
        geometric.PNAConv(12, 8, *words, towers=2, post_layers=2, act="elu"),
        geometric.PNAConv(12, 8, *words, towers=2, post_layers=2, act="prelu"),
    ]).double().to(device)  # fmt: skip
    expected = [layer(x, ends) for layer in model]
    report = pyg.accelerate(model)
    assert report.replaced == [("0", "PNAConv")]
    assert report.left == [("1", "PNAConv", "an activation with parameters")]
    for layer, want in zip(model, expected, strict=True):
        torch.testing.assert_close(layer(x, ends), want)


def test_accelerate_says_why_it_leaves_a_layer():
    model = torch.nn.ModuleDict({
        "flow": geometric.GCNConv(4, 4, flow="target_to_source"),
        "lazy": geometric.SAGEConv(-1, 4),
        "improved": geometric.GCNConv(4, 4, improved=True),
        "median": geometric.SAGEConv(4, 4, aggr="median"),
        "mul": geometric.GATConv(4, 4, edge_dim=2, fill_value="mul"),
        "hooked": geometric.GINConv(torch.nn.Linear(4, 4)),
    })  # fmt: skip
    model["hooked"].register_forward_hook(lambda *_: None)
    report = pyg.accelerate(model)
    assert report.replaced == []
    reasons = {name: why for name, _, why in report.left}
    assert reasons["flow"] == "flow='target_to_source'" and reasons["hooked"] == "it has hooks"
    assert "first call" in reasons["lazy"] and "improved" in reasons["improved"]
    assert reasons["median"] == "aggr='median'" and reasons["mul"] == "fill_value='mul'"
    alone = pyg.accelerate(geometric.GCNConv(4, 4))
    assert "it is the model itself" in str(alone)


class Sum(geometric.MessagePassing):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.propagate(edge_index, x=x)


@pytest.mark.parametrize("reduce", ["sum", "add", "mean", "max", "min"])
def test_aggregation_in_any_message_passing(reduce, device):
    ends = edges(device)
    x = torch.randn(NODES, 7, device=device, requires_grad=True)
    results = [Sum(aggr=aggr)(x, ends) for aggr in (reduce, pyg.NeighborAggregation(reduce))]
    torch.testing.assert_close(results[1], results[0])
    grads = [torch.autograd.grad(out.sin().sum(), x)[0] for out in results]
    torch.testing.assert_close(grads[1], grads[0])


def test_aggregation_by_ptr_dim_and_nothing(device):
    aggregate = pyg.NeighborAggregation("sum")
    x, ptr = torch.randn(2, 6, 3, device=device), torch.tensor([0, 2, 2, 6], device=device)
    expected = torch.stack([x[:, :2].sum(1), x[:, 2:2].sum(1), x[:, 2:].sum(1)], 1)
    torch.testing.assert_close(aggregate(x, ptr=ptr, dim=1), expected)
    index = torch.tensor([0, 0, 2, 2, 2, 2], device=device)
    torch.testing.assert_close(aggregate(x, index, dim_size=3), expected)
    assert aggregate(x[:, :0], index[:0], dim_size=2).eq(0).all()
    with pytest.raises(ValueError, match="reduce must be one of"):
        pyg.NeighborAggregation("median")


def test_accelerate_leaves_layers_whose_parts_have_hooks():
    model = torch.nn.ModuleDict({
        "gcn": geometric.GCNConv(4, 4), "sage": geometric.SAGEConv(4, 4),
        "gin": geometric.GINConv(torch.nn.Linear(4, 4)),
    })  # fmt: skip
    model["gcn"].lin.register_forward_hook(lambda *_: None)
    model["sage"].lin_l.register_forward_pre_hook(lambda *_: None)
    model["gin"].nn.register_forward_hook(lambda *_: None)  # that module stays
    report = pyg.accelerate(model)
    assert report.left == [
        ("gcn", "GCNConv", "its lin has hooks"), ("sage", "SAGEConv", "its lin_l has hooks"),
    ]  # fmt: skip
    assert report.replaced == [("gin", "GINConv")] and model["gin"].nn._forward_hooks


def test_accelerate_leaves_modes_as_they_are():
    frozen = torch.nn.BatchNorm1d(4)
    hidden = torch.nn.Sequential(torch.nn.Linear(4, 4), frozen)
    model = torch.nn.Sequential(geometric.GINConv(hidden), geometric.GATConv(4, 4).eval())
    frozen.eval()
    model[1].lin.train()
    assert len(pyg.accelerate(model).replaced) == 2
    assert model[0].training and hidden.training and not frozen.training
    assert not model[1].training and model[1].lin.training


def test_changes_of_an_edge_index_are_noticed(device):
    """EdgeIndex wraps a tensor: the wrapper's own version does not tell."""
    from torch_geometric import EdgeIndex, Index

    plain = torch.tensor([[0, 1, 2], [1, 2, 0]], device=device)
    x, conv = torch.randn(4, 6, device=device), nn.SAGEConv(6, 4).to(device)
    wrapped = EdgeIndex(plain)
    before = conv(x, wrapped)
    assert torch.equal(conv(x, EdgeIndex(plain)), before)
    plain[1] = 3
    after = conv(x, wrapped)
    assert not torch.equal(after, before) and torch.equal(after, conv(x, plain.clone()))
    names, aggregate = torch.tensor([0, 1, 1, 3], device=device), pyg.NeighborAggregation("sum")
    index = Index(names)
    before = aggregate(x, index, dim_size=4)
    names[0] = 2
    assert not torch.equal(aggregate(x, index, dim_size=4), before)


def test_gcn_norm_of_odd_degrees_is_pyg_s(device):
    """Degrees that are negative or NaN, and those that are 0."""
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    ends = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 4]], device=device)
    for values in ([1.0, -2.0, 0.0, float("nan"), 1.0], [-0.5, 0.5, 1.0, 2.0, -1.0]):
        weight = torch.tensor(values, device=device)
        for loops in (False, True):
            graph, ours = nn._edges.Graph.from_coo(ends, 5).gcn_norm(weight, add_self_loops=loops)
            index, theirs = gcn_norm(ends, weight, 5, add_self_loops=loops)
            dense = torch.zeros(2, 5, 5, device=device)
            dense[0, graph.indices.long(), graph.destinations().long()] = ours
            if not loops:  # in the order in which edges were given
                dense[0] = 0
                dense[0, ends[0], ends[1]] = ours
            dense[1, index[0], index[1]] = theirs
            torch.testing.assert_close(dense[0], dense[1], equal_nan=True)
    weight = torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0], device=device, requires_grad=True)
    graph = nn._edges.Graph.from_coo(ends, 5)
    graph.gcn_norm(weight, add_self_loops=False)[1].sum().backward()
    assert weight.grad is not None and weight.grad.isfinite().all()
