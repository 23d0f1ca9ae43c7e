"""What layers take for edges, how long they keep it, and what they say of bad arguments; no PyG needed."""

import gc
import threading

import pytest
import torch
from aggregate_cases import random_graph
from devices import no_cuda

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


def test_one_graph_for_all_threads(device):
    ends = torch.randint(500, (2, 20_000), device=device)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(_edges.as_graph(ends, 500))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8 and len(set(map(id, seen))) == 1


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
    (lambda: nn.SAGEConv(6, 4, aggr=None), "SAGEConv: aggr must be one or several of .*, got None"),
    (
        lambda: nn.SAGEConv(6, 4, aggr=torch.nn.ReLU()),
        r"SAGEConv: aggr must be one or several of .*, got ReLU\(\)",
    ),
    (lambda: nn.SAGEConv(6, 4, aggr=[]), r"SAGEConv: aggr must be one or several of .*, got \[\]"),
    (lambda: nn.GINConv(torch.nn.Linear(6, 4), aggr=["sum", "max"]), "GINConv: aggr must be one of"),
    (lambda: nn.MaxKConv(6, 4, 2, aggr=["sum", "max"]), "MaxKConv: aggr must be one of"),
    (lambda: nn.MaxKConv(-1, 4, 2), "MaxKConv: in_channels must be given, got -1"),
    (lambda: nn.PNAConv(6, 4, ["mean"], ["cubic"], torch.ones(2)), "PNAConv: scalers must be among"),
    (lambda: nn.PNAConv(-1, 4, ["mean"], ["identity"], torch.ones(2)), "PNAConv: in_channels must be given"),
    (
        lambda: nn.PNAConv(6, 4, ["mean"], ["identity"], torch.zeros(2)),
        "PNAConv: deg must count at least one",
    ),
    (
        lambda: nn.PNAConv(6, 4, ["mean"], ["identity"], torch.ones(2), post_layers=2, act="cube"),
        "PNAConv: act must be a module or the name of one of torch.nn, got 'cube'",
    ),
    (lambda: nn.NeighborAggregation("median"), "NeighborAggregation: reduce must be one of"),
    (
        lambda: nn.NeighborAggregation(["sum"]),
        r"NeighborAggregation: reduce must be one of .*, got \['sum'\]",
    ),
    (lambda: nn.PNAConv(6, 4, [], ["identity"], torch.ones(2)), r"PNAConv: aggregators must be among .*\[\]"),
    (lambda: nn.PNAConv(6, 4, ["mean"], [], torch.ones(2)), r"PNAConv: scalers must be among .*\[\]"),
]


@pytest.mark.parametrize("make, message", BAD, ids=[message.split(" must")[0] for _, message in BAD])
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_edges_name_the_entry(device):
    layer, x = nn.GATConv(6, 4).to(device), torch.rand(3, 6, device=device)
    with pytest.raises(ValueError, match=r"source must be in \[0, 3\), but source\[1\] = 7"):
        layer(x, torch.tensor([[0, 7], [1, 2]], device=device))
    with pytest.raises(ValueError, match=r"destination must be in \[0, 3\), but destination\[0\] = -1"):
        layer(x, torch.tensor([[0, 1], [-1, 2]], device=device))
    with pytest.raises(ValueError, match=r"edge_index must have shape \[2, num_edges\]"):
        layer(x, torch.tensor([[0, 1, 2]], device=device))
    with pytest.raises(ValueError, match="source must be int32 or int64, got float32"):
        layer(x, torch.rand(2, 5, device=device))
    with pytest.raises(
        TypeError, match=r"edges must be a Graph, an edge_index .* or a sparse matrix, got list"
    ):
        layer(x, [[0, 1], [1, 2]])
    ends = torch.tensor([[0, 1], [1, 2]], device=device)
    for call in (lambda: layer(x), lambda: layer(x, ends, edge_index=ends)):
        with pytest.raises(
            TypeError, match=r"^GATConv: edges must be given once, as graph or as edge_index$"
        ):
            call()


def test_a_state_of_other_sizes_is_refused_by_name(device):
    layer = nn.GATConv(6, 4).to(device)
    before = {name: t.clone() for name, t in layer.state_dict().items()}
    with pytest.raises(
        RuntimeError, match=r"size mismatch for lin.weight: copying a param with shape .*5, 6"
    ):
        layer.load_state_dict(nn.GATConv(6, 5).state_dict())
    assert all(t.shape == before[name].shape for name, t in layer.state_dict().items())
    with pytest.raises(RuntimeError, match=r"Missing key.*att_src"):
        layer.load_state_dict(nn.GCNConv(6, 4).state_dict())


def test_sizes_that_do_not_fit_are_refused(device):
    """Broadcasting and indexing would make wrong results of them, or end a CUDA context."""
    ends = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]], device=device)
    graph, x = Graph.from_coo(ends, 3), torch.rand(3, 6, device=device)
    bipartite = Graph.from_coo(ends, num_src=3, num_dst=5)
    gcn, gat = nn.GCNConv(6, 4).to(device), nn.GATConv(6, 4, edge_dim=2).to(device)
    gatv2, sage = nn.GATv2Conv(6, 4, edge_dim=2).to(device), nn.SAGEConv(6, 4).to(device)
    gin, pool = nn.GINConv(torch.nn.Linear(6, 4)).to(device), nn.TopKPooling(6).to(device)
    maxk, plain = nn.MaxKConv(6, 4, 2).to(device), nn.GATv2Conv(6, 4).to(device)
    pna = nn.PNAConv(6, 4, ["mean"], ["identity"], torch.ones(2)).to(device)
    attr, batch = torch.rand(4, 2, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    rows = "must have 4 rows \\(the number of edges\\), got"
    cases = [
        ("GCNConv: x must have 3 rows", lambda: gcn(x[:1], graph)),  # one row would serve for all
        ("GCNConv: x must have 3 rows", lambda: gcn(torch.cat([x, x]), graph)),
        (r"edge_weight must have shape \[4\]", lambda: gcn(x, ends, torch.rand(9, device=device))),
        (r"edge_weight must have shape \[4\]", lambda: gcn(x, ends, torch.rand(2, device=device))),
        (f"GATConv: edge_attr {rows} 9", lambda: gat(x, ends, torch.rand(9, 2, device=device))),
        (f"GATConv: edge_attr {rows} 2", lambda: gat(x, ends, attr[:2])),
        (f"GATv2Conv: edge_attr {rows} 9", lambda: gatv2(x, ends, torch.rand(9, 2, device=device))),
        ("GATv2Conv: edge_attr needs a layer with edge_dim", lambda: plain(x, ends, attr)),
        ("PNAConv: edge_attr must be None", lambda: pna(x, ends, attr)),
        ("SAGEConv: x must have 5 rows for the destinations, got 1", lambda: sage((x, x[:1]), bipartite)),
        ("GINConv: x must have 5 rows for the destinations, got 1", lambda: gin((x, x[:1]), bipartite)),
        ("MaxKConv: x must have 5 rows for the destinations, got 1", lambda: maxk((x, x[:1]), bipartite)),
        ("GATv2Conv: x must have 5 rows for the destinations, got 1", lambda: plain((x, x[:1]), bipartite)),
        (r"global pooling: batch must have shape \[3\] \(nodes\), got \[2\]",
         lambda: nn.global_add_pool(x, batch[:2])),
        (r"global pooling: batch must have shape \[3\] \(nodes\), got \[4\]",
         lambda: nn.global_max_pool(x, batch.new_zeros(4))),
        ("destination must be in", lambda: nn.global_mean_pool(x, batch + 2, 2)),
        (r"TopKPooling: batch must have shape \[3\]", lambda: pool(x, ends, None, batch[:2])),
        ("TopKPooling: x must have 6 channels, got 1", lambda: pool(x[:, :1], ends)),
        (r"source must be in \[0, 3\), but source\[2\] = 3", lambda: pool(x, ends + 1)),
        ("ids must not decrease", lambda: pool(x, ends, None, batch.index_fill(0, batch[:1], 1))),
    ]  # fmt: skip
    for words, call in cases:
        with pytest.raises((RuntimeError, ValueError), match=words):
            call()
    assert gcn(x, ends).isfinite().all()  # the context lives


def test_edge_index_is_pyg_s_keyword(device):
    ends = torch.randint(9, (2, 40), generator=torch.Generator().manual_seed(0)).to(device)
    x = torch.rand(9, 6, device=device)
    for layer in layers(device)[:-1]:
        assert torch.equal(layer(x, edge_index=ends), layer(x, ends))
    weight, attr = torch.rand(40, device=device), torch.rand(40, 3, device=device)
    gcn, gat = nn.GCNConv(6, 4).to(device), nn.GATConv(6, 4, edge_dim=3).to(device)
    assert torch.equal(gcn(x, edge_index=ends, edge_weight=weight), gcn(x, ends, weight))
    assert torch.equal(gat(x, edge_index=ends, edge_attr=attr), gat(x, ends, attr))


def test_every_layer_prepares_a_graph_for_tracing():
    x = torch.rand(9, 6, requires_grad=True)
    for layer in layers("cpu"):
        torch._dynamo.reset()
        graph = layer.prepare(random_graph(9, 40, "cpu"))
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        (got,), (want,) = (torch.autograd.grad(m(x, graph).sin().sum(), x) for m in (compiled, layer))
        torch.testing.assert_close(got, want)


def test_layers_are_exported_with_the_graph_that_a_module_holds(tmp_path):
    graph, x = random_graph(9, 40, "cpu"), torch.rand(9, 6)

    class Model(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer, self.graph = layer, layer.prepare(graph)

        def forward(self, x):
            return self.layer(x, self.graph)

    for layer in layers("cpu")[:4]:
        torch.export.save(torch.export.export(Model(layer), (x,)), tmp_path / "layer.pt2")
        program = torch.export.load(tmp_path / "layer.pt2")
        torch.testing.assert_close(program.module()(x), layer(x, graph))
    by_argument = torch.export.export(layers("cpu")[1], (x, graph))  # SAGEConv needs the edges alone
    with pytest.raises(Exception, match=r"is not built: call .* before tracing"):
        torch.export.export(layers("cpu")[0], (x, graph))
    assert by_argument.module()(x, graph).shape == (9, 4)


def test_attention_dropout_is_drawn_anew_in_compiled_code():
    torch._dynamo.reset()
    layer, x = nn.GATConv(6, 4, 2, dropout=0.5), torch.rand(9, 6)
    graph = layer.prepare(random_graph(9, 40, "cpu"))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results += [compiled(x, graph), compiled(x, graph)]
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
    assert not torch.equal(results[0], results[1]) and not torch.equal(results[0], results[4])


@pytest.mark.gpu
@no_cuda
def test_attention_dropout_under_graph_capture():
    """Each replay drops other edges; the same seed drops the same ones."""
    layer, x = nn.GATConv(6, 4, 2, dropout=0.5).cuda(), torch.rand(9, 6, device="cuda")
    graph = layer.prepare(random_graph(9, 40, "cuda"))
    with torch.no_grad():
        layer(x, graph)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            out = layer(x, graph)
        runs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            for _ in range(2):
                captured.replay()
                runs.append(out.clone())
    assert torch.equal(runs[0], runs[2]) and torch.equal(runs[1], runs[3])
    assert not torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[4])


def test_batches_of_features_are_refused(device):
    """PyG aggregates over the last dimension but one: the first would silently pass for the nodes."""
    ends = torch.randint(10, (2, 40), generator=torch.Generator().manual_seed(0)).to(device)
    for batch in (32, 10):  # one of as many members as nodes fits every other check
        x = torch.rand(batch, 10, 6, device=device)
        for layer in [*layers(device)[:-1], nn.TopKPooling(6).to(device)]:
            words = rf"^{type(layer).__name__}: x must have 2 dimensions \[nodes, channels\], got"
            with pytest.raises(RuntimeError, match=f"{words} 3$"):
                layer(x, ends)
            with pytest.raises(RuntimeError, match=f"{words} 1$"):
                layer(x[0, :, 0], ends)
        for pair in ((x, x[0]), (x[0], x)):
            with pytest.raises(RuntimeError, match="SAGEConv: x must have 2 dimensions"):
                nn.SAGEConv(6, 4).to(device)(pair, ends)
        for pool in (nn.global_add_pool, nn.global_mean_pool, nn.global_max_pool):
            with pytest.raises(RuntimeError, match="global pooling: x must have 1 or 2 dimensions"):
                pool(x, None)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_matrix_gets_its_gradient(layout, device):
    g = torch.Generator().manual_seed(0)
    dense = torch.rand(9, 9, generator=g) * (torch.rand(9, 9, generator=g) < 0.4)
    x = torch.rand(9, 6, generator=g).to(device)
    rows, columns = dense.nonzero().t().to(device)
    made = [
        nn.GCNConv(6, 4), nn.SAGEConv(6, 4, aggr="sum"), nn.GINConv(torch.nn.Linear(6, 4)),
        nn.NeighborAggregation("sum"),
    ]  # fmt: skip
    for layer in (layer.to(device) for layer in made):
        matrix = dense.to(device).to_sparse_coo().coalesce()
        matrix = (matrix if layout == "coo" else matrix.to_sparse_csr()).requires_grad_()
        weight = dense.to(device)[rows, columns].requires_grad_()
        layer(x, matrix).sin().sum().backward()
        if isinstance(layer, (nn.GCNConv, nn.NeighborAggregation)):
            layer(x, Graph.from_coo((columns, rows), 9), weight).sin().sum().backward()
            assert matrix.grad is not None and weight.grad is not None
            torch.testing.assert_close(matrix.grad.to_dense()[rows, columns], weight.grad)
        assert matrix.grad is not None and matrix.grad.to_dense().count_nonzero() > 0


def test_a_matrix_that_is_not_coalesced_has_no_gradient(device):
    ends, x = torch.tensor([[0, 1, 1], [1, 0, 0]], device=device), torch.rand(2, 6, device=device)
    matrix = torch.sparse_coo_tensor(ends, torch.rand(3, device=device), (2, 2)).requires_grad_()
    layer = nn.SAGEConv(6, 4).to(device)
    with pytest.raises(RuntimeError, match=r"^SAGEConv: a sparse matrix that requires grad must"):
        layer(x, matrix)
    with torch.no_grad():
        assert torch.equal(layer(x, matrix), layer(x, matrix.detach()))


def test_neighbor_aggregation_says_what_cannot_be_a_graph(device):
    layer, x = nn.NeighborAggregation(), torch.rand(3, 6, device=device)
    with pytest.raises(ValueError, match="the matrix must be sparse_csr or sparse_coo and 2-D, got"):
        layer(x, torch.eye(3, device=device).to_sparse_csc())
    for wrong in ([[0, 1], [1, 2]], None):
        with pytest.raises(TypeError, match=r"edges must be a Graph, an edge_index .* or a sparse matrix"):
            layer(x, wrong)


def test_global_max_pool_without_a_batch_is_that_of_one_graph(device):
    x = torch.tensor([[1.0, 2.0], [1.0, 3.0], [0.0, 3.0]], device=device, requires_grad=True)
    grads = [
        torch.autograd.grad(nn.global_max_pool(x, batch).sum(), x)[0]
        for batch in (None, torch.zeros(3, dtype=torch.int64, device=device))
    ]
    assert torch.equal(grads[0], grads[1]) and grads[0].tolist() == [[1, 0], [0, 1], [0, 0]]
