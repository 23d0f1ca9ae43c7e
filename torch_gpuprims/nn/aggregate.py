"""NeighborAggregation: neighbor_aggregate as a module."""

import torch

from ..aggregate import REDUCE, neighbor_aggregate
from ..graph import Graph


class NeighborAggregation(torch.nn.Module):
    """Reduces the features of each node's neighbours: forward(x [num_src, ...], graph, edge_weight=None)."""

    def __init__(self, reduce: str = "sum") -> None:
        super().__init__()
        if reduce not in REDUCE:
            raise ValueError(
                f"NeighborAggregation: reduce must be one of {', '.join(REDUCE)}, got {reduce!r}"
            )
        self.reduce = reduce

    def forward(self, x: torch.Tensor, graph: Graph, edge_weight: torch.Tensor | None = None) -> torch.Tensor:
        return neighbor_aggregate(x, graph, edge_weight, self.reduce)

    def extra_repr(self) -> str:
        return f"reduce={self.reduce!r}"
