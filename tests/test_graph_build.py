"""Graph's builders from other forms, and what becomes of duplicates and self-loops."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_gpuprims import Graph, neighbor_aggregate

SRC, DST = torch.tensor([2, 0, 2, 1, 2, 0, 1]), torch.tensor([1, 0, 1, 1, 0, 2, 0])


def edges_of(graph):
    return list(zip(graph.indices.tolist(), graph.destinations().tolist(), strict=True))


def test_duplicates(device):
    ends = SRC.to(device), DST.to(device)
    kept = Graph.from_coo(ends, 3)
    assert edges_of(kept) == [(0, 0), (2, 0), (1, 0), (2, 1), (2, 1), (1, 1), (0, 2)]
    once = Graph.from_coo(ends, 3, duplicates="remove")
    assert edges_of(once) == [(0, 0), (2, 0), (1, 0), (2, 1), (1, 1), (0, 2)]
    assert once.edge_ids is None
    with pytest.raises(ValueError, match=r"^Graph: there are duplicate edges, the first one from 2 to 1$"):
        Graph.from_coo(ends, 3, duplicates="error")
    unique = torch.tensor([[0, 1], [1, 0]])
    assert Graph.from_coo(unique, duplicates="error").num_edges == 2
    with pytest.raises(ValueError, match="duplicates must be one of keep, remove, error, got 'sum'"):
        Graph.from_coo(ends, 3, duplicates="sum")


def test_self_loops(device):
    ends = SRC.to(device), DST.to(device)
    assert edges_of(Graph.from_coo(ends, 3, self_loops="remove")) == [(2, 0), (1, 0), (2, 1), (2, 1), (0, 2)]
    added = edges_of(Graph.from_coo(ends, 3, self_loops="add"))
    assert sorted(added) == sorted([(0, 0), (2, 0), (1, 0), (2, 1), (2, 1), (1, 1), (0, 2), (2, 2)])
    with pytest.raises(ValueError, match=r"^Graph: there are self-loops, the first one at node 0$"):
        Graph.from_coo(ends, 3, self_loops="error")
    both = Graph.from_coo(ends, 3, self_loops="remove", duplicates="remove")
    assert edges_of(both) == [(2, 0), (1, 0), (2, 1), (0, 2)]
    graph, weight = Graph.from_coo(ends, 3).remove_self_loops(torch.arange(7.0, device=device))
    assert dict(zip(edges_of(graph)[:2], weight.tolist(), strict=False)) == {(2, 0): 4.0, (1, 0): 6.0}
    assert graph.remove_self_loops()[1] is None


def test_coalesce(device):
    g = torch.Generator().manual_seed(0)
    src, dst = torch.randint(6, (200,), generator=g), torch.randint(5, (200,), generator=g)
    weight = torch.rand(200, generator=g, dtype=torch.float64).to(device).requires_grad_()
    graph = Graph.from_coo((src, dst), num_src=6, num_dst=5).to(device)
    merged, sums = graph.coalesce(weight)
    edges = edges_of(merged)
    assert edges == sorted(set(zip(src.tolist(), dst.tolist(), strict=True)), key=lambda e: (e[1], e[0]))
    x = torch.rand(6, 2, dtype=torch.float64, device=device)
    torch.testing.assert_close(neighbor_aggregate(x, merged, sums), neighbor_aggregate(x, graph, weight))
    (grad,) = torch.autograd.grad(sums.sum(), weight)
    assert grad.eq(1).all()
    assert graph.coalesce()[1] is None
    empty = Graph.from_coo(torch.zeros(2, 0, dtype=torch.int64), 3).coalesce(torch.zeros(0))
    assert empty[0].num_edges == 0
    assert empty[1].shape == (0,)


class Hetero(dict):
    edge_types = (("user", "rates", "item"),)


def test_from_pyg_forms():
    edge_index = torch.stack([SRC, DST])
    data = SimpleNamespace(edge_index=edge_index, num_nodes=3)
    expected = edges_of(Graph.from_coo(edge_index, 3))
    assert edges_of(Graph.from_pyg(data)) == expected
    adj_t = torch.sparse_coo_tensor(torch.stack([DST, SRC]), torch.ones(7), (3, 3))
    assert edges_of(Graph.from_pyg(SimpleNamespace(adj_t=adj_t, num_nodes=3))) == expected
    rates = ("user", "rates", "item")
    hetero = Hetero(
        {
            "user": SimpleNamespace(num_nodes=4),
            "item": SimpleNamespace(num_nodes=9),
            rates: SimpleNamespace(edge_index=edge_index),
        }
    )
    graph = Graph.from_pyg(hetero, rates)
    assert (graph.num_src, graph.num_dst, edges_of(graph)) == (4, 9, expected)
    with pytest.raises(
        ValueError, match="a HeteroData needs edge_type, one of \\('user', 'rates', 'item'\\)"
    ):
        Graph.from_pyg(hetero)
    with pytest.raises(ValueError, match="SimpleNamespace has no edge_index"):
        Graph.from_pyg(SimpleNamespace())


class EdgeIndex(torch.Tensor):
    """What Graph asks of PyG's class of that name."""

    def sparse_size(self):
        return (5, None)

    def as_tensor(self):
        return self.as_subclass(torch.Tensor)


def test_from_pyg_edge_index():
    graph = Graph.from_pyg(torch.stack([SRC, DST]).as_subclass(EdgeIndex), num_nodes=4)
    assert (graph.num_src, graph.num_dst) == (5, 4)
    assert type(graph.indices) is torch.Tensor


class Dgl:
    def edges(self, order, etype=None):
        assert order == "eid"
        return SRC, DST

    def num_src_nodes(self, kind=None):
        return 4 if kind is None else {"user": 6}[kind]

    def num_dst_nodes(self, kind=None):
        return 3 if kind is None else {"item": 7}[kind]

    def to_canonical_etype(self, etype):
        return ("user", etype, "item")


def test_from_dgl():
    graph = Graph.from_dgl(Dgl())
    assert (graph.num_src, graph.num_dst, graph.num_edges) == (4, 3, 7)
    typed = Graph.from_dgl(Dgl(), "rates")
    assert (typed.num_src, typed.num_dst) == (6, 7)
    weight = torch.arange(7.0)
    expected = neighbor_aggregate(torch.eye(4), Graph.from_coo((SRC, DST), num_src=4, num_dst=3), weight)
    assert torch.equal(neighbor_aggregate(torch.eye(4), graph, weight), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_pin_memory():
    graph = Graph.from_coo((SRC, DST), 3).prepare()
    pinned = graph.pin_memory()
    assert all(t.is_pinned() for t in pinned._tensors())
    moved = pinned.to("cuda", non_blocking=True)
    x = torch.rand(3, 2)
    assert torch.equal(neighbor_aggregate(x.cuda(), moved).cpu(), neighbor_aggregate(x, graph))


def test_torch_save(device, tmp_path):
    graph = Graph.from_coo(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 2]]).to(device)).prepare()
    torch.save(graph, tmp_path / "graph.pt")
    back = torch.load(tmp_path / "graph.pt", weights_only=False)
    x = torch.randn(3, 5, device=device, requires_grad=True)
    expected, got = neighbor_aggregate(x, graph), neighbor_aggregate(x, back)
    assert torch.equal(got, expected)
    assert torch.equal(*(torch.autograd.grad(out.sin().sum(), x)[0] for out in (got, expected)))


def test_int32_offsets_that_do_not_hold_the_edges(device):
    def call(x, indptr, indices):
        with pytest.raises(RuntimeError, match="indptr must be int64 for 2147483648 edges, got int32"):
            torch.ops.gpuprims.neighbor_aggregate(x, indptr, indices)

    with FakeTensorMode():
        indptr, indices = torch.empty(4, dtype=torch.int32), torch.empty(2**31, dtype=torch.int32)
        call(torch.empty(3, 2), indptr, indices)
    indptr = torch.zeros(4, dtype=torch.int32, device=device)
    many = torch.zeros(1, dtype=torch.int32, device=device).expand(2**31)  # 4 bytes
    call(torch.zeros(3, 2, device=device), indptr, many)
    with pytest.raises(RuntimeError, match="indptr must be int64 for 2147483648 edges, got int32"):
        torch.ops.gpuprims.edge_softmax(torch.zeros(1, 1, device=device).expand(2**31, 1), indptr)


def test_from_pyg_s_own_classes(device):
    """What the stand-ins above stand for."""
    geometric = pytest.importorskip("torch_geometric", reason="needs torch_geometric")
    edge_index = torch.stack([SRC, DST]).to(device)
    expected = edges_of(Graph.from_coo(edge_index, 3))
    data = geometric.data.Data(edge_index=edge_index, num_nodes=3)
    assert edges_of(Graph.from_pyg(data)) == expected
    hetero = geometric.data.HeteroData()
    hetero["user"].num_nodes, hetero["item"].num_nodes = 4, 9
    hetero["user", "rates", "item"].edge_index = edge_index
    graph = Graph.from_pyg(hetero, ("user", "rates", "item"))
    assert (graph.num_src, graph.num_dst, edges_of(graph)) == (4, 9, expected)
    for wrong in (("user", "buys", "item"), ("user", "item"), "rates"):
        with pytest.raises(
            ValueError, match=r"^Graph: edge_type must be one of \('user', 'rates', 'item'\), "
        ):
            Graph.from_pyg(hetero, wrong)
    order = DST.to(device).argsort(stable=True)
    sizes = {"sparse_size": (3, 3)}
    for columns, sort_order in ((edge_index, None), (edge_index[:, order], "col")):
        given = geometric.EdgeIndex(columns, sort_order=sort_order, **sizes)
        graph = Graph.from_pyg(given)
        assert edges_of(graph) == expected and type(graph.indices) is torch.Tensor
        assert (graph.edge_ids is None) == (sort_order is not None)  # sorted by column: no sort, no ids


def matrices_and_sizes(device):
    ends = torch.tensor([[0, 1, 2], [1, 2, 0]], device=device)
    return {
        "edge_index must be a dense tensor": lambda: Graph.from_coo(ends.to_sparse()),
        "source must be a tensor, got list": lambda: Graph.from_coo([[0], [1]]),
        "num_nodes must not be negative, got -1": lambda: Graph.from_coo(ends, -1),
        "num_nodes must be an integer, got 3.0": lambda: Graph.from_coo(ends, 3.0),
        "num_src must not be negative, got -2": lambda: Graph.from_coo(ends, num_src=-2, num_dst=3),
        "source must be in [0, 2), but source[2] = 2": lambda: Graph.from_coo(ends, 2),
        "the matrix must be a tensor, got list": lambda: Graph.from_torch_sparse([1]),
        "the matrix must be a SciPy sparse matrix, got int": lambda: Graph.from_scipy(3),
        "destination must be on": lambda: Graph.from_coo((ends[0], ends[1].to("meta"))),
    }


@pytest.mark.parametrize("words", list(matrices_and_sizes("cpu")))
def test_what_is_no_graph(words, device):
    with pytest.raises(ValueError) as error:
        matrices_and_sizes(device)[words]()
    assert str(error.value).startswith(f"Graph: {words}")


def test_weights_of_another_length_are_refused(device):
    """They are indexed by edge: a longer one would give the wrong edge's weight, a shorter one end a CUDA
    context."""
    graph = Graph.from_coo((SRC, DST), 3).to(device)
    calls = {
        "gcn_norm": graph.gcn_norm, "add_self_loops": graph.add_self_loops, "coalesce": graph.coalesce,
        "remove_self_loops": graph.remove_self_loops,
    }  # fmt: skip
    for call in calls.values():
        for shape in ((6,), (8,), (7, 1), ()):
            with pytest.raises(ValueError) as error:
                call(torch.ones(shape, device=device))
            words = "Graph: edge_weight must have shape [7] (the number of edges), got "
            assert str(error.value) == f"{words}{list(shape)}"
        with pytest.raises(ValueError, match=r"^Graph: edge_weight must be on"):
            call(torch.ones(7, device="meta"))
    with pytest.raises(ValueError, match=r"^Graph: edge_weight must be of a floating dtype, got int64$"):
        graph.gcn_norm(torch.ones(7, dtype=torch.int64, device=device))
