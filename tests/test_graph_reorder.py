"""Graph.reorder: every order gives the same bits; what the orders find; the plan that kernels walk by."""

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch

from torch_gpuprims import Graph, explain, neighbor_aggregate
from torch_gpuprims.aggregate import REDUCE
from torch_gpuprims.aggregate_plan import (
    HEADER,
    HUB_DEGREE,
    LONG_DEGREE,
    ROW_COST,
    UNIT,
    make_plan,
    order_of,
    plan_size,
)  # fmt: skip
from torch_gpuprims.graph_reorder import distinct_share, make_order

METHODS = ("none", "community", "bfs", "degree", "given")


def planted(nodes=2000, community=50, inside=12, outside=2, seed=0):
    """A graph of shuffled communities with a hub, empty rows and rows that a warp walks: (src, dst, home)."""
    g = torch.Generator().manual_seed(seed)
    home = torch.randperm(nodes, generator=g) // community
    members = home.argsort(stable=True)
    dst = torch.arange(nodes).repeat_interleave(inside + outside)
    near = members[home[dst] * community + torch.randint(community, dst.shape, generator=g)]
    far = torch.randint(nodes, dst.shape, generator=g)
    src = torch.where(torch.arange(len(dst)) % (inside + outside) < inside, near, far)
    keep = dst % 7 != 3  # every seventh row is empty
    extra_dst = torch.cat([torch.full((2500,), 5), torch.full((300,), 11), torch.full((90,), 12)])
    extra_src = torch.randint(nodes, extra_dst.shape, generator=g)
    src, dst = torch.cat([src[keep], extra_src]), torch.cat([dst[keep], extra_dst])
    shuffle = torch.randperm(len(src), generator=g)
    return src[shuffle], dst[shuffle], home


def scheduled(graph, method):
    if method == "given":
        order = torch.randperm(graph.num_dst, generator=torch.Generator().manual_seed(7))
        return graph.reorder(order=order.to(graph.device))
    return graph.reorder(method)


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("weighted", [False, True])
def test_bits_are_the_same_under_every_order(reduce, weighted, device):
    src, dst, _ = planted()
    graph = Graph.from_coo((src, dst), 2000).to(device)
    for features, dtype in (
        (1, torch.float64),
        (16, torch.float32),
        (130, torch.float32),
        (64, torch.bfloat16),
    ):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(2000, features, generator=generator).to(device, dtype)
        weight = torch.rand(len(src), generator=generator).to(device, dtype) if weighted else None
        grad = torch.randn(2000, features, generator=generator).to(device, dtype)

        def everything(g, x=x, weight=weight, grad=grad):
            leaves = [t.clone().requires_grad_() for t in (x, weight) if t is not None]
            out = neighbor_aggregate(leaves[0], g, leaves[1] if weight is not None else None, reduce)
            first = torch.autograd.grad(out, leaves, grad.clone().requires_grad_(), create_graph=True)
            plain = neighbor_aggregate(x, g, weight, reduce)
            return [plain, out, *first]

        expected = everything(graph)
        assert torch.equal(expected[0], expected[1])
        for method in METHODS:
            results = everything(scheduled(graph, method))
            for ours, same in zip(results, expected, strict=True):
                assert torch.equal(ours, same), (method, features)


def test_second_derivatives_under_a_schedule(device):
    src, dst, _ = planted(60, 10, 3, 1)
    graph = Graph.from_coo((src[-300:] % 60, dst[-300:] % 60), 60).to(device)
    ordered = scheduled(graph, "given")
    x = torch.randn(60, 2, dtype=torch.float64, device=device, requires_grad=True)
    weight = torch.rand(300, dtype=torch.float64, device=device, requires_grad=True)
    for reduce in ("sum", "mean"):
        assert torch.autograd.gradgradcheck(
            lambda x, w, reduce=reduce: neighbor_aggregate(x, ordered, w, reduce), (x, weight)
        )


def test_community_order_finds_communities(device):
    src, dst, home = planted(20_000, 100, 16, 2)
    graph = Graph.from_coo((src, dst), 20_000).to(device)
    order = make_order(graph, "community").cpu()
    best = home.argsort(stable=True)
    given, found, ideal = (
        float(distinct_share(graph, None if o is None else o.to(device))) for o in (None, order, best)
    )
    assert found < 1.1 * ideal < 0.8 * given
    assert sorted(order.tolist()) == list(range(20_000))
    auto = graph.reorder()
    assert "auto: distinct neighbours of 4096 rows" in auto.schedule
    if device == "cpu":  # no time is measured
        assert auto.schedule.startswith("rows in community order")
        assert torch.equal(auto._order, order)


def test_bfs_order_keeps_a_mesh_together(device):
    side = 160
    ids = torch.randperm(side * side, generator=torch.Generator().manual_seed(0)).view(side, side)
    ends = torch.cat(
        [torch.stack([ids[:, :-1], ids[:, 1:]]).flatten(1), torch.stack([ids[:-1], ids[1:]]).flatten(1)], 1
    )
    graph = Graph.from_coo(torch.cat([ends, ends.flip(0)], 1), side * side).to(device)
    shares = [float(distinct_share(graph, order)) for order in (None, make_order(graph, "bfs"))]
    assert shares[1] < 0.5 * shares[0]
    assert "bfs" in graph.reorder().schedule


def test_auto_leaves_random_graphs_alone(device):
    g = torch.Generator().manual_seed(0)
    graph = Graph.from_coo(torch.randint(10_000, (2, 200_000), generator=g), 10_000).to(device)
    auto = graph.reorder("auto")
    assert auto._order is None
    assert auto.schedule.startswith("rows as given (auto: distinct neighbours")
    assert "small or bipartite" in Graph.from_coo(torch.tensor([[0], [1]])).reorder().schedule


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_labels_agree_between_devices():
    src, dst, _ = planted()
    graph = Graph.from_coo((src, dst), 2000)
    for method in (0, 1):
        here = torch.ops.gpuprims._graph_labels(graph.indptr, graph.indices, method, 5, 64)
        there = torch.ops.gpuprims._graph_labels(graph.indptr.cuda(), graph.indices.cuda(), method, 5, 64)
        wide = torch.ops.gpuprims._graph_labels(
            graph.indptr.long().cuda(), graph.indices.long().cuda(), method, 5, 64
        )
        assert torch.equal(here, there.cpu())
        assert torch.equal(here, wide.cpu())


def test_label_propagation_by_hand():
    # Two triangles that one edge joins: a node takes what two of its neighbours agree on.
    edges = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (2, 3)]
    both = torch.tensor([*edges, *[(b, a) for a, b in edges]]).t()
    graph = Graph.from_coo(both, 6)
    grown = torch.ops.gpuprims._graph_labels(graph.indptr, graph.indices, 1, 1, 4)
    none = 2**31 - 1
    assert grown.tolist() == [0, 0, 0, 4, 4, 4]
    assert torch.ops.gpuprims._graph_labels(graph.indptr, graph.indices, 1, 0, 4).tolist() == [
        0, none, none, none, 4, none,
    ]  # fmt: skip
    alone = torch.ops.gpuprims._graph_labels(torch.tensor([0, 0, 1]), torch.tensor([7]), 0, 3, 1)
    assert alone.tolist() == [0, 1]  # no neighbour, and one out of range


BAD = {
    "Graph: method must be one of auto, community, bfs, degree, none, got 'rcm'": {"method": "rcm"},
    "Graph: order must have 3 elements (the number of destinations), got 2": {"order": torch.tensor([0, 1])},
    "Graph: order must be in [0, 3), but order[2] = 5": {"order": torch.tensor([0, 1, 5])},
    "Graph: order must be a permutation, but 1 repeats": {"order": torch.tensor([0, 1, 1])},
    "Graph: order must be int32 or int64, got float32": {"order": torch.rand(3)},
    "Graph: features must be at least 1, got 0": {"features": 0},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments(message):
    graph = Graph.from_coo(torch.tensor([[0, 1], [1, 2]]), 3)
    with pytest.raises(ValueError) as error:
        graph.reorder(**BAD[message])
    assert str(error.value) == message


def test_bipartite_graphs(device):
    graph = Graph.from_coo((torch.tensor([4, 1]), torch.tensor([1, 0])), num_src=5, num_dst=3).to(device)
    words = "community order needs as many sources as destinations, got 5 and 3"
    with pytest.raises(ValueError, match=words):
        graph.reorder("community")
    ordered = graph.reorder(order=torch.tensor([2, 0, 1], device=device))
    x = torch.rand(5, 3, device=device, requires_grad=True)
    assert torch.equal(neighbor_aggregate(x, ordered), neighbor_aggregate(x, graph))
    neighbor_aggregate(x, ordered).sum().backward()
    assert x.grad is not None


def test_a_schedule_travels(device):
    src, dst, _ = planted(300, 20, 4, 1)
    graph = Graph.from_coo((src[:900] % 300, dst[:900] % 300), 300)
    ordered = scheduled(graph, "given").prepare()
    assert ordered.csr is graph.csr
    for other in (pickle.loads(pickle.dumps(ordered)), copy.deepcopy(ordered), ordered.to(device)):
        assert torch.equal(other._order.cpu(), ordered._order)
        assert other.schedule == "rows in the order given to reorder"
    assert "rows in the order given to reorder" in repr(ordered)
    assert "rows in the order given to reorder" in explain("neighbor_aggregate", torch.empty(300, 8), ordered)
    looped = ordered.add_self_loops()[0]
    assert torch.equal(looped._order, ordered._order)


def test_tracing_with_a_schedule():
    torch._dynamo.reset()
    graph = scheduled(Graph.from_coo(torch.randint(9, (2, 40)), 9), "given")
    run = torch.compile(lambda x: neighbor_aggregate(x, graph), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"call graph.prepare\(\) before tracing or capture"):
        run(torch.rand(9, 2))
    graph.prepare()
    torch._dynamo.reset()
    x = torch.rand(9, 2, requires_grad=True)
    for reduce in REDUCE:
        traced = torch.compile(
            lambda x, reduce=reduce: neighbor_aggregate(x, graph, reduce=reduce),
            fullgraph=True,
            backend="aot_eager",
        )
        out, expected = traced(x), neighbor_aggregate(x, graph, reduce=reduce)
        assert torch.equal(out, expected)
        ours, theirs = (torch.autograd.grad(o.sum(), x)[0] for o in (out, expected))
        assert torch.equal(ours, theirs)


def test_plan_constants_are_the_kernels():
    text = (Path(__file__).parents[1] / "csrc/aggregate/plan.h").read_text()
    names = {"kPlanHeader": HEADER, "kUnit": UNIT, "kRowCost": ROW_COST, "kLongDegree": LONG_DEGREE}
    for name, value in names.items():
        assert int(re.search(rf"{name} = (\d+);", text).group(1)) == value
    assert 2 * int(re.search(r"kChunk = (\d+);", text).group(1)) == HUB_DEGREE


@pytest.mark.parametrize("degrees", [[], [0], [3], [0, 0, 0, 0], [5, 0, 1024, 0, 3000, 7, 1023], [1] * 100])
def test_plan_against_a_search_by_hand(degrees, device):
    indptr = torch.tensor([0, *degrees], device=device).cumsum(0)
    rows, edges = len(degrees), int(indptr[-1])
    order = torch.randperm(rows).to(device)
    plan = make_plan(indptr, edges, order)
    size = plan_size(rows, edges)
    assert len(plan) == size + rows
    if rows:
        assert torch.equal(order_of(indptr, edges, plan), order)
    assert order_of(indptr, edges, plan[:size]) is None
    hubs = [row for row, degree in enumerate(degrees) if degree >= HUB_DEGREE]
    assert int(plan[0]) == len(hubs)
    room = edges // HUB_DEGREE
    assert sorted(plan[size - room : size].tolist()[: len(hubs)]) == hubs
    starts = plan[HEADER : size - room].tolist()
    at = [int(indptr[row]) + ROW_COST * row for row in range(rows)]
    expected = [
        next((row for row in range(rows) if at[row] >= unit * UNIT), rows) for unit in range(len(starts))
    ]
    assert starts == expected
    assert starts[-1] == rows


def test_bad_plans(device):
    graph = Graph.from_coo(torch.randint(9, (2, 40)), 9).to(device)
    op, x = torch.ops.gpuprims.neighbor_aggregate, torch.rand(9, 2, device=device)
    size = plan_size(9, 40)
    for plan, words in (
        (torch.zeros(3, dtype=torch.int64), f"plan must have {size} or {size + 9} elements, got 3"),
        (torch.zeros(size, dtype=torch.int32), "plan must be int64, got int32"),
        (torch.zeros(size, 1, dtype=torch.int64), "plan must have 1 dimension, got 2"),
    ):
        with pytest.raises(RuntimeError, match=f"^neighbor_aggregate: {words}$"):
            op(x, *graph.csr, plan=plan.to(device))
    # Without promises the kernels make their own plan, and an order that is none writes nothing outside.
    hostile = torch.full((size + 9,), 1 << 40, dtype=torch.int64, device=device)
    for reduce in range(4):
        op(x, *graph.csr, reduce=reduce, want_arg=reduce > 1, plan=hostile)
    torch.ops.gpuprims.sddmm(x, x, *graph.csr, plan=hostile)
    assert torch.equal(op(x, *graph.csr, plan=hostile[:size])[0], op(x, *graph.csr)[0])
