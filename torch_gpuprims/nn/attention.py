"""GATConv and GATv2Conv with PyTorch Geometric's arguments, parameter names and initialisation."""

from typing import Any

import torch
from torch.nn import functional

from ..aggregate import neighbor_aggregate
from ..attention import attend, edge_softmax, gatv2_score
from ..attention_edges import EdgeView, dropout_factors
from ..graph import Graph
from ._edges import (
    Edges,
    as_graph,
    destination_rows,
    edges_as_sources,
    ends_of,
    given_edges,
    with_attention_loops,
)
from ._linear import glorot_linear, set_lazy_error, two_products

_FILLS = ("mean", "add", "sum", "min", "max")


class _Attention(torch.nn.Module):
    """What both layers share: options, self-loops, the terms of edges, and what comes after the sum."""

    def __init__(
        self, in_channels: int | tuple[int, int], out_channels: int, heads: int, concat: bool,
        negative_slope: float, dropout: float, add_self_loops: bool, edge_dim: int | None,
        fill_value: float | torch.Tensor | str, bias: bool, residual: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        set_lazy_error(self, in_channels)
        if isinstance(fill_value, str) and fill_value not in _FILLS:
            name = type(self).__name__
            raise ValueError(f"{name}: fill_value must be one of {', '.join(_FILLS)}, got {fill_value!r}")
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.residual = residual
        self._with_bias = bias

    def _complete(self) -> None:
        """The parts that PyG makes last: the order of parameters is what optimizers' checkpoints go by."""
        in_channels, edge_dim, width = self.in_channels, self.edge_dim, self.heads * self.out_channels
        self.lin_edge = None if edge_dim is None else glorot_linear(edge_dim, width, False)
        total = width if self.concat else self.out_channels
        into = in_channels if isinstance(in_channels, int) else in_channels[1]
        self.res = glorot_linear(into, total, False) if self.residual else None
        self.bias = torch.nn.Parameter(torch.empty(total)) if self._with_bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for module in self.children():
            module.reset_parameters()  # type: ignore[operator]
        for name, parameter in self.named_parameters(recurse=False):
            # PyG's Glorot of [1, heads, channels]: torch's would count the heads as inputs.
            bound = 0.0 if name == "bias" else (6 / sum(parameter.shape[-2:])) ** 0.5
            torch.nn.init.uniform_(parameter, -bound, bound)

    def prepare(self, graph: Graph) -> Graph:
        """Build what this layer needs of a graph, for torch.compile and CUDA graph capture; returns the
        graph."""
        looped = graph
        if self.add_self_loops:
            looped = with_attention_loops(graph)[0]
            if self.edge_dim is not None:
                edges_as_sources(graph).prepare()
        looped.prepare()
        return graph

    def _with_loops(self, graph: Graph) -> tuple[Graph, torch.Tensor | None]:
        return with_attention_loops(graph) if self.add_self_loops else (graph, None)

    def _edge_terms(
        self, graph: Graph, origin: torch.Tensor | None, edge_attr: torch.Tensor | None, weight: torch.Tensor
    ) -> torch.Tensor | None:  # fmt: skip
        """edge_attr @ weight.T [edges, ..] for the edges of the looped graph. Where the fill is linear in the
        edges it is made of their products, which are narrower."""
        if edge_attr is None:
            return None
        edge_attr = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
        if edge_attr.shape[0] != graph.num_edges:
            raise RuntimeError(
                f"{type(self).__name__}: edge_attr must have {graph.num_edges} rows (the number of edges), "
                f"got {edge_attr.shape[0]}"
            )
        terms = functional.linear(edge_attr, weight)
        if origin is None:
            return terms
        fill = self.fill_value
        nodes = min(graph.num_src, graph.num_dst)
        if isinstance(fill, str):
            linear = fill in ("mean", "add", "sum")
            reduce = "sum" if fill == "add" else fill
            values = terms if linear else edge_attr
            loops = neighbor_aggregate(_rows(values), edges_as_sources(graph), reduce=reduce)
            loops = loops if linear else functional.linear(loops, weight)
        else:
            value = torch.as_tensor(fill, dtype=edge_attr.dtype, device=edge_attr.device)
            loops = functional.linear(value.expand(1, edge_attr.shape[1]), weight).expand(nodes, -1)
        return torch.cat([terms, loops[:nodes].to(terms.dtype)])[origin]

    def _seed(self, x: torch.Tensor) -> tuple[float, torch.Tensor | None]:
        dropout = self.dropout if self.training else 0.0
        if dropout == 0:
            return 0.0, None
        return dropout, torch.randint(2**63 - 1, (), dtype=torch.int64, device=x.device)

    def _attend(
        self, hidden: torch.Tensor, graph: Graph, terms: tuple[torch.Tensor | None, ...], slope: float,
        dropout: float, seed: torch.Tensor | None, x_dst: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """The layer's result. The kernel adds the bias where it is the last thing to happen and is not
        rounded once more: adding it later would read and write the result again."""
        bias, res = self.bias, self.res if x_dst is not None else None
        wide = self.concat and res is None and hidden.dtype.itemsize > 2
        if wide and bias is not None and bias.dtype == hidden.dtype:
            inside = bias.view(hidden.shape[1:])
            return attend(hidden, graph, terms, slope, dropout, seed, inside).flatten(1)
        out = attend(hidden, graph, terms, slope, dropout, seed)
        out = out.flatten(1) if self.concat else out.mean(1)
        if res is not None and x_dst is not None:
            out = out + res(destination_rows(self, x_dst, out.shape[0]))
        return out if bias is None else out + bias.to(out.dtype)

    def _weights(
        self, graph: Graph, origin: torch.Tensor | None, scores: torch.Tensor, dropout: float,
        seed: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """(edge_index, alpha) as PyG returns them: edges in the order given, loops last."""
        alpha, view = edge_softmax(graph, scores), EdgeView(graph.csr)
        if dropout > 0:
            assert seed is not None
            alpha = alpha * dropout_factors(seed, alpha.shape[0], alpha.shape[1], dropout).to(alpha.dtype)
        edge_index = torch.stack([view.src, view.dst])
        if origin is None:
            return edge_index, alpha
        order = origin.argsort()
        return edge_index[:, order], alpha[order]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"


def _rows(values: torch.Tensor) -> torch.Tensor:
    """At least one row: a graph without edges has a source that nobody reads."""
    return values if values.shape[0] else values.new_zeros(1, *values.shape[1:])


class GATConv(_Attention):
    """Graph attention (Velickovic and others, 2018), with the arguments, state and results of PyG's GATConv.

    State: lin.weight [heads * out_channels, in_channels] (or lin_src, lin_dst where in_channels is a pair),
    att_src and att_dst [1, heads, out_channels], with edge_dim lin_edge.weight and att_edge, with residual
    res.weight (all Glorot uniform), bias (zeros).

    Args:
        fill_value: the edge features of self-loops: a number, a vector, or how those of the node's edges are
            reduced ("mean", "add", "min", "max").

    Nothing of size edges * channels is made. The scores are x times products of weight and attention vectors,
    made once a call.
    """

    def __init__(
        self, in_channels: int | tuple[int, int], out_channels: int, heads: int = 1, concat: bool = True,
        negative_slope: float = 0.2, dropout: float = 0.0, add_self_loops: bool = True,
        edge_dim: int | None = None, fill_value: float | torch.Tensor | str = "mean", bias: bool = True,
        residual: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, heads, concat, negative_slope, dropout, add_self_loops, edge_dim,
            fill_value, bias, residual,
        )  # fmt: skip
        width = heads * out_channels
        self.lin = self.lin_src = self.lin_dst = None
        if isinstance(in_channels, int):
            self.lin = glorot_linear(in_channels, width, False)
        else:
            self.lin_src = glorot_linear(in_channels[0], width, False)
            self.lin_dst = glorot_linear(in_channels[1], width, False)
        self.att_src = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_edge = None if edge_dim is None else torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self._complete()

    def _folded(self, weight: torch.Tensor, *attention: torch.Tensor) -> torch.Tensor:
        """<att[h], (W x)[h]> = <W[h].T att[h], x>: [len(attention) * heads, in_channels]."""
        with torch.autocast(weight.device.type, enabled=False):
            split = weight.view(self.heads, self.out_channels, -1)
            vectors = torch.stack([a[0] for a in attention], 1)  # [heads, n, out_channels]
            return torch.bmm(vectors, split).transpose(0, 1).reshape(-1, split.shape[2])

    def _project(self, x_src: torch.Tensor, x_dst: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """(x [num_src, heads, channels], a_src, a_dst)."""
        lin_src = self.lin if self.lin is not None else self.lin_src
        lin_dst = self.lin if self.lin is not None else self.lin_dst
        assert lin_src is not None and lin_dst is not None
        if x_dst is x_src and lin_dst is lin_src:
            folded = self._folded(lin_src.weight, self.att_src, self.att_dst)
            x, scores = two_products(x_src, lin_src.weight, folded)
            return x.view(-1, self.heads, self.out_channels), *scores.split(self.heads, 1)
        x = lin_src(x_src).view(-1, self.heads, self.out_channels)
        a_src = functional.linear(x_src, self._folded(lin_src.weight, self.att_src))
        if x_dst is None:
            return x, a_src, None  # type: ignore[return-value]
        return x, a_src, functional.linear(x_dst, self._folded(lin_dst.weight, self.att_dst))

    def forward(
        self, x: Any, graph: Edges | None = None, edge_attr: torch.Tensor | None = None,
        size: tuple[int, int] | None = None, return_attention_weights: bool | None = None, *,
        edge_index: Edges | None = None,
    ) -> Any:  # fmt: skip
        """x [num_nodes, in_channels], or (x_src, x_dst) where x_dst may be None; a Graph, an edge_index
        [2, num_edges] or a sparse matrix [num_dst, num_src] (its Graph is kept while the tensor lives
        unchanged); edge_attr [num_edges, edge_dim]. Returns [num_dst, heads * out_channels] (out_channels
        without concat), and with return_attention_weights also (edge_index, alpha [.., heads])."""
        x_src, x_dst, num_src, num_dst = ends_of(self, x, size)
        given = as_graph(given_edges(self, graph, edge_index), num_src, num_dst)
        looped, origin = self._with_loops(given)
        hidden, a_src, a_dst = self._project(x_src, x_dst)
        if a_dst is not None:
            a_dst = destination_rows(self, a_dst, looped.num_dst)
        a_edge = None
        if edge_attr is not None and self.lin_edge is not None:
            assert self.att_edge is not None
            a_edge = self._edge_terms(
                given, origin, edge_attr, self._folded(self.lin_edge.weight, self.att_edge)
            )
            assert a_edge is not None
            a_edge = a_edge.to(hidden.dtype)
        dropout, seed = self._seed(hidden)
        terms = a_src, a_dst, a_edge
        out = self._attend(hidden, looped, terms, self.negative_slope, dropout, seed, x_dst)
        if not return_attention_weights:
            return out
        view = EdgeView(looped.csr)
        raw = a_src[view.src]
        raw = raw if a_dst is None else raw + a_dst[view.dst]
        raw = raw if a_edge is None else raw + a_edge
        scores = functional.leaky_relu(raw, self.negative_slope)
        return out, self._weights(looped, origin, scores, dropout, seed)


class GATv2Conv(_Attention):
    """GATv2 (Brody, Alon and Yahav, 2022), with the arguments, state and results of PyG's GATv2Conv.

    State: lin_l and lin_r (weights Glorot uniform, biases as in torch.nn.Linear), att [1, heads,
    out_channels], with edge_dim lin_edge.weight, with residual res.weight, bias (zeros).

    Without edge features nothing of size edges * channels is made; with them, lin_edge's product is.
    """

    def __init__(
        self, in_channels: int | tuple[int, int], out_channels: int, heads: int = 1, concat: bool = True,
        negative_slope: float = 0.2, dropout: float = 0.0, add_self_loops: bool = True,
        edge_dim: int | None = None, fill_value: float | torch.Tensor | str = "mean", bias: bool = True,
        share_weights: bool = False, residual: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, heads, concat, negative_slope, dropout, add_self_loops, edge_dim,
            fill_value, bias, residual,
        )  # fmt: skip
        self.share_weights = share_weights
        into = in_channels if isinstance(in_channels, (tuple, list)) else (in_channels, in_channels)
        width = heads * out_channels
        self.lin_l = glorot_linear(into[0], width, bias)
        self.lin_r = self.lin_l if share_weights else glorot_linear(into[1], width, bias)
        self.att = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self._complete()

    def forward(
        self, x: Any, graph: Edges | None = None, edge_attr: torch.Tensor | None = None,
        return_attention_weights: bool | None = None, *, edge_index: Edges | None = None,
    ) -> Any:  # fmt: skip
        """As GATConv.forward; of a pair both must be given."""
        x_src, x_dst, num_src, num_dst = ends_of(self, x, None)
        if x_dst is None:
            raise ValueError("GATv2Conv: x must be a tensor or a pair of tensors, got a pair with None")
        given = as_graph(given_edges(self, graph, edge_index), num_src, num_dst)
        looped, origin = self._with_loops(given)
        shape = (-1, self.heads, self.out_channels)
        left = self.lin_l(x_src).view(shape)
        right = left if x_dst is x_src and self.share_weights else self.lin_r(x_dst).view(shape)
        right = destination_rows(self, right, looped.num_dst)
        edge = None
        if edge_attr is not None:
            if self.lin_edge is None:
                raise ValueError("GATv2Conv: edge_attr needs a layer with edge_dim")
            terms = self._edge_terms(given, origin, edge_attr, self.lin_edge.weight)
            assert terms is not None
            edge = terms.view(shape).to(left.dtype)
        scores = gatv2_score(
            left, right, self.att[0].to(left.dtype), looped, edge, negative_slope=self.negative_slope
        )
        dropout, seed = self._seed(left)
        out = self._attend(left, looped, (None, None, scores), 1.0, dropout, seed, x_dst)
        if not return_attention_weights:
            return out
        return out, self._weights(looped, origin, scores, dropout, seed)
