"""Attention over the neighbours of each node: edge_softmax, neighbor_attention, gatv2_score."""

import torch

from . import _explain, attention_grad, attention_scores
from . import _native as _native
from ._dispatch import reraise
from .graph import Graph

_NO_TRANSPOSE = (None, None, None)


def _check_graph(op: str, graph: object) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(
            f"{op}: graph must be a Graph, got {type(graph).__name__}; "
            "Graph.from_coo(edge_index, num_nodes) makes one"
        )


def _transpose(
    op: str, name: str, graph: Graph, x: torch.Tensor, *others: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    """The transpose where a gradient may need it; the raw op sees the number of sources in it alone."""
    # In the order given: attention does not follow a schedule.
    transpose = None if graph.transpose_for(x, *others) is None else graph.transpose()
    if transpose is None and x.dim() > 0 and x.shape[0] < graph.num_src:
        raise RuntimeError(
            f"{op}: {name} must have at least {graph.num_src} rows (the graph's sources), got {x.shape[0]}"
        )
    return transpose or _NO_TRANSPOSE


def edge_softmax(graph: Graph, scores: torch.Tensor) -> torch.Tensor:
    """Softmax of edge scores over the edges that end in the same node.

    Args:
        graph: on the device of scores.
        scores: [num_edges, heads] or [num_edges], float16, bfloat16, float32 or float64, in the order in
            which the graph was given its edges.

    Returns:
        As scores. 16-bit scores are computed in float32. Differentiable, any number of times.

    Deterministic. Cost: reads the scores once, those of nodes with more than 128 / heads edges up to three
    times; one launch, three where there may be nodes with 512 edges or more; no synchronisation.

    Errors: RuntimeError about sizes, dtypes and devices before anything is launched.

    >>> graph = Graph.from_coo(torch.tensor([[0, 1, 2], [1, 2, 1]]))
    >>> edge_softmax(graph, torch.tensor([0.0, 5.0, 0.0]))
    tensor([0.5000, 1.0000, 0.5000])
    """
    _check_graph("edge_softmax", graph)
    if scores.dim() == 0 or scores.shape[0] != graph.num_edges:
        raise RuntimeError(
            f"edge_softmax: scores must have {graph.num_edges} rows (the number of edges), got shape "
            f"{list(scores.shape)}"
        )
    flat = scores[:, None] if scores.dim() == 1 else scores
    try:
        out = attention_scores.edge_softmax(flat, graph.indptr, graph.edge_ids, graph.promises)
    except RuntimeError as error:
        reraise(error, "edge_softmax", scores=scores)
    return out[:, 0] if scores.dim() == 1 else out


def neighbor_attention(
    x: torch.Tensor, graph: Graph, a_src: torch.Tensor | None = None, a_dst: torch.Tensor | None = None,
    a_edge: torch.Tensor | None = None, *, negative_slope: float = 0.2, dropout: float = 0,
    seed: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """For each node and head, the sum of its sources' features weighted by a softmax over its edges.

        score[e, h] = leaky_relu(a_src[source, h] + a_dst[destination, h] + a_edge[e, h], negative_slope)
        out[d, h] = sum over the edges e that end in d of softmax(score)[e, h] * x[source, h]

    as in GAT (Velickovic and others, 2018). With negative_slope=1 and a_edge alone, a_edge is the score: that
    of GATv2 (gatv2_score) or any other.

    Args:
        x: [num_src, heads, channels], float16, bfloat16, float32 or float64. Rows beyond graph.num_src are
            not read. Rows may lie apart (a slice of the columns of a wider matrix is read where it is).
        graph: who reads whom; on the device of x.
        a_src, a_dst, a_edge: [rows of x, heads], [num_dst, heads], [num_edges, heads] (edges in the order in
            which the graph was given them), in the dtype of x; at least one of them.
        dropout: probability of dropping an alpha; the others are scaled by 1 / (1 - dropout).
        seed: int64 tensor of one element on the device of x; None draws one from PyTorch's generator there.
            An alpha is kept by a hash of (seed, edge, head), so equal seeds drop the same edges.

    Returns:
        [num_dst, heads, channels] in the dtype of x. A node without edges gets 0.

    16-bit tensors are computed in float32. Nothing of size edges * channels is stored, forward or backward:
    the gradient makes the scores again from one number a node and head. Second derivatives work, through
    tensors of size edges * channels.

    Deterministic: a row's bits depend on its own edges, their order, heads and channels alone; gradients are
    gathered through the transposed graph, without atomics.

    Cost: the forward pass reads E * (heads * channels + heads) elements in one pass, and so does the
    gradient. Where a_dst wants a gradient, the part of the result with positive scores is kept for it, 4
    bytes (8 in float64) an element. Workspace for nodes with 512 edges or more; in the gradient 16 bytes (32
    in float64) a destination and head. No synchronisation; the first gradient on a graph builds its transpose
    (see Graph.prepare).

    Errors: RuntimeError about sizes, dtypes and devices before anything is launched.

    >>> graph = Graph.from_coo(torch.tensor([[0, 2], [1, 1]]), 3)
    >>> neighbor_attention(torch.tensor([[[1.0]], [[0.0]], [[3.0]]]), graph, torch.zeros(3, 1))
    tensor([[[0.]],
    <BLANKLINE>
            [[2.]],
    <BLANKLINE>
            [[0.]]])
    """
    return attend(x, graph, (a_src, a_dst, a_edge), negative_slope, dropout, seed)


def attend(
    x: torch.Tensor, graph: Graph, terms: tuple[torch.Tensor | None, ...], negative_slope: float,
    dropout: float, seed: torch.Tensor | None, bias: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """neighbor_attention, plus bias [heads, channels] where it is given: no pass of its own."""
    op = "neighbor_attention"
    _check_graph(op, graph)
    transpose = _transpose(op, "x", graph, x, *terms)
    if dropout > 0 and seed is None:
        seed = torch.randint(2**63 - 1, (), dtype=torch.int64, device=x.device)
    try:
        out = attention_grad.attention(
            (x, *terms), seed, graph.csr, transpose, negative_slope, dropout, graph.promises, bias
        )[0]
    except RuntimeError as error:
        reraise(error, op, x=x, **dict(zip(("a_src", "a_dst", "a_edge"), terms, strict=True)))
    if _explain.enabled:
        _explain.log(op, x, graph)
    return out


def gatv2_score(
    x_src: torch.Tensor, x_dst: torch.Tensor, att: torch.Tensor, graph: Graph,
    edge: torch.Tensor | None = None, *, negative_slope: float = 0.2,
) -> torch.Tensor:  # fmt: skip
    """The scores of GATv2 (Brody, Alon and Yahav, 2022), to be given to neighbor_attention as a_edge.

        score[e, h] = <att[h], leaky_relu(x_src[source, h] + x_dst[destination, h] + edge[e, h])>

    Args:
        x_src, x_dst: [num_src, heads, channels] and [num_dst, heads, channels], float16, bfloat16, float32 or
            float64. Rows of x_src beyond graph.num_src are not read.
        att: [heads, channels]; edge: [num_edges, heads, channels] or None. Dtypes as x_src.

    Returns:
        [num_edges, heads] in the order in which the graph was given its edges. The sums of the two ends are
        never stored, forward or backward (but the gradient in `edge` has the size of edge).

    Deterministic. Cost: reads both rows of an edge once (twice for the gradient). Errors: RuntimeError about
    sizes, dtypes and devices before anything is launched.
    """
    op = "gatv2_score"
    _check_graph(op, graph)
    transpose = _transpose(op, "x_src", graph, x_src, x_dst, att, edge)
    try:
        return attention_scores.gatv2_score(
            (x_src, x_dst, att, edge), graph.csr, transpose, negative_slope, graph.promises
        )
    except RuntimeError as error:
        reraise(error, op, x_src=x_src, x_dst=x_dst, att=att, edge=edge)
