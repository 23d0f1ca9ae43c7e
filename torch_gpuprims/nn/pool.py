"""Pooling of graphs: over all nodes of each graph, and to the best-scored nodes."""

import math
from collections.abc import Callable
from typing import Any

import torch

from ..aggregate import neighbor_aggregate
from ..aggregate_csr import check_range
from ..attention import edge_softmax
from ..graph import Graph
from ..segments import Segments
from ..topk_segment import segment_topk
from ._edges import cached, check_matrix


def batch_graph(batch: torch.Tensor, size: int | None = None) -> Graph:
    """The graph in which the nodes are the sources of the graph that `batch` puts them in; kept while the
    tensor lives unchanged. batch: int64 [num_nodes], in any order; size: the number of graphs, by default the
    last + 1."""

    def build() -> Graph:
        count = (int(batch.max()) + 1 if len(batch) else 0) if size is None else size
        nodes = torch.arange(len(batch), device=batch.device)
        return Graph.from_coo((nodes, batch), num_src=len(batch), num_dst=count)

    return cached(batch, ("batch", size), build)


def _pool(x: torch.Tensor, batch: torch.Tensor | None, size: int | None, reduce: str) -> torch.Tensor:
    if x.dim() not in (1, 2):  # PyG pools the last dimension but one
        raise RuntimeError(f"global pooling: x must have 1 or 2 dimensions [nodes, channels], got {x.dim()}")
    if batch is not None:
        if batch.dim() != 1 or len(batch) != x.shape[0]:
            shape = list(batch.shape)
            raise RuntimeError(f"global pooling: batch must have shape [{x.shape[0]}] (nodes), got {shape}")
        return neighbor_aggregate(x, batch_graph(batch, size), reduce=reduce)
    # Not amax, which shares the gradient out among equal nodes.
    return x.max(0, keepdim=True).values if reduce == "max" else getattr(x, reduce)(0, keepdim=True)


def global_add_pool(x: torch.Tensor, batch: torch.Tensor | None, size: int | None = None) -> torch.Tensor:
    """The sum of each graph's nodes: x [num_nodes, channels], batch [num_nodes] -> [size, channels].

    Without batch all nodes are one graph. A graph without nodes gets 0. Deterministic. The first call with a
    batch reads its largest element where size is not given (a wait for the device), sorts it, and keeps that.

    Errors: RuntimeError where batch is not one number a node, ValueError that names the first outside of
    [0, size).
    """
    return _pool(x, batch, size, "sum")


def global_mean_pool(x: torch.Tensor, batch: torch.Tensor | None, size: int | None = None) -> torch.Tensor:
    """The mean of each graph's nodes; as global_add_pool."""
    return _pool(x, batch, size, "mean")


def global_max_pool(x: torch.Tensor, batch: torch.Tensor | None, size: int | None = None) -> torch.Tensor:
    """The maximum of each graph's nodes; as global_add_pool. The gradient goes to the first of equal
    nodes."""
    return _pool(x, batch, size, "max")


class _Select(torch.nn.Module):
    """The scoring vector, under PyG's name."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(1, in_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.weight.shape[1])
        torch.nn.init.uniform_(self.weight, -bound, bound)


_ACTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "softmax": lambda score: torch.softmax(score, -1),
}


class TopKPooling(torch.nn.Module):
    """Keeps the best-scored nodes of each graph (Gao and Ji, 2019), with PyG's arguments, state and results.

    State: select.weight [1, in_channels], uniform within 1 / sqrt(in_channels).

    Args:
        ratio: the share of a graph's nodes to keep (rounded up), or from 1 on their number.
        min_score: instead keep nodes whose score, a softmax over their graph, is greater (or the graph's
        best). nonlinearity: "tanh", "sigmoid", "relu" or a function.

    Of equal scores the lower node is kept (PyG leaves that open). Errors: RuntimeError about sizes;
    ValueError where batch falls, or an edge names no node, with the first such entry.
    """

    def __init__(
        self, in_channels: int, ratio: float = 0.5, min_score: float | None = None, multiplier: float = 1.0,
        nonlinearity: str | Callable[[torch.Tensor], torch.Tensor] = "tanh",
    ) -> None:  # fmt: skip
        super().__init__()
        if isinstance(nonlinearity, str) and nonlinearity not in _ACTS:
            known = ", ".join(_ACTS)
            raise ValueError(
                f"TopKPooling: nonlinearity must be a function or one of {known}, got {nonlinearity!r}"
            )
        self.in_channels, self.ratio, self.min_score, self.multiplier = (
            in_channels,
            ratio,
            min_score,
            multiplier,
        )
        self.act = _ACTS[nonlinearity] if isinstance(nonlinearity, str) else nonlinearity
        self.select = _Select(in_channels)

    def reset_parameters(self) -> None:
        self.select.reset_parameters()

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor | None = None,
        batch: torch.Tensor | None = None, attn: torch.Tensor | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """(x, edge_index, edge_attr, batch, perm, score) of the nodes kept: perm says which they were, graph
        by graph from the best. batch must not decrease. Waits for the device: the sizes depend on the
        data."""
        check_matrix(self, x)
        nodes = x.shape[0]
        if batch is None:
            batch = edge_index.new_zeros(nodes)
        if batch.dim() != 1 or len(batch) != nodes:
            raise RuntimeError(
                f"TopKPooling: batch must have shape [{nodes}] (nodes), got {list(batch.shape)}"
            )
        for name, ends in (("source", edge_index[0]), ("destination", edge_index[1])):
            check_range(name, ends, nodes)
        values = x if attn is None else attn
        values = values.view(-1, 1) if values.dim() == 1 else values
        check_matrix(self, values)
        if values.shape[1] != self.in_channels:
            raise RuntimeError(f"TopKPooling: x must have {self.in_channels} channels, got {values.shape[1]}")
        score = (values * self.select.weight).sum(-1)
        segments = Segments.from_ids(batch)
        if self.min_score is None:
            score = self.act(score / self.select.weight.norm(dim=-1))
            perm = self._best(score.detach(), segments)
        else:
            score = edge_softmax(batch_graph(batch), score)
            perm = self._above(score.detach(), segments, batch)
        kept = score[perm]
        out = x[perm] * kept[:, None]
        out = out if self.multiplier == 1 else self.multiplier * out
        edge_index, edge_attr = _filter(edge_index, edge_attr, perm, x.shape[0])
        return out, edge_index, edge_attr, batch[perm], perm, kept

    def _best(self, score: torch.Tensor, segments: Segments) -> torch.Tensor:
        lengths = segments.lengths()
        if self.ratio >= 1:
            count = lengths.clamp(max=int(self.ratio))
        else:
            count = (float(self.ratio) * lengths.to(score.dtype)).ceil().to(lengths.dtype)
        width = int(count.max()) if len(count) else 0
        indices = segment_topk(score, segments, count, max_k=width).indices
        return indices[indices >= 0]

    def _above(self, score: torch.Tensor, segments: Segments, batch: torch.Tensor) -> torch.Tensor:
        assert self.min_score is not None
        best = segment_topk(score, segments, 1).values[:, 0][batch] - 1e-7
        return (score > best.clamp(max=self.min_score)).nonzero()[:, 0]

    def __repr__(self) -> str:
        what = f"ratio={self.ratio}" if self.min_score is None else f"min_score={self.min_score}"
        return f"TopKPooling({self.in_channels}, {what}, multiplier={self.multiplier})"


def _filter(
    edge_index: torch.Tensor, edge_attr: torch.Tensor | None, perm: torch.Tensor, nodes: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The edges between nodes that were kept, by their new numbers."""
    number = perm.new_full((nodes,), -1)
    number[perm] = torch.arange(len(perm), device=perm.device)
    ends = number[edge_index]
    kept = (ends >= 0).all(0)
    return ends[:, kept], None if edge_attr is None else edge_attr[kept]
