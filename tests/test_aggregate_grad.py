"""Gradients, transforms and compilation of neighbor_aggregate."""

import pytest
import torch
from aggregate_cases import TOLERANCE, random_graph, raw
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.flop_counter import FlopCounterMode

from torch_gpuprims import Graph, neighbor_aggregate
from torch_gpuprims.aggregate import REDUCE


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_gradient_goes_to_the_first_of_ties(reduce, device):
    x = torch.tensor([[2.0], [2.0], [1.0 if reduce == "max" else 3.0]], device=device, requires_grad=True)
    graph = Graph.from_coo((torch.tensor([1, 0, 2]), torch.tensor([0, 0, 0])), num_src=3, num_dst=2).to(
        device
    )
    for upstream in (1.0, -1.0):
        (grad,) = torch.autograd.grad(neighbor_aggregate(x, graph, reduce=reduce).sum() * upstream, x)
        assert grad.flatten().tolist() == [0, upstream, 0]  # edge 0 starts at node 1


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("features", (1, 7, 64, 130))
@pytest.mark.parametrize("reduce", REDUCE)
def test_gradients_against_torch(reduce, features, dtype, device):
    """Beside gather and scatter in float64; hubs on both sides, edges in any order."""
    generator = torch.Generator().manual_seed(1)
    ends = torch.randint(40, (2, 6000), generator=generator)
    ends[0, :2500], ends[1, 2500:5000] = 7, 9
    graph = Graph.from_coo(ends, 40).to(device)
    x = torch.randn(40, features, generator=generator).to(device, dtype).requires_grad_()
    weight = torch.randn(6000, generator=generator).to(device, dtype).requires_grad_()
    upstream = torch.randn(40, features, generator=generator).to(device, dtype)
    neighbor_aggregate(x, graph, weight, reduce).backward(upstream)
    xr, wr = (t.detach().double().requires_grad_() for t in (x, weight))
    src, dst = ends.to(device)
    messages = xr[src] * wr[:, None]
    if reduce in ("sum", "mean"):
        out = messages.new_zeros(40, features).index_add(0, dst, messages)
        if reduce == "mean":
            out = out / dst.bincount(minlength=40).clamp(min=1)[:, None]
        out.backward(upstream.double())
    else:  # which edge it is, the op may say: values can tie
        arg = raw.neighbor_aggregate(
            x.detach(), *graph.csr, weight.detach(), None, None, None, REDUCE[reduce], True
        )[1].long()
        messages.gather(0, arg.clamp(min=0)).where(arg >= 0, 0).backward(upstream.double())
    for ours, theirs in ((x.grad, xr.grad), (weight.grad, wr.grad)):
        assert (ours.double() - theirs).abs().max() <= 4 * TOLERANCE[dtype] * theirs.abs().max()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCE)
def test_gradcheck_twice(reduce, weighted, device):
    graph = random_graph(6, 25, device)
    values = (torch.randperm(18).double() / 4 + 0.3).reshape(6, 3).to(device).requires_grad_()
    weight = (torch.randperm(25).double() / 100 + 1).to(device).requires_grad_()

    def run(x, w=None):
        return neighbor_aggregate(x, graph, w, reduce)

    tensors = (values, weight) if weighted else (values,)
    assert torch.autograd.gradcheck(run, tensors)
    assert torch.autograd.gradgradcheck(run, tensors)


def test_rows_beyond_the_sources(device):
    graph = random_graph(6, 25, device)
    x = torch.rand(9, 3, device=device, requires_grad=True)
    out = neighbor_aggregate(x, graph)
    assert torch.equal(out, neighbor_aggregate(x[:6], graph))
    out.sum().backward()
    assert x.grad.shape == (9, 3)
    assert x.grad[6:].eq(0).all()


def test_vmap_and_func(device):
    graph = random_graph(6, 25, device).prepare()
    x, weight = torch.rand(4, 6, 3, device=device), torch.rand(4, 25, device=device)
    for reduce in REDUCE:
        one = torch.stack([neighbor_aggregate(t, graph, weight[0], reduce) for t in x])
        batched = torch.vmap(lambda t: neighbor_aggregate(t, graph, weight[0], reduce))(x)  # noqa: B023
        torch.testing.assert_close(batched, one)
        both = torch.vmap(lambda t, w: neighbor_aggregate(t, graph, w, reduce))(x, weight)  # noqa: B023
        pairs = zip(x, weight, strict=True)
        torch.testing.assert_close(
            both, torch.stack([neighbor_aggregate(t, graph, w, reduce) for t, w in pairs])
        )

        def loss(t, w):
            return neighbor_aggregate(t, graph, w, reduce).square().sum()  # noqa: B023

        per_sample = torch.vmap(torch.func.grad(loss, argnums=(0, 1)))(x, weight)
        leaves = x[2].clone().requires_grad_(), weight[2].clone().requires_grad_()
        expected = torch.autograd.grad(loss(*leaves), leaves)
        for ours, theirs in zip(per_sample, expected, strict=True):
            torch.testing.assert_close(ours[2], theirs)
        torch.func.jacrev(torch.func.jacrev(loss))(x[0], weight[0])


def test_compile_without_recompiles(device):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def step(x, weight, graph):
        return neighbor_aggregate(x, graph, weight, "mean") + neighbor_aggregate(x, graph, reduce="max")

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=counter)
    for nodes, edges in ((5, 23), (11, 57), (300, 2000)):
        graph = random_graph(nodes, edges, device).prepare()
        x = torch.rand(nodes, 3, device=device, requires_grad=True)
        weight = torch.rand(edges, device=device, requires_grad=True)
        results = []
        for run in (compiled, step):
            out = run(x, weight, graph)
            results.append((out, *torch.autograd.grad(out.square().sum(), (x, weight))))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert counter.frame_count == 1


def test_flops_and_autocast(device):
    graph = random_graph(6, 25, device)
    x, weight = torch.rand(6, 3, device=device), torch.rand(25, device=device)
    for given_weight, flops in ((None, 75), (weight, 150)):
        with FlopCounterMode(display=False) as counter:
            neighbor_aggregate(x, graph, given_weight)
        assert counter.get_total_flops() == flops
    with torch.autocast(device, torch.bfloat16):
        assert neighbor_aggregate(x, graph).dtype == torch.float32
