"""scaled_sum, and sums of few features, against float64."""

import pytest
import torch
from aggregate_cases import random_csr
from devices import DEVICES

from torch_gpuprims import Graph, neighbor_aggregate
from torch_gpuprims.aggregate_scaled import scaled_sum

DEGREES = [0, 3, 70, 1, 0, 1500, 31, 64, 63, 0, 200, 5, 1024, 1023, *range(60)]


def make_graph(device, sources=50, degrees=DEGREES):
    indptr, indices = random_csr(degrees, sources, torch.Generator().manual_seed(1))
    dense = torch.zeros(len(degrees), sources, dtype=torch.float64)
    rows = torch.arange(len(degrees)).repeat_interleave(indptr.diff())
    dense.index_put_((rows, indices), torch.ones(len(rows), dtype=torch.float64), accumulate=True)
    graph = Graph.from_csr(indptr, indices.int(), num_src=sources).to(device)
    return graph, dense.to(device), indptr.diff().to(device)


def close(out, expected, magnitude):
    bound = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-12}
    assert ((out.double() - expected).abs() <= bound[out.dtype] * magnitude + 1e-30).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("features", [8, 64, 100, 136, 3])
@pytest.mark.parametrize("scales", ["both", "source", "row", "none"])
def test_scaled_sums(device, dtype, features, scales):
    graph, dense, _ = make_graph(device)
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(50, features, generator=generator).to(device, dtype)
    source = torch.rand(50, generator=generator).to(device) if scales in ("both", "source") else None
    row = torch.rand(len(dense), generator=generator).to(device) if scales in ("both", "row") else None
    expected = dense @ (x.double() if source is None else x.double() * source.double()[:, None])
    if row is not None:
        expected = expected * row.double()[:, None]
    # Where the factors take passes of their own, each rounds.
    rounds = 1 if x.is_cuda and features * dtype.itemsize % 16 == 0 else 3
    close(scaled_sum(x, graph, source, row), expected, rounds * expected.abs())
    ordered = graph.reorder(order=torch.randperm(len(dense), generator=generator).to(device))
    assert torch.equal(scaled_sum(x, ordered, source, row), scaled_sum(x, graph, source, row))
    assert torch.equal(
        scaled_sum(x.t().contiguous().t(), graph, source, row), scaled_sum(x, graph, source, row)
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_scaled_sums(device, dtype):
    graph, dense, _ = make_graph(device)
    x = torch.rand(50, 12, dtype=dtype, device=device, requires_grad=True)
    source, row = torch.rand(50, device=device), torch.rand(len(dense), device=device)
    upstream = torch.rand(len(dense), 12, dtype=dtype, device=device, requires_grad=True)
    matrix = dense * row.double()[:, None] * source.double()
    (grad,) = torch.autograd.grad(scaled_sum(x, graph, source, row), x, upstream, create_graph=True)
    expected = matrix.t() @ upstream.double()
    close(grad.detach(), expected.detach(), 3 * expected.detach().abs())
    (second,) = torch.autograd.grad(grad, upstream, torch.ones_like(grad))
    expected = matrix @ torch.ones(50, 12, dtype=torch.float64, device=device)
    close(second, expected, 3 * expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_mean(device, dtype):
    for order in (False, True):
        graph, dense, degree = make_graph(device)
        if order:
            graph = graph.reorder(order=torch.randperm(len(dense)).to(device))
        x = torch.rand(53, 16, device=device).to(dtype).requires_grad_()  # 3 rows that nobody reads
        upstream = torch.rand(len(dense), 16, device=device).to(dtype)
        (grad,) = torch.autograd.grad(neighbor_aggregate(x, graph, reduce="mean"), x, upstream)
        expected = (dense / degree.clamp(min=1)[:, None]).t() @ upstream.double()
        close(grad[:50], expected, expected * (2 if dtype == torch.bfloat16 else 1))
        assert not grad[50:].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("features", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_few_features(device, dtype, features, reduce):
    for degrees in (DEGREES, [2000, 0, 1, 4000], [0, 0], [1] * 5000, [30] * 3000):
        graph, dense, degree = make_graph(device, degrees=degrees)
        x = torch.rand(50, features).to(device, dtype)
        expected = dense @ x.double() / (1 if reduce == "sum" else degree.clamp(min=1)[:, None])
        out = neighbor_aggregate(x, graph, reduce=reduce)
        close(out, expected, expected)
        ordered = graph.reorder(order=torch.randperm(len(dense)).to(device))
        assert torch.equal(neighbor_aggregate(x, ordered, reduce=reduce), out)
        wide = torch.cat([x, x], 1)[:, :features]
        assert torch.equal(neighbor_aggregate(wide, graph, reduce=reduce), out)


@pytest.mark.parametrize("device", DEVICES)
def test_what_scales_must_be(device):
    graph, dense, _ = make_graph(device)
    x = torch.rand(50, 8, device=device)
    with pytest.raises(RuntimeError, match=r"scaled_sum: source_scale must be float32 \[50\]"):
        scaled_sum(x, graph, torch.rand(49, device=device))
    with pytest.raises(RuntimeError, match=r"scaled_sum: row_scale must be float32"):
        scaled_sum(x, graph, None, torch.rand(len(dense), device=device).double())
    with pytest.raises(RuntimeError, match=r"scaled_sum: x must have at least 50 rows"):
        scaled_sum(x[:40], graph)
