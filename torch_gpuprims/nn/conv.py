"""GCNConv with PyTorch Geometric's arguments, parameter names and initialisation."""

import torch

from ..aggregate import affine_sum, neighbor_aggregate
from ..graph import Graph
from ._edges import Edges, as_graph, check_matrix, given_edges, values_of
from ._linear import set_lazy_error


class GCNConv(torch.nn.Module):
    """X' = D^-1/2 (A + I) D^-1/2 X W^T + b (Kipf and Welling, 2017), D the in-degrees of A + I.

    State: lin.weight [out_channels, in_channels] (Glorot uniform) and bias [out_channels] (zeros), as in PyG.

    Args:
        improved: A + 2I in place of A + I.
        cached: keep the normalised graph of the first call for all later ones, whatever they are given. It is
            rarely needed: without edge_weight the normalisation is kept with the Graph anyway.
        add_self_loops: a loop on every node that has none; by default as normalize.
        normalize: False takes A and edge_weight as they are.
    """

    def __init__(
        self, in_channels: int, out_channels: int, improved: bool = False, cached: bool = False,
        add_self_loops: bool | None = None, normalize: bool = True, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        set_lazy_error(self, in_channels)
        if add_self_loops is None:
            add_self_loops = normalize
        if add_self_loops and not normalize:
            raise ValueError("GCNConv: add_self_loops needs normalize=True")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached = improved, cached
        self.add_self_loops, self.normalize = add_self_loops, normalize
        self.lin = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.bias = torch.nn.Parameter(torch.empty(out_channels)) if bias else None
        self._cached: tuple[Graph, torch.Tensor | None, torch.Tensor | None] | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.xavier_uniform_(self.lin.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
        self._cached = None

    def prepare(self, graph: Graph) -> Graph:
        """Build what this layer needs of a graph, for torch.compile and CUDA graph capture."""
        self._normalized(graph, None, self.lin.weight.dtype)[0].prepare()
        return graph.prepare()

    def forward(
        self, x: torch.Tensor, graph: Edges | None = None, edge_weight: torch.Tensor | None = None, *,
        edge_index: Edges | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """x [num_nodes, in_channels], also sparse_coo or sparse_csr; a Graph, or edge_index [2, num_edges] or
        a sparse matrix, whose Graph is kept while the tensor lives unchanged and whose values are the edge
        weights where none are given. Returns [num_nodes, out_channels]."""
        check_matrix(self, x)
        given = given_edges(self, graph, edge_index)
        edges = as_graph(given, x.shape[0])
        if edge_weight is None:
            edge_weight = values_of(self, given, self.lin.weight)
        if x.shape[0] != edges.num_src:
            raise RuntimeError(
                f"GCNConv: x must have {edges.num_src} rows (the graph's sources), got {x.shape[0]}"
            )
        graph, weight, scale = self._normalized(edges, edge_weight, self.lin.weight.dtype)
        hidden = self.lin(x) if x.layout == torch.strided else torch.sparse.mm(x, self.lin.weight.t())
        if scale is not None:
            scale = scale.to(hidden.dtype)  # under autocast hidden is narrower
            return affine_sum(hidden * scale[:, None], graph, scale, self.bias)
        out = neighbor_aggregate(hidden, graph, None if weight is None else weight.to(hidden.dtype))
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def _normalized(
        self, graph: Graph, weight: torch.Tensor | None, dtype: torch.dtype
    ) -> tuple[Graph, torch.Tensor | None, torch.Tensor | None]:
        """(graph, edge weights, scale of rows before and after the sum); the scale serves equal weights."""
        if not self.normalize:
            return graph, weight, None
        if self._cached is not None:
            return self._cached
        loops = bool(self.add_self_loops)
        normalized: tuple[Graph, torch.Tensor | None, torch.Tensor | None]
        if weight is None and not self.improved and graph.num_dst == graph.num_src:
            looped, scale = graph.gcn_scale(loops, dtype)
            normalized = looped, None, scale
        else:
            normalized = (*graph.gcn_norm(weight, self.improved, loops, dtype), None)
        if self.cached:
            self._cached = normalized
        return normalized

    def __repr__(self) -> str:
        return f"GCNConv({self.in_channels}, {self.out_channels})"
