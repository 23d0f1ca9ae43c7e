"""Small attention calls through every kernel: hubs, empty rows, odd widths, dropout; for
compute-sanitizer."""

import torch

from bench.aggregate_sanitize import small_graph
from torch_gpuprims import Graph, edge_softmax, gatv2_score, neighbor_attention, nn

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SIZES = ((1, 1), (4, 16), (3, 5), (1, 200), (9, 4))  # heads, channels
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def compare(run, leaves: list[torch.Tensor], graph: Graph, on_gpu: Graph) -> None:
    """Forward and backward against the CPU kernels; run(graph, *leaves)."""
    near = [t.clone().requires_grad_() for t in leaves]
    far = [t.cuda().requires_grad_() for t in leaves]
    out, got = run(graph, *near), run(on_gpu, *far)
    grad = torch.ones_like(out)
    pairs = [(got, out)]
    if out.dtype is not torch.float16:  # a hub's sums of gradients leave its range
        theirs = torch.autograd.grad(out, near, grad)
        pairs += zip(torch.autograd.grad(got, far, grad.cuda()), theirs, strict=True)
    for a, b in pairs:
        scale = 1 + float(b.detach().float().abs().max()) if b.numel() else 1.0
        assert ((a.cpu() - b).abs() <= TOLERANCE.get(out.dtype, 4e-2) * scale).all(), (
            run,
            out.dtype,
            b.shape,
        )


def hostile() -> None:
    """Raw ops given offsets that are no offsets: they must stay inside every buffer."""
    rows, edges = 40, 64
    x, term = torch.randn(rows, 2, 20), torch.randn(rows, 2)
    a_edge, indices = torch.randn(edges, 2), torch.arange(edges) % rows
    outside = indices.clone()
    outside[3], outside[9] = -1, 1 << 40
    good = torch.linspace(0, edges, rows + 1).long()
    ids = torch.arange(edges).flip(0)
    bad_ids = ids.clone()
    bad_ids[5], bad_ids[6] = -3, 1 << 40
    cases = [
        (torch.tensor([0, edges] * (rows // 2) + [0]), indices, None),
        (torch.arange(rows + 1) - 5, indices, ids),
        (torch.arange(rows + 1) * (1 << 40), indices, None), (good, outside, ids), (good, indices, bad_ids),
    ]  # fmt: skip
    op = torch.ops.gpuprims
    for graph in cases:
        csr = tuple(None if t is None else t.cuda() for t in graph)
        terms = [t.cuda() for t in (x, term, term, a_edge)]
        args = (*terms, None, *csr, *csr)
        out, lse, _ = op.neighbor_attention(*args)
        op.neighbor_attention_grad(torch.ones_like(out), None, out, lse, *args)
        alpha = op.edge_softmax(terms[3], csr[0], csr[2])
        op.edge_softmax_grad(terms[3], alpha, csr[0], csr[2])
        v2 = (terms[0], terms[0], terms[0][0].contiguous(), None, *csr, *csr)
        op.gatv2_score(*v2)
        op.gatv2_score_grad(terms[3], *v2)
        torch.cuda.synchronize()


def run() -> None:
    g = torch.Generator().manual_seed(2)
    indptr, indices = small_graph(rows=120, hub=1300)
    rows, edges = len(indptr) - 1, len(indices)
    ids = torch.randperm(edges, generator=g)
    graph = Graph.from_csr(indptr, indices, rows, ids)
    on_gpu = Graph.from_csr(indptr.cuda(), indices.cuda(), rows, ids.cuda())
    seed = torch.tensor(5)
    for dtype in DTYPES:
        for heads, channels in SIZES:
            shapes = [(rows, heads, channels), (rows, heads), (rows, heads), (edges, heads)]
            leaves = [torch.randn(shape, generator=g).to(dtype) for shape in shapes]

            def attend(where, x, *terms):
                return neighbor_attention(x, where, *terms, dropout=0.3, seed=seed.to(x.device))

            compare(attend, leaves, graph, on_gpu)
            compare(lambda where, x, a_src: neighbor_attention(x, where, a_src), leaves[:2], graph, on_gpu)
            compare(edge_softmax, leaves[3:], graph, on_gpu)
            more = [
                torch.randn(heads, channels, generator=g),
                torch.randn(edges, heads, channels, generator=g),
            ]
            v2 = [leaves[0], leaves[0].flip(0), *(t.to(dtype) for t in more)]
            compare(lambda where, a, b, att, e: gatv2_score(a, b, att, where, e), v2, graph, on_gpu)
    hostile()
    x = torch.randn(rows, 6, generator=g).cuda()
    for layer in (nn.GATConv(6, 4, 2), nn.GATv2Conv(6, 4, 2), nn.SAGEConv(6, 4, aggr="max")):
        layer.cuda()(x, on_gpu).sum().backward()
