"""NeighborAggregation: neighbor_aggregate as a module."""

import torch

from ..aggregate import REDUCE, neighbor_aggregate
from ..graph import Graph
from ._edges import Edges, as_graph, values_of


class NeighborAggregation(torch.nn.Module):
    """Reduces the features of each node's neighbours, as torch_gpuprims.neighbor_aggregate.

    forward(x, graph, edge_weight=None): x [num_src, ...] in float16, bfloat16, float32 or float64; a Graph,
    an edge_index [2, num_edges] over the rows of x or a sparse matrix, whose Graph is kept while the tensor
    lives unchanged; edge_weight [num_edges], or [num_edges, heads], by default the matrix's values. Returns
    [num_dst, ...]. Determinism, cost and errors as there; ValueError for an unknown `reduce` ("sum", "mean",
    "max", "min").
    """

    def __init__(self, reduce: str = "sum") -> None:
        super().__init__()
        if not isinstance(reduce, str) or reduce not in REDUCE:
            raise ValueError(
                f"NeighborAggregation: reduce must be one of {', '.join(REDUCE)}, got {reduce!r}"
            )
        self.reduce = reduce

    def prepare(self, graph: Graph) -> Graph:
        """Build what this layer needs of a graph, for torch.compile and CUDA graph capture."""
        return graph.prepare()

    def forward(self, x: torch.Tensor, graph: Edges, edge_weight: torch.Tensor | None = None) -> torch.Tensor:
        made = as_graph(graph, x.shape[0])  # first: it says what cannot be one
        if edge_weight is None:
            edge_weight = values_of(self, graph, x)
        return neighbor_aggregate(x, made, edge_weight, self.reduce)

    def extra_repr(self) -> str:
        return f"reduce={self.reduce!r}"
