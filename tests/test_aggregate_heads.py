"""Edge weights for each head, and sddmm, the dot product of an edge's two ends."""

import doctest
import sys

import pytest
import torch
from aggregate_cases import TOLERANCE, random_graph
from torch._dynamo.testing import CompileCounterWithBackend

from torch_gpuprims import Graph, neighbor_aggregate, sddmm
from torch_gpuprims.aggregate import REDUCE


def hub_graph(device: str) -> tuple[torch.Tensor, Graph]:
    """Edges in any order, a hub of 2500 among them: (ends [2, 6000], graph of 40 nodes)."""
    ends = torch.randint(40, (2, 6000), generator=torch.Generator().manual_seed(1))
    ends[1, 2500:5000] = 9
    return ends.to(device), Graph.from_coo(ends, 40).to(device)


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_each_head_is_a_call_of_its_own(reduce, dtype, device):
    _, graph = hub_graph(device)
    x = torch.randn(40, 3, 5, device=device).to(dtype).requires_grad_()
    weight = torch.randn(6000, 3, device=device).to(dtype).requires_grad_()
    up = torch.randn(40, 3, 5, device=device).to(dtype)
    out = neighbor_aggregate(x, graph, weight, reduce)
    each = [neighbor_aggregate(x[:, h].contiguous(), graph, weight[:, h].contiguous(), reduce)
            for h in range(3)]  # fmt: skip
    assert torch.equal(out, torch.stack(each, 1))
    got = torch.autograd.grad(out, (x, weight), up)
    want = torch.autograd.grad(torch.stack(each, 1), (x, weight), up)
    assert all(map(torch.equal, got, want))
    with torch.no_grad():
        assert torch.equal(neighbor_aggregate(x, graph, weight, reduce), out)


def test_heads_against_a_dense_formula(device):
    ends, graph = hub_graph(device)
    x = torch.randn(40, 2, 3, 4, dtype=torch.float64, device=device)
    weight = torch.rand(6000, 2, dtype=torch.float64, device=device)
    messages = x[ends[0]] * weight[:, :, None, None]
    torch.testing.assert_close(
        neighbor_aggregate(x, graph, weight), torch.zeros_like(x).index_add(0, ends[1], messages)
    )


def test_heads_have_two_derivatives_and_compile_once(device):
    graph = random_graph(6, 25, device).prepare()
    x = torch.rand(6, 2, 3, dtype=torch.float64, device=device, requires_grad=True)
    weight = torch.rand(25, 2, dtype=torch.float64, device=device, requires_grad=True)
    for reduce in ("sum", "mean"):
        run = lambda t, w, reduce=reduce: neighbor_aggregate(t, graph, w, reduce)  # noqa: E731
        assert torch.autograd.gradcheck(run, (x, weight))
        assert torch.autograd.gradgradcheck(run, (x, weight))
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(neighbor_aggregate, fullgraph=True, dynamic=True, backend=counter)
    for nodes, edges in ((5, 23), (11, 57), (300, 2000)):
        graph = random_graph(nodes, edges, device).prepare()
        x, weight = torch.rand(nodes, 2, 3, device=device), torch.rand(edges, 2, device=device)
        assert torch.equal(compiled(x, graph, weight), neighbor_aggregate(x, graph, weight))
    assert counter.frame_count == 1


def test_shapes_of_weights_that_are_wrong(device):
    graph, x = random_graph(6, 25, device), torch.rand(6, 2, 3, device=device)
    heads = r"edge_weight must have shape \[25, 2\] \(edges, heads\), got "
    for shape, words in (
        ((25, 3), heads + r"\[25, 3\]"),
        ((24, 2), heads + r"\[24, 2\]"),
        ((24,), r"edge_weight must have shape \[25\] \(the number of edges\), got \[24\]"),
        ((25, 2, 1), r"edge_weight must have shape \[25\] \(the number of edges\), got \[25, 2, 1\]"),
    ):
        with pytest.raises(RuntimeError, match=f"^neighbor_aggregate: {words}$"):
            neighbor_aggregate(x, graph, torch.rand(shape, device=device))
    assert neighbor_aggregate(x[:, :0], graph, torch.rand(25, 0, device=device)).shape == (6, 0, 3)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("features", [1, 7, 64, 130])
def test_sddmm(features, dtype, device):
    ends, graph = hub_graph(device)
    a, b = (torch.randn(40, features, device=device).to(dtype).requires_grad_() for _ in range(2))
    wide = [t.detach().double().requires_grad_() for t in (a, b)]
    out = sddmm(a, b, graph)
    products = wide[0][ends[1]] * wide[1][ends[0]]
    assert out.dtype == dtype and out.shape == (6000,)
    bound = TOLERANCE[dtype] * products.abs().sum(1) + 1e-300
    assert ((out.double() - products.sum(1)).abs() <= bound).all()
    up = torch.randn(6000, device=device).to(dtype)
    theirs = torch.autograd.grad(products.sum(1), wide, up.double())
    for got, want in zip(torch.autograd.grad(out, (a, b), up), theirs, strict=True):
        assert (got.double() - want).abs().max() <= 4 * TOLERANCE[dtype] * want.abs().max()
    ordered = graph.reorder("degree")
    assert torch.equal(sddmm(a, b, ordered), out)  # edges keep their places under a schedule


def test_sddmm_is_the_gradient_of_a_weighted_sum(device):
    _, graph = hub_graph(device)
    x, up = torch.randn(40, 9, device=device), torch.randn(40, 9, device=device)
    weight = torch.rand(6000, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(neighbor_aggregate(x, graph, weight), weight, up)
    assert torch.equal(sddmm(up, x, graph), grad)


def test_sddmm_refuses(device):
    graph, a = random_graph(6, 25, device), torch.rand(6, 3, device=device)
    few = "b must have at least 6 rows \\(the graph's sources\\), got 5"
    for kind, words, call in (
        (TypeError, "sddmm: graph must be a Graph, got Tensor", lambda: sddmm(a, a, a)),
        (RuntimeError, few, lambda: sddmm(a, a[:5], graph)),
        (RuntimeError, "a must have 6 rows", lambda: sddmm(a[:5], a, graph)),
        (RuntimeError, "b must have the features of a", lambda: sddmm(a, a[:, :2], graph)),
        (RuntimeError, "b must have the dtype of a", lambda: sddmm(a, a.double(), graph)),
        (RuntimeError, "a must be a dense tensor", lambda: sddmm(a.to_sparse(), a, graph)),
        (RuntimeError, "a must be on the device of b", lambda: sddmm(a, a.to("meta"), graph)),
    ):
        with pytest.raises(kind, match=words):
            call()


def test_docstrings():
    module = sys.modules[neighbor_aggregate.__module__]
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
