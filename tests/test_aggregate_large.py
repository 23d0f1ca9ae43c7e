"""Aggregation at sizes that only a GPU reaches: beyond 2^31, bits over many runs, memory beside PyG's."""

import pytest
import torch

from bench import graphs
from torch_gpuprims import Graph, neighbor_aggregate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
REDUCE = ("sum", "mean", "max", "min")


@pytest.fixture(autouse=True)
def memory_goes_back():
    """To the GPU, which other workers share, not to this process's cache."""
    yield
    torch.cuda.empty_cache()


def even_graph(rows: int, degree: int, sources: int) -> Graph:
    """Row r reads the sources r * degree .. + degree, all modulo `sources`."""
    indptr = torch.arange(rows + 1, device="cuda") * degree
    every = torch.arange(sources, device="cuda", dtype=torch.int32)
    indices = every.repeat(-(-rows * degree // sources))[: rows * degree]
    return Graph.from_csr(indptr, indices, num_src=sources)


@pytest.mark.slow
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_more_than_2_31_messages_and_features(reduce):
    """E * F = 4.4e9 and N * F = 2.2e9 in both directions, with the gradient; 26 GB at the most."""
    rows, features = 34_000_000, 64
    graph = even_graph(rows, 2, rows).prepare()
    x = torch.arange(rows, device="cuda").remainder(251).to(torch.bfloat16)[:, None].repeat(1, features)
    x.requires_grad_()
    out = neighbor_aggregate(x, graph, reduce=reduce)
    first = (torch.arange(rows, device="cuda") * 2) % rows
    parts = torch.stack([first % 251, (first + 1) % 251])
    expected = (parts.sum(0) if reduce == "sum" else parts.amax(0)).to(torch.bfloat16)
    for column in (0, features - 1):
        assert torch.equal(out[:, column], expected)
    out.backward(torch.ones_like(out))
    assert x.grad is not None
    if reduce == "sum":  # every node is read by two rows
        assert x.grad.eq(2).all()
    else:  # one gradient for each row
        assert int(x.grad[:, 0].double().sum()) == rows
        assert torch.equal(x.grad[:, 0], x.grad[:, -1])


@pytest.mark.slow
@pytest.mark.parametrize("columns", [2, 4])  # too few for the kernels of whole vectors, and enough
@pytest.mark.parametrize("degree", [20, 40_000])
def test_more_than_2_31_edges(degree, columns):
    """Offsets of 64 bits, of short rows and of hubs; 60 GB at the most, for the transpose."""
    rows, sources = -(-(2**31 + 100) // degree), 1000
    graph = even_graph(rows, degree, sources)
    assert graph.num_edges > 2**31 and graph.indptr.dtype == torch.int64
    assert graph.indices.dtype == torch.int32
    x = (torch.arange(sources, device="cuda") % 100).float()[:, None].repeat(1, columns)  # exact below 2^24
    x[:, 1] = 1
    out = neighbor_aggregate(x, graph)
    assert out[:, 1].eq(degree).all()
    picked = torch.tensor([0, 1, rows // 2, rows - 2, rows - 1], device="cuda")
    edges = picked[:, None] * degree + torch.arange(degree, device="cuda")
    values = edges % sources % 100
    assert torch.equal(out[picked, 0].long(), values.sum(1))
    most = neighbor_aggregate(x, graph, reduce="max")
    assert torch.equal(most[picked, 0].long(), values.amax(1))
    if columns == 2:
        return
    x.requires_grad_()
    neighbor_aggregate(x, graph).backward(torch.full_like(out, 2**-12))  # sums of it are exact, too
    source = torch.arange(sources, device="cuda")
    whole, rest = divmod(graph.num_edges, sources)
    read = whole + (source < rest).long()
    assert x.grad is not None
    torch.testing.assert_close(x.grad[:, 0].double(), read.double() * 2**-12, rtol=1e-6, atol=0)
    assert torch.equal(x.grad[:, 0], x.grad[:, -1])


@pytest.mark.parametrize("name", ["rmat", "sbm"])
def test_bits_over_ten_runs(name):
    """Sums of a graph with hubs, and of one with communities, in the given order and in another."""
    indptr, indices = graphs.make(name, "cuda")
    graph = Graph.from_csr(indptr, indices.int())
    ordered = graph.reorder("community")
    for features, dtype in ((64, torch.float32), (128, torch.bfloat16), (17, torch.float32)):
        x = torch.randn(graph.num_src, features, device="cuda").to(dtype)
        for reduce in REDUCE:
            first = neighbor_aggregate(x, graph, reduce=reduce)
            for _ in range(5):
                assert torch.equal(neighbor_aggregate(x, graph, reduce=reduce), first)
                assert torch.equal(neighbor_aggregate(x, ordered, reduce=reduce), first)


def peak_of_training(layer: torch.nn.Module, x: torch.Tensor, edges: object) -> int:
    """Bytes above what was there before a forward and a backward."""
    leaf = x.clone().requires_grad_()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layer(leaf, edges).sum().backward()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("aggr", ["mean", "max"])
def test_peak_memory_beside_pyg(aggr):
    """No E x F tensor exists: PyG's layer stores two or more of them."""
    from torch_gpuprims import nn

    pyg = pytest.importorskip("torch_geometric.nn")
    indptr, indices = graphs.make("sbm", "cuda")
    graph = Graph.from_csr(indptr, indices.int()).prepare()
    edge_index = torch.stack([graph.indices.long(), graph.destinations().long()])
    x = torch.randn(graph.num_src, 64, device="cuda")
    theirs = pyg.SAGEConv(64, 64, aggr=aggr).cuda()
    ours = nn.SAGEConv(64, 64, aggr=aggr).cuda()
    ours.load_state_dict(theirs.state_dict())
    memory = [peak_of_training(layer, x, edges) for layer, edges in ((ours, graph), (theirs, edge_index))]
    print(f"SAGEConv {aggr}, sbm, peak of training: {memory[0] / 2**30:.2f} GiB, PyG {memory[1] / 2**30:.2f}")
    assert memory[0] <= 8 * x.numel() * 4
    assert 4 * memory[0] <= memory[1]
