"""Graphs from whatever a layer is given: a Graph, an edge_index, a sparse matrix; self-loops for
attention."""

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

from ..aggregate_csr import fail
from ..graph import Graph

Edges = Graph | torch.Tensor
T = TypeVar("T")
_MOST = 8  # graphs kept for one tensor
#: Graphs of tensors by id: (the tensor while it lives, its version, graphs by what else they depend on).
_lock = threading.RLock()
_converted: dict[int, tuple[weakref.ref[torch.Tensor], int, dict[Any, Any]]] = {}


def cached(edges: torch.Tensor, what: Hashable, build: Callable[[], T]) -> T:
    """build(), kept while the tensor lives and its version stays; what else it depends on is `what`.

    A view of a tensor (edge_index[1]) is found by the tensor that it is a view of: views are made anew by
    every caller. A tensor made under inference_mode has no version that would tell of changes: nothing is
    kept.
    """
    if hasattr(edges, "as_tensor"):  # PyG's EdgeIndex: what changes is the tensor that it wraps
        edges = edges.as_tensor()
    if torch.compiler.is_compiling():
        fail("an edge_index cannot be converted while tracing: make a Graph of it first")
    if edges.is_inference():
        return build()
    owner = edges
    if edges.layout == torch.strided and edges._base is not None:
        owner = edges._base
        what = (what, edges.storage_offset(), tuple(edges.shape), edges.stride(), edges.dtype)
    key, version = id(owner), edges._version
    with _lock:
        found = _converted.get(key)
        if found is None or found[0]() is not owner or found[1] != version:
            found = weakref.ref(owner, lambda _: _converted.pop(key, None)), version, {}
            _converted[key] = found
        graphs = found[2]
        if what not in graphs:
            while len(graphs) >= _MOST:
                graphs.pop(next(iter(graphs)))
            graphs[what] = build()
        return graphs[what]  # type: ignore[no-any-return]


def given_edges(layer: torch.nn.Module, graph: Edges | None, edge_index: Edges | None) -> Edges:
    """The edges that forward was given: as `graph`, or under the name that PyG's callers use."""
    if (graph is None) == (edge_index is None):
        raise TypeError(f"{type(layer).__name__}: edges must be given once, as graph or as edge_index")
    return edge_index if graph is None else graph  # type: ignore[return-value]


def destination_rows(layer: torch.nn.Module, x_dst: torch.Tensor, num_dst: Any) -> torch.Tensor:
    """The rows of x that belong to destinations; one row must not become all of them by broadcasting."""
    if x_dst.shape[0] == num_dst:
        return x_dst  # a slice of all rows would cost its gradient a copy
    if x_dst.shape[0] < num_dst:
        raise RuntimeError(
            f"{type(layer).__name__}: x must have {num_dst} rows for the destinations, got {x_dst.shape[0]}"
        )
    return x_dst[:num_dst]


def as_graph(edges: Edges, num_src: int, num_dst: int | None = None) -> Graph:
    """The graph itself, or that of an edge_index [2, num_edges] (row 0: sources) or of a sparse matrix
    [num_dst, num_src], kept while the tensor lives unchanged. num_dst: by default num_src."""
    if isinstance(edges, Graph):
        return edges
    if not isinstance(edges, torch.Tensor):
        kind = type(edges).__name__
        raise TypeError(f"edges must be a Graph, an edge_index [2, num_edges] or a sparse matrix, got {kind}")
    sizes = num_src, num_src if num_dst is None else num_dst

    def build() -> Graph:
        if edges.layout != torch.strided:
            return Graph.from_torch_sparse(edges)
        plain = edges.as_subclass(torch.Tensor) if type(edges) is not torch.Tensor else edges
        return Graph.from_coo(plain, num_src=sizes[0], num_dst=sizes[1])

    return cached(edges, sizes, build)


def values_of(layer: torch.nn.Module, edges: Edges, like: torch.Tensor) -> torch.Tensor | None:
    """The weights that a sparse matrix gives its edges, in the order of its Graph and the dtype of `like`;
    None where all are 1 (looked at once), and for a Graph or an edge_index, which have none."""
    if isinstance(edges, Graph) or edges.layout == torch.strided:
        return None
    # A Graph of a matrix that is not coalesced has an edge for each of its entries, but coalescing alone is
    # differentiable.
    whole = edges.layout == torch.sparse_csr or edges.is_coalesced()
    if not whole and edges.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{type(layer).__name__}: a sparse matrix that requires grad must be coalesced")
    values = edges.values() if whole else edges._values()
    if not values.requires_grad and cached(edges, "all 1", lambda: bool(values.eq(1).all())):
        return None
    return values.to(like.dtype)


def check_matrix(layer: torch.nn.Module, x: torch.Tensor) -> None:
    """PyG takes batches [.., nodes, channels] too; here the first dimension would pass for the nodes."""
    if x.dim() != 2:
        raise RuntimeError(
            f"{type(layer).__name__}: x must have 2 dimensions [nodes, channels], got {x.dim()}"
        )


def ends_of(
    layer: torch.nn.Module, x: Any, size: tuple[int, int] | None
) -> tuple[Any, Any, int, int]:  # fmt: skip
    """(x_src, x_dst, num_src, num_dst) of x or (x_src, x_dst), where x_dst may be None, as in PyG."""
    x_src, x_dst = x if isinstance(x, (tuple, list)) else (x, x)
    check_matrix(layer, x_src)
    if x_dst is not None and x_dst is not x_src:
        check_matrix(layer, x_dst)
    num_src = x_src.shape[0]
    num_dst = num_src if x_dst is None else x_dst.shape[0]
    if size is not None:
        num_dst = num_dst if size[1] is None else size[1]
    return x_src, x_dst, num_src, num_dst


def with_attention_loops(graph: Graph) -> tuple[Graph, torch.Tensor]:
    """The graph with one loop on each node that is a source and a destination, its own loops left out.

    Returns it, and for each of its edges the edge of `graph` that it was, or num_edges + node for a new loop.
    Kept with the graph. Rows stay in order and end in their loop, so no sort is needed.
    """
    return graph._lazy("attention loops", "the graph with self-loops (layer.prepare(graph) builds it)",
                       lambda: _add_loops(graph))  # fmt: skip


def _ids(graph: Graph) -> torch.Tensor:
    if graph.edge_ids is not None:
        return graph.edge_ids.long()
    return torch.arange(graph.num_edges, device=graph.device)


def _add_loops(graph: Graph) -> tuple[Graph, torch.Tensor]:
    src, dst = graph.indices.long(), graph.destinations().long()
    looped = min(graph.num_src, graph.num_dst)
    kept = src != dst
    rows = torch.arange(graph.num_dst, device=graph.device)
    before = torch.nn.functional.pad(kept.long().cumsum(0), (1, 0))[graph.indptr.long()]
    indptr = before + torch.nn.functional.pad(rows + 1, (1, 0)).clamp(max=looped)
    place = kept.long().cumsum(0)[kept] - 1 + dst[kept].clamp(max=looped)
    indices, origin = (src.new_empty(int(indptr[-1])) for _ in range(2))
    nodes = rows[:looped]
    last = indptr[1 : looped + 1] - 1
    indices[place], indices[last] = src[kept], nodes
    origin[place], origin[last] = _ids(graph)[kept], nodes + graph.num_edges
    return Graph.from_csr(indptr, indices, graph.num_src), origin


def edges_as_sources(graph: Graph) -> Graph:
    """The graph in which the edges of `graph` that are no loops are the sources of their destinations: sums
    over it reduce [num_edges, ..] to [num_dst, ..]. Kept with the graph."""

    def build() -> tuple[Graph, None]:
        kept = graph.indices.long() != graph.destinations().long()
        indptr = torch.nn.functional.pad(kept.long().cumsum(0), (1, 0))[graph.indptr.long()]
        return Graph.from_csr(indptr, _ids(graph)[kept], max(graph.num_edges, 1)), None

    return graph._lazy("edges as sources", "the graph of edges (layer.prepare(graph) builds it)", build)[0]
