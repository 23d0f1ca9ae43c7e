"""neighbor_aggregate and sddmm against NumPy in float64, and their bits."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from aggregate_cases import DEVICES, FEATURES, TOLERANCE, random_csr, random_graph, raw
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_gpuprims import Graph, neighbor_aggregate
from torch_gpuprims.aggregate import REDUCE


def reference(x, indptr, indices, weight, reduce):
    """(out, arg) in float64, an edge at a time: first NaN, else first extreme; 0 and -1 for empty rows."""
    rows = np.arange(len(indptr) - 1).repeat(np.diff(indptr))
    messages = x[indices] * (1 if weight is None else weight[:, None])
    out = np.zeros((len(indptr) - 1, x.shape[1]))
    arg = np.full(out.shape, -1)
    if reduce in ("sum", "mean"):
        np.add.at(out, rows, messages)
        return out / np.maximum(np.diff(indptr), 1)[:, None] ** (reduce == "mean"), arg
    for row in np.flatnonzero(np.diff(indptr)):
        part = messages[indptr[row] : indptr[row + 1]]
        pick = (
            part.argmax(0) if reduce == "max" else part.argmin(0)
        )  # NumPy: the first NaN, the first extreme
        out[row] = part[pick, np.arange(part.shape[1])]
        arg[row] = pick + indptr[row]
    return out, arg


def check(x, indptr, indices, weight, reduce, index_dtype, device):
    """Through the raw op, with arg, in the index type asked for."""
    out, arg = raw.neighbor_aggregate(
        x.to(device), indptr.to(device, index_dtype), indices.to(device, index_dtype), None,
        None if weight is None else weight.to(device), None, None, None, REDUCE[reduce], True,
    )  # fmt: skip
    numpy = [t.double().numpy() if t is not None else None for t in (x, weight)]
    expected, chosen = reference(numpy[0], indptr.numpy(), indices.numpy(), numpy[1], reduce)
    # Relative to the sum of magnitudes: cancellation is not an error.
    scale, _ = reference(
        np.abs(numpy[0]), indptr.numpy(), indices.numpy(), None if weight is None else np.abs(numpy[1]),
        "sum" if reduce in ("sum", "mean") else "max",
    )  # fmt: skip
    if reduce == "mean":
        scale /= np.maximum(np.diff(indptr.numpy()), 1)[:, None]
    error = np.abs(out.cpu().double().numpy() - expected)
    assert (error <= TOLERANCE[x.dtype] * scale + 1e-300).all()
    assert out.dtype == x.dtype
    if REDUCE[reduce] > 1:
        assert arg.dtype == index_dtype
        if weight is None or x.dtype == torch.float64:  # rounding of the product may make ties
            assert np.array_equal(arg.cpu().numpy(), chosen)


@st.composite
def problems(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    degrees = draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 7, 31, 32, 33, 100]), max_size=20))
    if draw(st.booleans()) and degrees:
        degrees[len(degrees) // 2] = draw(st.sampled_from([1023, 1024, 1535, 1536, 5000]))
    num_src = draw(st.integers(1, 60))
    indptr, indices = random_csr(degrees, num_src, generator)
    features = draw(st.sampled_from(FEATURES))
    dtype = draw(st.sampled_from(list(TOLERANCE)))
    shape = draw(st.sampled_from(["dense", "columns", "rows", "transposed", "broadcast"]))
    wide = torch.randn(num_src, features + 3, generator=generator).to(dtype)
    x = {
        "dense": lambda: wide[:, :features].contiguous(),
        "columns": lambda: wide[:, 1 : features + 1],  # row stride and an odd storage offset
        "rows": lambda: torch.cat([wide, wide])[::2, :features],
        "transposed": lambda: wide[:, :features].t().contiguous().t(),
        "broadcast": lambda: wide[:1, :features].expand(num_src, -1),
    }[shape]()
    weight = torch.randn(len(indices), generator=generator).to(dtype) if draw(st.booleans()) else None
    return x, indptr, indices, weight


@pytest.mark.gpu
@settings(deadline=None, max_examples=150)
@given(problems(), st.sampled_from(list(REDUCE)), st.sampled_from([torch.int32, torch.int64]))
def test_against_numpy(problem, reduce, index_dtype):
    for device in DEVICES:
        check(*problem, reduce, index_dtype, device)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("features", FEATURES)
def test_every_width(features, dtype, device):
    """Each instance of the kernels: aligned, 4-byte and element loads, both index types, every reducer."""
    generator = torch.Generator().manual_seed(0)
    indptr, indices = random_csr([5, 0, 1, 40, 1030, 2], 50, generator)
    wide = torch.randn(50, features + 8, generator=generator).to(dtype)
    weight = torch.randn(len(indices), generator=generator).to(dtype)
    for x in (wide[:, :features].contiguous(), wide[:, :features], wide[:, 1 : features + 1]):
        for reduce in REDUCE:
            check(x, indptr, indices, None, reduce, torch.int32, device)
            check(x, indptr, indices, weight, reduce, torch.int64, device)


def test_features_of_several_tiles(device):
    generator = torch.Generator().manual_seed(0)
    indptr, indices = random_csr([3, 0, 1100, 9], 20, generator)
    for features in (513, 2048):
        x = torch.randn(20, features, generator=generator)
        for reduce in REDUCE:
            check(x, indptr, indices, None, reduce, torch.int32, device)


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_nan_inf_and_ties(reduce, dtype, device):
    nan, inf = float("nan"), float("inf")
    columns = [
        [1, 1, 1, 1], [2, nan, 9, nan], [inf, inf, 1, -inf], [-inf] * 4, [inf] * 4, [-0.0, 0.0, -0.0, 0.0],
        [nan] * 4, [3, 1, 3, 1],
    ]  # fmt: skip
    x = torch.tensor(columns, dtype=dtype).t().contiguous()
    order = torch.arange(4).repeat(300)  # 1200 edges: a hub
    for edges in (torch.arange(4), order):
        out, arg = raw.neighbor_aggregate(
            x.to(device), torch.tensor([0, len(edges)], device=device), edges.to(device), None, None, None,
            None, None, REDUCE[reduce], True,
        )  # fmt: skip
        choose = np.argmax if reduce == "max" else np.argmin
        chosen = [int(choose(np.array(c))) for c in columns]
        assert arg[0].tolist() == chosen
        expected = x[chosen, torch.arange(len(columns))]
        assert torch.equal(out[0].cpu().nan_to_num(99), expected.nan_to_num(99))


@pytest.mark.parametrize("reduce", REDUCE)
def test_empty_rows_give_zero(reduce, device):
    graph = Graph.from_csr(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 2).to(device)
    x = torch.full((2, 5), 7.0, device=device, requires_grad=True)
    out = neighbor_aggregate(x, graph, torch.zeros(0, device=device, requires_grad=True), reduce)
    assert out.eq(0).all()
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_hub_in_16_bits(dtype, device):
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(20_000, 8, generator=generator) + 0.5).to(dtype)
    indptr, indices = torch.tensor([0, 20_000]), torch.arange(20_000)
    graph = Graph.from_csr(indptr, indices, 20_000).to(device)
    for reduce in ("sum", "mean"):
        expected = getattr(x.double(), reduce)(0)
        out = neighbor_aggregate(x.to(device), graph, reduce=reduce)[0].double().cpu()
        assert ((out - expected).abs() / expected).max() <= 0.004


def test_bits_depend_on_the_row_alone(device):
    """Rows that move, with other rows around them, keep their bits; so do runs, and hubs without a list."""
    generator = torch.Generator().manual_seed(0)
    degrees = [0, 3, 17, 600, 1024, 5000, 1, 33] * 4
    indptr, indices = random_csr(degrees, 200, generator)
    rows = [indices[a:b] for a, b in pairwise(indptr)]
    for features, dtype in (
        (7, torch.float32),
        (64, torch.float32),
        (130, torch.bfloat16),
        (1, torch.float64),
    ):
        x = torch.randn(200, features, generator=generator).to(dtype).to(device)
        for reduce in REDUCE:
            graph = Graph.from_csr(indptr, indices, 200).to(device)
            first = neighbor_aggregate(x, graph, reduce=reduce)
            assert torch.equal(first, neighbor_aggregate(x, graph, reduce=reduce))
            order = torch.randperm(len(rows), generator=generator)
            moved_ptr = torch.tensor([0, *(len(rows[i]) for i in order)]).cumsum(0)
            moved = Graph.from_csr(moved_ptr, torch.cat([rows[i] for i in order]), 200).to(device)
            assert torch.equal(neighbor_aggregate(x, moved, reduce=reduce), first[order.to(device)])
            # Alignment and index type change loads, not bits.
            shifted = torch.empty(200, features + 1, dtype=dtype, device=device)[:, 1:].copy_(x)
            assert torch.equal(neighbor_aggregate(shifted, graph, reduce=reduce), first)
            wide = raw.neighbor_aggregate(
                x, indptr.to(device), indices.to(device), None, None, None, None, None, REDUCE[reduce]
            )[0]
            assert torch.equal(wide, first)


def test_dot_bits_do_not_depend_on_alignment(device):
    graph = random_graph(30, 200, device)
    for dtype in TOLERANCE:
        a, b = (torch.randn(30, 97, device=device).to(dtype)[:, :96] for _ in range(2))
        first = raw.sddmm(a.contiguous(), b.contiguous(), *graph.csr)
        assert torch.equal(raw.sddmm(a, b, *graph.csr), first)


@pytest.mark.parametrize("shape", [(6,), (6, 2, 3), (6, 0), (6, 2, 0)])
def test_shapes(shape, device):
    graph = random_graph(6, 25, device)
    x = torch.rand(shape, device=device)
    out = neighbor_aggregate(x, graph)
    assert out.shape == shape
    flat = x.reshape(6, -1) if x.numel() else x.reshape(6, 0)
    assert torch.equal(out.reshape(flat.shape), neighbor_aggregate(flat, graph))


def test_hub_degree_is_the_plan_s():
    plan = Path(__file__).parents[1] / "csrc/aggregate/plan.h"
    chunk = int(re.search(r"kChunk = (\d+);", plan.read_text()).group(1))
    assert "kHubDegree = 2 * kChunk" in plan.read_text()
    from torch_gpuprims.graph import _HUB_DEGREE

    assert 2 * chunk == _HUB_DEGREE


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_more_than_2_31_products():
    """E * F and N * F above 2^31, read, written and differentiated."""
    nodes, features = 2**24 + 3, 136
    src = torch.arange(nodes, device="cuda").flip(0)
    graph = Graph.from_csr(torch.arange(nodes + 1, device="cuda"), src, nodes)
    x = (
        torch.arange(nodes, device="cuda")
        .remainder(1024)
        .half()[:, None]
        .repeat(1, features)
        .requires_grad_()
    )
    out = neighbor_aggregate(x, graph, reduce="max")
    assert torch.equal(out[:, -1], x[:, -1].flip(0))
    out.backward(x.detach())
    assert torch.equal(x.grad[:, -1], x[:, -1].flip(0))
