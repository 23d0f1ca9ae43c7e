"""The layers beside PyTorch Geometric's: state, results, gradients; and what they accept."""

import inspect

import pytest
import torch

from torch_gpuprims import nn

geometric = pytest.importorskip("torch_geometric.nn", reason="needs torch_geometric")
NODES, WIDTH = 30, 12


def edges(device, count=140, nodes=NODES, targets=None, seed=0):
    g = torch.Generator().manual_seed(seed)
    ends = torch.stack([
        torch.randint(nodes, (count,), generator=g), torch.randint(targets or nodes, (count,), generator=g)
    ])  # fmt: skip
    return ends[:, ends[1] != 4].to(device)  # node 4 has none


def draw(*shape, device, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def agree(theirs, ours, *args, **kwargs):
    """Load PyG's checkpoint into ours; equal outputs and gradients in parameters."""
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    expected, got = theirs(*args, **kwargs), ours(*args, **kwargs)
    if isinstance(expected, tuple):
        (expected, (their_ends, their_alpha)), (got, (ends, alpha)) = expected, got
        assert torch.equal(ends, their_ends)
        torch.testing.assert_close(alpha, their_alpha, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    grads = []
    for module, out in ((theirs, expected), (ours, got)):
        parameters = dict(module.named_parameters())
        grads.append(dict(zip(parameters, torch.autograd.grad(
            out.sin().sum(), list(parameters.values()), allow_unused=True), strict=True)))  # fmt: skip
    assert list(grads[0]) == list(grads[1])  # the order that optimizers' checkpoints go by
    for name, grad in grads[0].items():
        if grad is not None:
            torch.testing.assert_close(grads[1][name], grad, atol=5e-5, rtol=2e-4, msg=name)


def pair_of(name, *args, **kwargs):
    return getattr(geometric, name)(*args, **kwargs), getattr(nn, name)(*args, **kwargs)


def pair(name, *args, device, **kwargs):
    both = pair_of(name, *args, **kwargs)
    for layer in both:
        layer.to(device)
        if isinstance(getattr(layer, "bias", None), torch.Tensor):
            torch.nn.init.normal_(layer.bias)
    return both


@pytest.mark.parametrize(
    "options", [{}, {"normalize": False}, {"add_self_loops": False}, {"bias": False}], ids=str
)
def test_gcn(options, device):
    x, ends = draw(NODES, WIDTH, device=device), edges(device)
    both = pair("GCNConv", WIDTH, 8, device=device, **options)
    agree(*both, x, ends)
    agree(*both, x, ends, torch.rand(ends.shape[1], device=device))


def test_gcn_improved_weighs_loops_twice(device):
    """PyG's edge_index path gives the loops of an unweighted graph 1: with weights of 1 it means the same."""
    x, ends = draw(NODES, WIDTH, device=device), edges(device)
    theirs, ours = pair("GCNConv", WIDTH, 8, improved=True, device=device)
    ones = torch.ones(ends.shape[1], device=device)
    agree(theirs, ours, x, ends, ones)
    torch.testing.assert_close(ours(x, ends), ours(x, ends, ones))


SAGE = [
    {}, {"aggr": "max"}, {"aggr": "min"}, {"aggr": "sum"}, {"aggr": ["mean", "max"]}, {"normalize": True},
    {"project": True, "root_weight": False}, {"bias": False},
]  # fmt: skip


@pytest.mark.parametrize("options", SAGE, ids=str)
@pytest.mark.parametrize("width", [8, 20])
def test_sage(options, width, device):
    agree(
        *pair("SAGEConv", WIDTH, width, device=device, **options),
        draw(NODES, WIDTH, device=device),
        edges(device),
    )


NAMES = ("GCNConv", "SAGEConv", "GINConv", "GATConv", "GATv2Conv", "PNAConv", "TopKPooling")


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_pyg_s(name):
    """The same names in the same order with the same defaults; PyG's **kwargs are MessagePassing's."""
    for which in ("__init__", "forward"):
        theirs, ours = (
            [p for p in inspect.signature(getattr(getattr(where, name), which)).parameters.values()
             if p.kind is p.POSITIONAL_OR_KEYWORD]
            for where in (geometric, nn)
        )  # fmt: skip
        if which == "forward":  # a Graph may stand there, and edge_index is a keyword as well
            assert [p.name.replace("graph", "edge_index") for p in ours] == [p.name for p in theirs]
            assert "edge_index" in inspect.signature(getattr(nn, name).forward).parameters
        else:
            assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs]


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:Converting sparse")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo], ids=str)
@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_values_of_a_matrix_are_edge_weights(aggr, layout, device):
    """As in PyG's GCNConv, and its SAGEConv and GINConv, which multiply by the matrix."""
    x, ends = draw(NODES, WIDTH, device=device), edges(device).unique(dim=1)
    ends = ends[:, ends[0] != ends[1]]  # to a loop that is there PyG's matrices add another one
    weight = torch.rand(ends.shape[1], device=device) + 0.5
    coo = torch.sparse_coo_tensor(ends.flip(0), weight, (NODES, NODES)).coalesce()
    matrix = coo.to_sparse_csr() if layout == torch.sparse_csr else coo
    agree(*pair("GCNConv", WIDTH, 8, device=device), x, matrix)
    for width in (8, 20):  # the linear layer before the sum, and after
        agree(*pair("SAGEConv", WIDTH, width, aggr, device=device), x, matrix)
    gin = [where.GINConv(torch.nn.Identity(), aggr=aggr).to(device) for where in (geometric, nn)]
    torch.testing.assert_close(gin[1](x, matrix), gin[0](x, matrix))
    ours = nn.NeighborAggregation(aggr)
    expected = ours(x, matrix)
    matrix.values().mul_(2)  # noticed
    torch.testing.assert_close(ours(x, matrix), 2 * expected)


@pytest.mark.parametrize("train_eps", [False, True])
def test_gin(train_eps, device):
    def make():
        return torch.nn.Sequential(torch.nn.Linear(WIDTH, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4))

    both = geometric.GINConv(make(), 0.3, train_eps).to(device), nn.GINConv(make(), 0.3, train_eps).to(device)
    agree(*both, draw(NODES, WIDTH, device=device), edges(device))


ATTENTION = [
    {}, {"heads": 4}, {"heads": 3, "concat": False, "residual": True}, {"heads": 2, "edge_dim": 6},
    {"heads": 2, "edge_dim": 6, "fill_value": 1.5}, {"heads": 2, "edge_dim": 6, "fill_value": "max"},
    {"heads": 2, "edge_dim": 6, "fill_value": "add"},
    {"heads": 2, "edge_dim": 6, "add_self_loops": False, "bias": False},
]  # fmt: skip


@pytest.mark.parametrize("options", ATTENTION, ids=str)
@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
def test_attention(name, options, device):
    x, ends = draw(NODES, WIDTH, device=device), edges(device)
    args = (x, ends, draw(ends.shape[1], 6, device=device, seed=1)) if "edge_dim" in options else (x, ends)
    both = pair(name, WIDTH, 8, device=device, **options)
    agree(*both, *args)
    agree(*both, *args, return_attention_weights=True)


@pytest.mark.parametrize(
    "name, args",
    [("GATConv", ((WIDTH, 5), 8, 2)), ("GATv2Conv", ((WIDTH, 5), 8, 2)), ("SAGEConv", ((WIDTH, 5), 8))],
)
def test_bipartite(name, args, device):
    """As the blocks of NeighborLoader: the destinations are another, smaller set."""
    ends = edges(device, targets=10)
    agree(
        *pair(name, *args, device=device),
        (draw(NODES, WIDTH, device=device), draw(10, 5, device=device)),
        ends,
    )


def test_initial_parameters_spread_as_pyg_s():
    """The same distributions: zeros where PyG has zeros, elsewhere uniform within equal bounds."""
    deg = torch.tensor([1, 5, 9])
    made = [
        ("GCNConv", (40, 80), {}), ("SAGEConv", (40, 80), {"project": True}),
        ("GATConv", (40, 20, 30), {"edge_dim": 25, "residual": True}),
        ("GATv2Conv", (40, 20, 30), {"edge_dim": 25}), ("PNAConv", (40, 80, ["mean"], ["identity"], deg), {}),
        ("TopKPooling", (400,), {}),
    ]  # fmt: skip
    for name, args, kwargs in made:
        both = pair_of(name, *args, **kwargs)
        theirs, ours = (dict(layer.named_parameters()) for layer in both)
        assert theirs.keys() == ours.keys()
        for key, expected in theirs.items():
            most, ours_most = expected.abs().max().item(), ours[key].abs().max().item()
            assert abs(most - ours_most) <= 0.25 * most, (name, key, most, ours_most)


@pytest.mark.parametrize("name, args", [("GATConv", (WIDTH, 8, 2)), ("SAGEConv", (WIDTH, 8))])
def test_blocks_whose_destinations_come_first(name, args, device):
    x, ends = draw(NODES, WIDTH, device=device), edges(device, targets=10)
    agree(*pair(name, *args, device=device), (x, x[:10]), ends)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"towers": 2}, {"towers": 2, "divide_input": True, "post_layers": 2}, {"train_norm": True},
        {"post_layers": 3, "act": "leaky_relu", "act_kwargs": {"negative_slope": 0.3}},
        {"post_layers": 2, "act": torch.nn.ELU()}, {"post_layers": 2, "act": "PReLU"},
    ],
    ids=str,
)  # fmt: skip
def test_pna(options, device):
    ends = edges(device)
    deg = torch.bincount(torch.bincount(ends[1].cpu(), minlength=NODES))
    words = ["mean", "min", "max", "std", "sum", "var"], list(nn.pna.SCALERS)
    agree(
        *pair("PNAConv", WIDTH, 8, *words, deg, device=device, **options),
        draw(NODES, WIDTH, device=device),
        ends,
    )


def test_global_pooling(device):
    x, batch = draw(NODES, WIDTH, device=device), torch.arange(NODES, device=device) // 8
    for name in ("global_add_pool", "global_mean_pool", "global_max_pool"):
        ours, theirs = getattr(nn, name), getattr(geometric, name)
        for args in ((batch,), (None,), (batch, 6), (batch.flip(0),)):
            torch.testing.assert_close(ours(x, *args), theirs(x, *args))


@pytest.mark.parametrize(
    "options",
    [{}, {"ratio": 3}, {"ratio": 0.3, "multiplier": 2.0}, {"min_score": 0.2}, {"nonlinearity": "sigmoid"}],
    ids=str,
)  # fmt: skip
def test_topk_pooling(options, device):
    x, ends, batch = draw(NODES, WIDTH, device=device), edges(device), torch.arange(NODES, device=device) // 8
    theirs, ours = pair("TopKPooling", WIDTH, device=device, **options)
    ours.load_state_dict(theirs.state_dict())
    weight = torch.rand(ends.shape[1], device=device)
    for given in (batch, None):
        results = [layer(x, ends, weight, given) for layer in (theirs, ours)]
        for a, e in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(a, e)
        grads = [
            torch.autograd.grad(r[0].sum(), m.select.weight)[0]
            for r, m in zip(results, (theirs, ours), strict=True)
        ]
        torch.testing.assert_close(grads[1], grads[0], atol=1e-5, rtol=1e-4)
