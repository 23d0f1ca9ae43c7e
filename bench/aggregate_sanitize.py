"""Small aggregations through every kernel: hubs, empty rows, odd widths; for compute-sanitizer."""

import torch

import torch_gpuprims.nn
from torch_gpuprims import Graph, neighbor_aggregate

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
WIDTHS = (1, 3, 16, 64, 130)
REDUCES = ("sum", "mean", "max", "min")


def small_graph(rows: int = 300, hub: int = 2500) -> tuple[torch.Tensor, torch.Tensor]:
    """CSR with empty rows, short rows and one row that is cut into chunks."""
    g = torch.Generator().manual_seed(1)
    degree = torch.randint(0, 9, (rows,), generator=g)
    degree[7] = hub
    degree[-3:] = 0
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    return indptr, torch.randint(rows, (int(indptr[-1]),), generator=g)


def check(x: torch.Tensor, graph: Graph, on_gpu: Graph, weight: torch.Tensor | None, reduce: str) -> None:
    """Forward and backward against the CPU kernels."""
    leaves = [t.clone().requires_grad_() for t in (x, weight) if t is not None]
    remote = [t.detach().cuda().requires_grad_() for t in leaves]
    out = neighbor_aggregate(leaves[0], graph, leaves[1] if weight is not None else None, reduce)
    got = neighbor_aggregate(remote[0], on_gpu, remote[1] if weight is not None else None, reduce)
    pairs = [(got, out)]
    if x.dtype is not torch.float16:  # a hub's sum of gradients leaves its range
        grad = torch.ones_like(out)
        far = torch.autograd.grad(got, remote, grad.cuda())
        pairs += zip(far, torch.autograd.grad(out, leaves, grad), strict=True)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4}.get(x.dtype, 3e-2)
    for a, b in pairs:
        scale = 1 + float(b.detach().float().abs().max()) if b.numel() else 1.0
        assert ((a.cpu() - b).abs() <= tolerance * scale).all(), (x.dtype, x.shape, reduce)


def hostile(x: torch.Tensor) -> None:
    """Raw ops given offsets that are no offsets: they must stay inside every buffer."""
    rows, edges = 40, 64
    indices = torch.arange(edges) % x.shape[0]
    up_and_down = torch.tensor([0, edges] * (rows // 2) + [0])
    negative = torch.arange(rows + 1) - 5
    huge = torch.arange(rows + 1) * (1 << 40)
    good = torch.linspace(0, edges, rows + 1).long()
    outside = indices.clone()
    outside[3], outside[9] = -1, 1 << 40
    for indptr, ids in [(up_and_down, indices), (negative, indices), (huge, indices), (good, outside)]:
        for reduce in range(len(REDUCES)):
            op = torch.ops.gpuprims.neighbor_aggregate
            op(x.cuda(), indptr.cuda(), ids.cuda(), reduce=reduce, want_arg=reduce > 1)
        torch.cuda.synchronize()


def run() -> None:
    g = torch.Generator().manual_seed(2)
    indptr, indices = small_graph()
    rows, edges = len(indptr) - 1, len(indices)
    for ids in (indices, indices.int()):
        graph = Graph.from_csr(indptr, ids, num_src=rows)
        on_gpu = Graph.from_csr(indptr.cuda(), ids.cuda(), num_src=rows)
        for dtype in DTYPES:
            for width in WIDTHS:
                x = torch.randn(rows, width, generator=g).to(dtype)
                weight = torch.randn(edges, generator=g).to(dtype)
                for reduce in REDUCES:
                    check(x, graph, on_gpu, None, reduce)
                    check(x, graph, on_gpu, weight, reduce)
    hostile(torch.randn(rows, 20, generator=g))
    x = torch.randn(rows, 130, generator=g)
    for method in ("community", "bfs", "degree"):
        ordered = on_gpu.reorder(method).prepare()
        for reduce in REDUCES:
            check(x, graph, ordered, torch.rand(edges, generator=g), reduce)
    layer = torch_gpuprims.nn.GCNConv(5, 3).cuda()
    layer(torch.randn(rows, 5, generator=g).cuda(), on_gpu).sum().backward()
