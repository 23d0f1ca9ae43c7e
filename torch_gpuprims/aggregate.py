"""neighbor_aggregate: sum, mean, max or min over the neighbours of each node; sddmm: a product an edge."""

import math

import torch

from . import _explain, aggregate_grad
from . import _native as _native
from ._dispatch import direct, plain, plain_handle, reraise
from .aggregate_fake import plain_fake, rows_message
from .graph import Graph

REDUCE = {"sum": 0, "mean": 1, "max": 2, "min": 3}
_raw = torch.ops.gpuprims.neighbor_aggregate.default
_call, _ = direct(_raw)
_plain_handle = plain_handle(
    "neighbor_aggregate",
    lambda *args: _raw(*args[:5], None, None, None, args[5], False, *args[6:])[0],
    plain_fake,
)
_NO_TRANSPOSE = (None, None, None, None)


def neighbor_aggregate(
    x: torch.Tensor, graph: Graph, edge_weight: torch.Tensor | None = None, reduce: str = "sum"
) -> torch.Tensor:
    """For each destination node, reduce `edge_weight * x[source]` over its incoming edges.

    Args:
        x: features [num_src, ...] in float16, bfloat16, float32 or float64, of any strides. Rows beyond
            graph.num_src are not read.
        graph: who reads whom; on the device of x.
        edge_weight: [num_edges] in the dtype of x, in the order in which the graph was given its edges; or
            [num_edges, heads], where x is [num_src, heads, ...]: each head has weights of its own.
        reduce: "sum", "mean" (the weighted sum divided by the number of edges), "max" or "min".

    Returns:
        [num_dst, ...] in the dtype of x. A node without edges gets 0. In max and min NaN propagates.

    16-bit features accumulate in float32. The gradient flows to x and edge_weight, twice if asked; for max
    and min to the first edge (in the graph's order) that has the extreme value, or to the first NaN.

    Deterministic: a row's bits depend on its own edges, their order and the number of features alone, not on
    the order in which Graph.reorder has rows walked.

    Cost: reads E * F elements (from L2 where x fits), writes num_dst * F, never stores a message for each
    edge; with weights for each head, a walk over the edges a head; workspace at most E * F / 512
    accumulators, for nodes with 1024 edges or more. One launch, three where there are such nodes, no
    synchronisation; the first gradient on a graph builds its transpose (see Graph.prepare).

    Errors: RuntimeError about sizes, dtypes and devices before anything is launched; ValueError about reduce.

    >>> graph = Graph.from_coo(torch.tensor([[0, 1, 2], [1, 2, 1]]))
    >>> neighbor_aggregate(torch.tensor([[1.0], [2.0], [4.0]]), graph)
    tensor([[0.],
            [5.],
            [2.]])
    """
    code = REDUCE.get(reduce) if isinstance(reduce, str) else None
    if code is None:
        raise ValueError(f"neighbor_aggregate: reduce must be one of {', '.join(REDUCE)}, got {reduce!r}")
    if not isinstance(graph, Graph):
        raise TypeError(
            f"neighbor_aggregate: graph must be a Graph, got {type(graph).__name__}; "
            "Graph.from_coo(edge_index, num_nodes) makes one"
        )
    if x.layout != torch.strided:
        raise RuntimeError("neighbor_aggregate: x must be a dense tensor, got a sparse layout")
    dims = x.dim()
    if dims == 0:
        raise RuntimeError("neighbor_aggregate: x must have at least 1 dimension, got 0")
    rows = x.size(0)
    if edge_weight is not None and edge_weight.dim() == 2 and dims > 2:
        return _by_head(x, graph, edge_weight, reduce)
    flat = x if dims == 2 else x.reshape(rows, math.prod(x.shape[1:]))
    try:
        if plain(x, edge_weight):
            _check_rows(rows, graph)
            indptr, indices, edge_ids, plan = graph._walk or graph.walk()
            out = _call(
                _plain_handle, flat, indptr, indices, edge_ids, edge_weight, code, graph.promises, plan
            )
        else:
            transpose = graph.transpose_for(x, edge_weight)
            if transpose is None:
                _check_rows(rows, graph)
            want_arg = code > 1 and torch.is_grad_enabled()
            out = aggregate_grad.aggregate(
                flat, edge_weight, graph.walk(), transpose or _NO_TRANSPOSE, code, want_arg, graph.promises
            )[0]
    except RuntimeError as error:
        reraise(error, "neighbor_aggregate", edge_weight=edge_weight)
    if _explain.enabled:
        _explain.log("neighbor_aggregate", x, graph, edge_weight, reduce)
    return out if dims == 2 else out.reshape(out.shape[0], *x.shape[1:])


def affine_sum(
    x: torch.Tensor, graph: Graph, scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:  # fmt: skip
    """scale[d] * the sum of x [num_src, features] over the sources of d, + bias [features]. On CUDA, where no
    gradient is wanted and rows are whole vectors, in the pass of the sum."""
    added = bias if bias is None or torch.is_grad_enabled() else bias.detach()
    if x.is_cuda and plain(x, scale, added) and _whole_vectors(x, graph, scale, added):
        _check_rows(x.size(0), graph)
        indptr, indices, edge_ids, plan = graph.walk()
        return torch.ops.gpuprims._neighbor_affine(
            x, indptr, indices, edge_ids, scale, added, graph.promises, plan
        )  # type: ignore[no-any-return]
    out = neighbor_aggregate(x, graph)
    rows = scale.to(out.dtype)[:, None]
    return out * rows if bias is None else torch.addcmul(bias.to(out.dtype), out, rows)


def _whole_vectors(x: torch.Tensor, graph: Graph, scale: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """What the kernel of affine_sum is built for. Addresses are asked for: of no use to a tracer."""
    tensors = [x, scale] if bias is None else [x, scale, bias]
    return (
        all(t.dtype == x.dtype != torch.float64 and t.data_ptr() % 16 == 0 for t in tensors)
        and x.size(1) * x.itemsize % 16 == 0
        and graph.indices.dtype == torch.int32
    )


def _check_rows(rows: int, graph: Graph) -> None:
    """The raw op sees the number of sources in the transpose alone."""
    if rows < graph.num_src:
        raise RuntimeError(rows_message("neighbor_aggregate", "x", graph.num_src, rows))


def _by_head(x: torch.Tensor, graph: Graph, edge_weight: torch.Tensor, reduce: str) -> torch.Tensor:
    """A head's columns are read where they lie: a head costs a walk over the indices and a copy of its
    result."""
    edges, heads = graph.num_edges, x.shape[1]
    if edge_weight.shape[0] != edges or edge_weight.shape[1] != heads:
        raise RuntimeError(
            f"neighbor_aggregate: edge_weight must have shape [{edges}, {heads}] (edges, heads), "
            f"got {list(edge_weight.shape)}"
        )
    if heads == 0:
        return x.new_empty((graph.num_dst, *x.shape[1:]))
    each = [neighbor_aggregate(x[:, h], graph, edge_weight[:, h], reduce) for h in range(heads)]
    return torch.stack(each, 1)


def sddmm(a: torch.Tensor, b: torch.Tensor, graph: Graph) -> torch.Tensor:
    """For each edge the dot product of its two ends: <a[destination], b[source]>.

    Args:
        a, b: [num_dst, features] and [num_src, features] of one dtype: float16, bfloat16, float32 or float64.
            Rows of b beyond graph.num_src are not read.
        graph: on the device of a and b.

    Returns:
        [num_edges] in the dtype of a, in the order in which the graph was given its edges: the gradient of a
        weighted neighbour sum in its weights. 16-bit products are added in float32.

    Gradients of a and b, twice too: neighbour sums over the graph and its transpose (see Graph.prepare).
    Deterministic. Cost: reads 2 * E * F elements, writes E; nothing of size E * F is stored.

    Errors: RuntimeError about sizes, dtypes and devices before anything is launched.

    >>> graph = Graph.from_coo(torch.tensor([[0, 1], [1, 1]]))
    >>> sddmm(torch.tensor([[9.0, 9.0], [1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]), graph)
    tensor([11., 17.])
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"sddmm: graph must be a Graph, got {type(graph).__name__}")
    transpose = graph.transpose_for(a, b)
    if b.dim() > 0 and b.shape[0] < graph.num_src:
        raise RuntimeError(rows_message("sddmm", "b", graph.num_src, b.shape[0]))
    try:
        return aggregate_grad.sddmm(a, b, graph.walk(), transpose or _NO_TRANSPOSE, None, graph.promises)
    except RuntimeError as error:
        reraise(error, "sddmm", a=a, b=b)
