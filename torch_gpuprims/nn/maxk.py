"""MaxK: the k largest features of each node as the nonlinearity before an aggregation."""

from typing import Any

import torch

from ..aggregate import neighbor_aggregate
from ..graph import Graph
from ..topk import topk
from ._edges import Edges, as_graph, destination_rows, ends_of, given_edges, values_of
from ._linear import glorot_linear, set_lazy_error
from .sage import reducer


class MaxK(torch.nn.Module):
    """Keeps the k largest elements of the last dimension and sets the others to 0 (Peng and others, 2024).

    Of equal elements the first are kept. The gradient goes to the elements that were kept.

    >>> MaxK(2)(torch.tensor([1.0, 3.0, 2.0]))
    tensor([0., 3., 2.])
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"MaxK: k must be at least 1, got {k}")
        self.k = k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, indices = topk(x, min(self.k, x.shape[-1]), -1, sorted=False)
        return torch.zeros_like(x).scatter(-1, indices, values)

    def extra_repr(self) -> str:
        return f"k={self.k}"


class MaxKConv(torch.nn.Module):
    """W_r x + aggr(MaxK(W x of sources)): the layer of MaxK-GNN (Peng and others, 2024).

    State: lin.weight (Glorot uniform) and lin.bias, with root_weight lin_r.weight.

    Args:
        k: features that a node keeps.
        aggr: "mean", "sum" ("add"), "max" or "min".

    The features that were not kept are zeros in a dense matrix: the aggregation reads them too.
    """

    def __init__(
        self, in_channels: int, out_channels: int, k: int, aggr: str = "mean", root_weight: bool = True,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        set_lazy_error(self, in_channels)
        self.reduce = reducer("MaxKConv", aggr)
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.lin = glorot_linear(in_channels, out_channels, bias)
        self.maxk = MaxK(k)
        self.lin_r = torch.nn.Linear(in_channels, out_channels, False) if root_weight else None

    def reset_parameters(self) -> None:
        self.lin.reset_parameters()
        if self.lin_r is not None:
            self.lin_r.reset_parameters()

    def prepare(self, graph: Graph) -> Graph:
        """Build what this layer needs of a graph, for torch.compile and CUDA graph capture."""
        return graph.prepare()

    def forward(
        self, x: Any, graph: Edges | None = None, size: tuple[int, int] | None = None, *,
        edge_index: Edges | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """As SAGEConv.forward."""
        x_src, x_dst, num_src, num_dst = ends_of(self, x, size)
        hidden = self.maxk(self.lin(x_src))
        given = given_edges(self, graph, edge_index)
        weight = values_of(self, given, hidden)
        out = neighbor_aggregate(hidden, as_graph(given, num_src, num_dst), weight, self.reduce)
        if self.lin_r is None or x_dst is None:
            return out
        return out + self.lin_r(destination_rows(self, x_dst, out.shape[0]))

    def __repr__(self) -> str:
        return f"MaxKConv({self.in_channels}, {self.out_channels}, k={self.maxk.k}, aggr={self.aggr})"
