"""SAGEConv and GINConv with PyTorch Geometric's arguments, parameter names and initialisation."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from ..aggregate import REDUCE, neighbor_aggregate
from ..graph import Graph
from ._edges import Edges, as_graph, destination_rows, ends_of, given_edges, values_of
from ._linear import add_linear, apply_linear, fork_linear, set_lazy_error

#: PyG's names beside ours.
_NAMES = {"add": "sum", **{name: name for name in REDUCE}}


def reducers(layer: str, aggr: str | Sequence[str]) -> list[str]:
    names: list[Any] = list(aggr) if isinstance(aggr, (list, tuple)) else [aggr]
    unknown = [name for name in names if not isinstance(name, str) or name not in _NAMES]
    if unknown or not names:
        known, wrong = ", ".join(_NAMES), unknown[0] if unknown else aggr
        raise ValueError(f"{layer}: aggr must be one or several of {known}, got {wrong!r}")
    return [_NAMES[name] for name in names]


def reducer(layer: str, aggr: str) -> str:
    """The one word that a layer with a single aggregation takes."""
    names = reducers(layer, aggr)
    if len(names) != 1:
        raise ValueError(f"{layer}: aggr must be one of {', '.join(_NAMES)}, got {aggr!r}")
    return names[0]


class SAGEConv(torch.nn.Module):
    """GraphSAGE (Hamilton and others, 2017): W_l aggr(x of sources) + b + W_r x, as PyG's SAGEConv.

    State: lin_l (weight and bias), with root_weight lin_r.weight, with project lin; all as torch.nn.Linear.

    Args:
        aggr: "mean", "sum" ("add"), "max" or "min", or several, whose results are concatenated.
        normalize: divide each result by its length.
        project: a linear layer and ReLU before the aggregation.

    Sums and means of many channels that become few are taken after the linear layer, of which they are a
    function: the same values but for rounding, with less to read.
    """

    def __init__(
        self, in_channels: int | tuple[int, int], out_channels: int, aggr: str | Sequence[str] = "mean",
        normalize: bool = False, root_weight: bool = True, project: bool = False, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        set_lazy_error(self, in_channels)
        self.reduce = reducers("SAGEConv", aggr)
        self.aggr = aggr
        self.in_channels, self.out_channels = in_channels, out_channels
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        into = in_channels if isinstance(in_channels, (tuple, list)) else (in_channels, in_channels)
        if project:
            self.lin = torch.nn.Linear(into[0], into[0])
        self.lin_l = torch.nn.Linear(into[0] * len(self.reduce), out_channels, bias)
        if root_weight:
            self.lin_r = torch.nn.Linear(into[1], out_channels, False)

    def reset_parameters(self) -> None:
        for module in self.children():
            module.reset_parameters()  # type: ignore[operator]

    def prepare(self, graph: Graph) -> Graph:
        """Build what this layer needs of a graph, for torch.compile and CUDA graph capture."""
        return graph.prepare()

    def forward(
        self, x: Any, graph: Edges | None = None, size: tuple[int, int] | None = None, *,
        edge_index: Edges | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """x [num_nodes, in_channels], or (x_src, x_dst) where x_dst may be None; a Graph, an edge_index
        [2, num_edges] or a sparse matrix [num_dst, num_src], whose values weigh the edges. Returns [num_dst,
        out_channels]."""
        x_src, x_dst, num_src, num_dst = ends_of(self, x, size)
        given = given_edges(self, graph, edge_index)
        graph = as_graph(given, num_src, num_dst)
        if self.project:
            x_src = self.lin(x_src).relu()
        narrow = (
            x_src.shape[1] > self.out_channels and len(self.reduce) == 1 and self.reduce[0] in ("sum", "mean")
        )
        if narrow:
            hidden = functional.linear(x_src, self.lin_l.weight)
            out = neighbor_aggregate(hidden, graph, values_of(self, given, hidden), self.reduce[0])
            out = out if self.lin_l.bias is None else out + self.lin_l.bias.to(out.dtype)
        else:
            weight = values_of(self, given, x_src)
            root = None
            if self.root_weight and x_dst is x_src and x_dst.shape[0] == graph.num_dst:
                root = fork_linear(x_src, self.lin_r.weight, self.lin_l.bias)
            if root is not None:
                x_src = root[0]
            parts = [neighbor_aggregate(x_src, graph, weight, reduce) for reduce in self.reduce]
            joined = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            if root is not None:
                out, x_dst = root[1].addmm_(joined, self.lin_l.weight.t()), None
            else:
                out = apply_linear(self.lin_l, joined)
        if self.root_weight and x_dst is not None:
            out = add_linear(out, destination_rows(self, x_dst, out.shape[0]), self.lin_r)
        return functional.normalize(out, dim=-1) if self.normalize else out

    def __repr__(self) -> str:
        return f"SAGEConv({self.in_channels}, {self.out_channels}, aggr={self.aggr})"


class GINConv(torch.nn.Module):
    """Graph isomorphism network (Xu and others, 2019): nn((1 + eps) x + sum of the sources' x), as PyG's
    GINConv.

    State: that of `nn` under its name, and eps [1], a parameter with train_eps and a buffer otherwise.
    """

    eps: torch.Tensor

    def __init__(
        self, nn: Callable[..., torch.Tensor], eps: float = 0.0, train_eps: bool = False, *, aggr: str = "add"
    ) -> None:
        super().__init__()
        self.reduce = reducer("GINConv", aggr)
        self.nn, self.initial_eps = nn, eps
        if train_eps:
            self.eps = torch.nn.Parameter(torch.full((1,), float(eps)))
        else:
            self.register_buffer("eps", torch.full((1,), float(eps)))

    def reset_parameters(self) -> None:
        for module in self.nn.modules() if isinstance(self.nn, torch.nn.Module) else ():
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
        self.eps.data.fill_(self.initial_eps)

    def prepare(self, graph: Graph) -> Graph:
        """Build what this layer needs of a graph, for torch.compile and CUDA graph capture."""
        return graph.prepare()

    def forward(
        self, x: Any, graph: Edges | None = None, size: tuple[int, int] | None = None, *,
        edge_index: Edges | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """As SAGEConv.forward; returns what nn makes of [num_dst, in_channels]."""
        x_src, x_dst, num_src, num_dst = ends_of(self, x, size)
        given = given_edges(self, graph, edge_index)
        edges, weight = as_graph(given, num_src, num_dst), values_of(self, given, x_src)
        out = neighbor_aggregate(x_src, edges, weight, self.reduce)
        if x_dst is not None:
            own = destination_rows(self, x_dst, out.shape[0])
            out = torch.addcmul(out, own, (1 + self.eps).to(out.dtype))
        return self.nn(out)

    def __repr__(self) -> str:
        return f"GINConv(nn={self.nn})"
