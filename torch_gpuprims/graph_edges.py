"""Edges of a Graph that repeat or that end where they start."""

from typing import TYPE_CHECKING

import torch

from .aggregate_csr import fail, stable_order

if TYPE_CHECKING:
    from .graph import Graph


def _selected(graph: "Graph", keep: torch.Tensor) -> "Graph":
    """The edges of a mask in CSR order; they are numbered in that order."""
    kept = torch.zeros(graph.num_edges + 1, dtype=torch.int64, device=graph.device)
    torch.cumsum(keep, 0, out=kept[1:])
    return type(graph)(kept[graph.indptr.long()], graph.indices[keep], graph.num_src)


def without_loops(graph: "Graph", self_loops: str) -> "Graph":
    loop = graph.indices == graph.destinations()
    if not loop.any():
        return graph
    if self_loops == "error":
        node = int(graph.indices[loop][0])
        fail(f"there are self-loops, the first one at node {node}")
    return _selected(graph, ~loop)


def _sorted_edges(graph: "Graph") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(positions of the edges by destination, then source; their sources; whether each repeats the last)."""
    by_source = stable_order(graph.indices, max(graph.num_src, 1))
    row = graph.destinations()
    by_row = stable_order(row.index_select(0, by_source), max(graph.num_dst, 1))
    at = by_source.index_select(0, by_row)
    row, source = row.index_select(0, at), graph.indices.index_select(0, at)
    repeats = torch.zeros(len(at), dtype=torch.bool, device=graph.device)
    repeats[1:] = (row[1:] == row[:-1]) & (source[1:] == source[:-1])
    return at, source, repeats


def without_duplicates(graph: "Graph", duplicates: str) -> "Graph":
    """The first of each edge, in the order in which the graph has them."""
    at, _, repeats = _sorted_edges(graph)
    if not repeats.any():
        return graph
    if duplicates == "error":
        which = int(at[repeats][0])
        row = int(graph.destinations()[which])
        fail(f"there are duplicate edges, the first one from {int(graph.indices[which])} to {row}")
    keep = torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)
    keep[at[repeats].long()] = False
    return _selected(graph, keep)


def coalesce(graph: "Graph", edge_weight: torch.Tensor | None) -> tuple["Graph", torch.Tensor | None]:
    from .aggregate import neighbor_aggregate  # that module imports Graph

    with torch.no_grad():
        at, source, repeats = _sorted_edges(graph)
        first = ~repeats
        count = torch.zeros(graph.num_edges + 1, dtype=torch.int64, device=graph.device)
        torch.cumsum(first, 0, out=count[1:])
        merged = type(graph)(count[graph.indptr.long()], source[first], graph.num_src)
        if edge_weight is None:
            return merged, None
        # A row an edge of the merged graph, which reads the weights of its duplicates.
        ids = at if graph.edge_ids is None else graph.edge_ids.index_select(0, at)
        bounds = torch.cat([first.nonzero().flatten(), count.new_tensor([graph.num_edges])])
        groups = type(graph)(bounds, ids, graph.num_edges)
    return merged, neighbor_aggregate(edge_weight[:, None], groups)[:, 0]


def remove_self_loops(
    graph: "Graph", edge_weight: torch.Tensor | None
) -> tuple["Graph", torch.Tensor | None]:
    keep = graph.indices != graph.destinations()
    ids = torch.arange(graph.num_edges, device=graph.device) if graph.edge_ids is None else graph.edge_ids
    rest = _selected(graph, keep)
    return rest, None if edge_weight is None else edge_weight[ids[keep].long()]
