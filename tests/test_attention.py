"""neighbor_attention, edge_softmax and gatv2_score against scatter formulas in float64."""

import pytest
import torch

from torch_gpuprims import Graph, edge_softmax, gatv2_score, neighbor_attention
from torch_gpuprims.attention import attend
from torch_gpuprims.attention_edges import dropout_factors

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
#: Relative to the largest magnitude of the result.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SIZES = [(1, 1), (4, 16), (3, 5), (1, 7), (8, 8), (2, 130), (1, 300), (33, 2)]


def make(device, nodes=40, sources=None, edges=300, hub=0, seed=0):
    """(edge_index, Graph): shuffled edges, nodes 0 to 4 without any, `hub` more edges into node 7."""
    g = torch.Generator().manual_seed(seed)
    sources = sources or nodes
    src = torch.randint(sources, (edges + hub,), generator=g)
    dst = torch.randint(5, nodes, (edges + hub,), generator=g)
    dst[:hub] = 7
    order = torch.randperm(edges + hub, generator=g)
    ends = torch.stack([src, dst])[:, order].to(device)
    return ends, Graph.from_coo(ends, num_src=sources, num_dst=nodes)


def softmax(scores, dst, rows):
    index = dst[:, None].expand(-1, scores.shape[1])
    most = scores.new_full((rows, scores.shape[1]), -torch.inf).scatter_reduce(0, index, scores, "amax")
    weight = (scores - most.detach()[dst]).exp()
    return weight / scores.new_zeros(rows, scores.shape[1]).index_add(0, dst, weight)[dst]


def attention(ends, rows, x, a_src, a_dst, a_edge, slope=0.2, factor=1.0):
    raw = sum(t for t in (
        None if a_src is None else a_src[ends[0]], None if a_dst is None else a_dst[ends[1]], a_edge
    ) if t is not None)  # fmt: skip
    alpha = softmax(torch.nn.functional.leaky_relu(raw, slope), ends[1], rows) * factor
    return x.new_zeros(rows, *x.shape[1:]).index_add(0, ends[1], alpha[..., None] * x[ends[0]])


def draw(shape, device, dtype, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=torch.float64).to(device, dtype)


def terms(ends, graph, heads, channels, device, dtype):
    sources, rows, edges = graph.num_src, graph.num_dst, ends.shape[1]
    shapes = (sources, heads, channels), (sources, heads), (rows, heads), (edges, heads)
    return [draw(shape, device, dtype, i) for i, shape in enumerate(shapes)]


def close(got, expected, dtype):
    for a, e in zip(got, expected, strict=True):
        assert a.dtype == dtype
        bound = TOLERANCE[dtype] * (1 + e.abs().max().item() if e.numel() else 1)
        assert a.double().sub(e).abs().le(bound).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hub", [0, 2600])
def test_attention_and_its_gradient(dtype, hub, device):
    for number, (heads, channels) in enumerate(SIZES):
        ends, graph = make(device, sources=60, hub=hub, seed=number)
        parts = terms(ends, graph, heads, channels, device, dtype)
        present = [True, number % 2 == 0, number % 3 != 1, number % 4 != 2]
        if not any(present[1:]):
            present[1] = True
        given = [p.requires_grad_() if there else None for p, there in zip(parts, present, strict=True)]
        wide = [None if t is None else t.detach().double().requires_grad_() for t in given]
        out, expected = neighbor_attention(given[0], graph, *given[1:]), attention(ends, 40, *wide)
        close([out], [expected], dtype)
        up = draw(out.shape, device, dtype, 9)
        leaves, far = ([t for t in ts if t is not None] for ts in (given, wide))
        got = torch.autograd.grad(out, leaves, up)
        close(got, torch.autograd.grad(expected, far, up.double()), dtype)
        assert out[:5].eq(0).all()  # nodes without edges


def test_heads_in_slices_of_wider_rows(device):
    _, graph = make(device)
    wide = draw((40, 4 * 16 + 8), device, torch.float32, 1)
    x, a_src, a_dst = wide[:, :64].view(40, 4, 16), wide[:, 64:68], wide[:, 68:]
    whole = [t.contiguous() for t in (x, a_src, a_dst)]
    assert torch.equal(
        neighbor_attention(x, graph, a_src, a_dst), neighbor_attention(whole[0], graph, *whole[1:])
    )
    shifted = torch.cat([wide[:, :1], wide], 1)[:, 1:]  # rows at odd addresses: the same bits
    odd = shifted[:, :64].unflatten(1, (4, 16)), shifted[:, 64:68], shifted[:, 68:]
    assert torch.equal(
        neighbor_attention(odd[0], graph, *odd[1:]), neighbor_attention(whole[0], graph, *whole[1:])
    )


def test_rows_beyond_the_sources_are_not_read(device):
    _, graph = make(device)
    x = draw((50, 2, 3), device, torch.float64, 1)
    x[40:] = torch.nan
    x.requires_grad_()
    a_src = draw((50, 2), device, torch.float64, 2).requires_grad_()
    out = neighbor_attention(x, graph, a_src)
    assert out.isfinite().all()
    for grad in torch.autograd.grad(out.sum(), (x, a_src)):
        assert grad[40:].eq(0).all() and grad.shape[0] == 50


@pytest.mark.parametrize("hub", [0, 1500])
def test_dropout(hub, device):
    ends, graph = make(device, edges=2000, hub=hub)
    parts = terms(ends, graph, 4, 8, device, torch.float64)
    seed = torch.tensor(1234, device=device)
    leaves = [p.requires_grad_() for p in parts]
    out = neighbor_attention(leaves[0], graph, *leaves[1:], dropout=0.3, seed=seed)
    factor = dropout_factors(seed, ends.shape[1], 4, 0.3)
    assert 0.65 < factor.gt(0).double().mean() < 0.75
    expected = attention(ends, 40, *leaves, factor=factor)
    torch.testing.assert_close(out, expected)
    for a, b in zip(
        torch.autograd.grad(out.sin().sum(), leaves),
        torch.autograd.grad(expected.sin().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        again = neighbor_attention(leaves[0], graph, *leaves[1:], dropout=0.3, seed=seed)
        assert torch.equal(again, out)
        torch.manual_seed(3)
        first = neighbor_attention(leaves[0], graph, *leaves[1:], dropout=0.3)
        second = neighbor_attention(leaves[0], graph, *leaves[1:], dropout=0.3)
        torch.manual_seed(3)
        assert torch.equal(neighbor_attention(leaves[0], graph, *leaves[1:], dropout=0.3), first)
        assert not torch.equal(first, second)
        assert neighbor_attention(leaves[0], graph, *leaves[1:], dropout=1.0).eq(0).all()


def test_dropout_is_repeated_by_checkpointing(device):
    ends, graph = make(device)
    parts = [p.requires_grad_() for p in terms(ends, graph, 2, 4, device, torch.float64)]

    def run(*tensors):
        return neighbor_attention(tensors[0], graph, *tensors[1:], dropout=0.5).sin().sum()

    results = []
    for checkpointed in (False, True):
        torch.manual_seed(5)
        loss = (
            torch.utils.checkpoint.checkpoint(run, *parts, use_reentrant=False)
            if checkpointed
            else run(*parts)
        )
        results.append(torch.autograd.grad(loss, parts))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_special_scores(device):
    graph = Graph.from_coo(torch.tensor([[0, 1, 2, 0, 1, 0, 1], [0, 0, 0, 1, 1, 2, 2]], device=device), 3)
    x = torch.tensor([[[1.0]], [[2.0]], [[5.0]]], device=device)
    inf, nan = torch.inf, torch.nan
    scores = torch.tensor([[-inf], [1.0], [-inf], [nan], [0.0], [-inf], [-inf]], device=device)
    out = neighbor_attention(x, graph, a_edge=scores, negative_slope=1.0)[:, 0, 0]
    assert out[0] == 2 and out[1].isnan() and out[2].isnan()  # as torch.softmax has it
    large = torch.tensor([[3e4], [3e4], [-3e4], [1e38], [0.0], [-1e38], [-1e38]], device=device)
    out = neighbor_attention(x, graph, a_edge=large, negative_slope=1.0)[:, 0, 0]
    torch.testing.assert_close(out, torch.tensor([1.5, 1.0, 1.5], device=device))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hub", [0, 2600])
@pytest.mark.parametrize("heads", [1, 4, 7, 40])
def test_edge_softmax(dtype, hub, heads, device):
    ends, graph = make(device, hub=hub)
    scores = (3 * draw((ends.shape[1], heads), device, dtype, 1)).requires_grad_()
    wide = scores.detach().double().requires_grad_()
    out, expected = edge_softmax(graph, scores), softmax(wide, ends[1], 40)
    close([out], [expected], dtype)
    up = draw(out.shape, device, dtype, 2)
    close(torch.autograd.grad(out, scores, up), torch.autograd.grad(expected, wide, up.double()), dtype)
    if heads == 1:
        assert torch.equal(edge_softmax(graph, scores[:, 0]), out[:, 0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hub", [0, 2600])
def test_gatv2_score(dtype, hub, device):
    for number, (heads, channels) in enumerate(SIZES):
        ends, graph = make(device, sources=60, hub=hub, seed=number)
        shapes = [(60, heads, channels), (40, heads, channels), (heads, channels)]
        if number % 2:
            shapes.append((ends.shape[1], heads, channels))
        tensors = [draw(s, device, dtype, i).requires_grad_() for i, s in enumerate(shapes)]
        wide = [t.detach().double().requires_grad_() for t in tensors]
        out = gatv2_score(*tensors[:3], graph, *tensors[3:])
        z = wide[0][ends[0]] + wide[1][ends[1]] + (wide[3] if number % 2 else 0)
        expected = (torch.nn.functional.leaky_relu(z, 0.2) * wide[2]).sum(-1)
        close([out], [expected], dtype)
        up = draw(out.shape, device, dtype, 7)
        got, want = torch.autograd.grad(out, tensors, up), torch.autograd.grad(expected, wide, up.double())
        slack = torch.float16 if dtype == torch.float16 else dtype
        for a, e in zip(got, want, strict=True):  # att's gradient is a long sum of rounded rows
            bound = 4 * TOLERANCE[slack] * (1 + e.abs().max().item())
            assert a.double().sub(e).abs().le(bound).all()


def test_bits_depend_on_nothing_else(device):
    """Equal bits over runs, and whatever the other rows, index types and promises are."""
    ends, graph = make(device, hub=1300)
    x, a_src, a_dst, a_edge = terms(ends, graph, 4, 16, device, torch.float32)
    first = neighbor_attention(x, graph, a_src, a_dst, a_edge)
    for _ in range(3):
        assert torch.equal(neighbor_attention(x, graph, a_src, a_dst, a_edge), first)
    wide = tuple(None if t is None else t.long() for t in graph.csr)
    raw = torch.ops.gpuprims.neighbor_attention(x, a_src, a_dst, a_edge, None, *wide)[0]
    assert torch.equal(raw, first)
    keep = ends[1] >= 7  # node 7 is the hub
    part = Graph.from_coo(ends[:, keep], num_src=40, num_dst=40)
    assert torch.equal(neighbor_attention(x, part, a_src, a_dst, a_edge[keep])[7:], first[7:])


def test_bad_data_of_the_raw_op_fills_with_nan(device):
    x, term = torch.ones(4, 1, 2, device=device), torch.zeros(4, 1, device=device)
    good = torch.tensor([0, 1, 2, 3, 4], device=device)
    for indptr, indices, rows in (
        ([0, 9, 1, 2, 4], [0, 1, 2, 3], [0, 1, 2, 3]), ([1, 1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3]),
        ([0, 1, 2, 3, 4], [0, -1, 2, 99], [1, 3]),
    ):  # fmt: skip
        offsets, nodes = (torch.tensor(t, device=device) for t in (indptr, indices))
        out, lse, _ = torch.ops.gpuprims.neighbor_attention(x, term, None, None, None, offsets, nodes)
        for result in (out[:, 0, 0], lse[:, 0]):
            assert result.isnan().nonzero()[:, 0].tolist() == rows
        alpha = torch.ops.gpuprims.edge_softmax(term, offsets)
        assert alpha.isnan().all() if len(rows) == 4 else alpha.eq(1).all()
    assert torch.ops.gpuprims.edge_softmax(term, good).eq(1).all()


def test_wrapper_errors(device):
    _, graph = make(device)
    x, term = torch.ones(39, 2, 3, device=device), torch.ones(39, 2, device=device)
    with pytest.raises(RuntimeError, match=r"x must have at least 40 rows \(the graph's sources\), got 39"):
        neighbor_attention(x, graph, term)
    with pytest.raises(TypeError, match="neighbor_attention: graph must be a Graph, got Tensor"):
        neighbor_attention(x, x, term)
    with pytest.raises(RuntimeError, match="edge_softmax: scores must have 300 rows"):
        edge_softmax(graph, term)
    with pytest.raises(RuntimeError, match="gatv2_score: x_dst must have shape"):
        gatv2_score(torch.ones(40, 2, 3, device=device), x, torch.ones(2, 3, device=device), graph)
    with pytest.raises(TypeError, match="edge_softmax: graph must be a Graph, got Tensor"):
        edge_softmax(term, graph)
    with pytest.raises(RuntimeError, match=r"edge_softmax: scores must be float16, .*, got int32"):
        edge_softmax(graph, torch.ones(300, dtype=torch.int32, device=device))


def test_sparse_tensors_and_other_devices_are_refused_by_name(device):
    _, graph = make(device)
    x, att = torch.ones(40, 2, 3, device=device), torch.ones(2, 3, device=device)
    term, scores = torch.ones(40, 2, device=device), torch.ones(300, 2, device=device)
    for words, run in (
        ("neighbor_attention: x {}", lambda move: neighbor_attention(move(x), graph, term)),
        ("neighbor_attention: a_src {}", lambda move: neighbor_attention(x, graph, move(term))),
        ("neighbor_attention: a_dst {}", lambda move: neighbor_attention(x, graph, term, move(term))),
        ("neighbor_attention: a_edge {}", lambda move: neighbor_attention(x, graph, a_edge=move(scores))),
        ("edge_softmax: scores {}", lambda move: edge_softmax(graph, move(scores))),
        ("gatv2_score: x_src {}", lambda move: gatv2_score(move(x), x, att, graph)),
        ("gatv2_score: x_dst {}", lambda move: gatv2_score(x, move(x), att, graph)),
        ("gatv2_score: att {}", lambda move: gatv2_score(x, x, move(att), graph)),
    ):
        with pytest.raises(RuntimeError) as error:
            run(lambda t: t.to_sparse())
        assert str(error.value) == words.format("must be a dense tensor, got a sparse layout")
        with pytest.raises(RuntimeError, match="must be on the device of"):
            run(lambda t: t.to("meta"))
    with pytest.raises(RuntimeError, match="neighbor_attention: seed must be on the device of x"):
        neighbor_attention(
            x, graph, term, dropout=0.5, seed=torch.zeros((), dtype=torch.int64, device="meta")
        )


def test_no_tensor_of_edges_times_channels(device):
    """Forward and backward peak below one message matrix."""
    if device == "cpu":
        pytest.skip("PyTorch counts no CPU memory")
    ends, graph = make(device, nodes=20_000, edges=2_000_000)
    graph.prepare()
    parts = [p.requires_grad_() for p in terms(ends, graph, 4, 16, device, torch.float32)[:3]]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(neighbor_attention(parts[0], graph, *parts[1:]).sum(), parts)
    assert torch.cuda.max_memory_allocated() - before < 2_000_000 * 64 * 4 / 8


@pytest.mark.parametrize("sizes", [(4, 16), (3, 5), (2, 200)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_bias_is_added_within(sizes, dtype, device):
    """The same result and gradients as an addition behind it; rows without edges have the bias alone."""
    ends, graph = make(device, edges=400, hub=700)
    heads, channels = sizes
    leaves = [t.requires_grad_() for t in terms(ends, graph, heads, channels, device, dtype)]
    bias = draw((heads, channels), device, dtype, 9).requires_grad_()
    out = attend(leaves[0], graph, tuple(leaves[1:]), 0.2, 0.0, None, bias)
    behind = neighbor_attention(leaves[0], graph, *leaves[1:]) + bias
    close([out], [behind.detach().double()], dtype)
    assert torch.equal(out[:5], bias.expand(5, -1, -1))
    grad = draw(out.shape, device, dtype, 10)
    got, expected = (torch.autograd.grad(o, [*leaves, bias], grad) for o in (out, behind))
    close(got, [g.double() for g in expected], dtype)


def test_bias_of_16_bit_features_is_refused(device):
    ends, graph = make(device)
    x, a_src, *_ = terms(ends, graph, 2, 4, device, torch.bfloat16)
    with pytest.raises(RuntimeError, match="neighbor_attention: bias must be None where x is bfloat16"):
        attend(x, graph, (a_src, None, None), 0.2, 0.0, None, x[0])


def test_second_derivatives_without_edges(device):
    graph = Graph.from_coo(torch.empty(2, 0, dtype=torch.int64, device=device), 3)
    x = torch.rand(3, 2, 4, dtype=torch.float64, device=device, requires_grad=True)
    a = torch.rand(3, 2, dtype=torch.float64, device=device, requires_grad=True)
    att = torch.rand(2, 4, dtype=torch.float64, device=device, requires_grad=True)
    edge = torch.rand(0, 2, dtype=torch.float64, device=device)
    outs = neighbor_attention(x, graph, a, a), gatv2_score(x, x, att, graph), edge_softmax(graph, edge)
    assert [list(out.shape) for out in outs] == [[3, 2, 4], [0, 2], [0, 2]]
    for out, inputs in zip(outs[:2], ((x, a), (x, att)), strict=True):
        first = torch.autograd.grad(out.sin().sum(), inputs, create_graph=True)
        for grad in torch.autograd.grad(sum(f.sin().sum() for f in first), inputs, allow_unused=True):
            assert grad is None or grad.eq(0).all()


def test_more_edges_than_32_bits_name_are_refused(device):
    """By the gradient alone, before anything is read: its kernels keep an edge's id in 32 bits."""
    edges = 2**32 - 1
    x, lse = torch.rand(1, 1, 1, device=device), torch.rand(1, 1, device=device)
    indptr = torch.tensor([0, edges], device=device)
    indices = torch.zeros(1, dtype=torch.int32, device=device).expand(edges)
    with pytest.raises(RuntimeError, match="must have fewer than 4294967295 edges, got 4294967295"):
        torch.ops.gpuprims.neighbor_attention_grad(
            x, None, x, lse, x, lse, None, None, None, indptr, indices, wanted=0
        )
    meta = [t.to("meta") for t in (x, lse, indptr)]
    with pytest.raises(RuntimeError, match="must have fewer than 4294967295 edges, got 4294967295"):
        torch.ops.gpuprims.neighbor_attention_grad(
            meta[0], None, meta[0], meta[1], meta[0], meta[1], None, None, None, meta[2],
            torch.empty(edges, dtype=torch.int32, device="meta"), wanted=0,
        )  # fmt: skip
