"""Graph.reorder: in which order rows are walked.

What pays is that rows which read the same neighbours are walked together, while these are in the caches;
where the neighbours lie in memory does not matter, so nothing moves.
"""

from typing import TYPE_CHECKING

import torch

from .aggregate_csr import check_range, check_vector, fail, max_degree, stable_order
from .sort import sort_keys

if TYPE_CHECKING:
    from .graph import Graph

METHODS = ("auto", "community", "bfs", "degree", "none")
#: csrc/aggregate/labels.h
_MAJORITY, _GROW = 0, 1
_MAJORITY_ROUNDS = 8  # the planted order of shuffled communities is reached after 6 to 8
_GROW_ROUNDS = 96
_REGION = 2048  # nodes a seed
_WINDOW, _WINDOWS, _SAMPLED = 4096, 16, 32
_WORTH = 1.25  # distinct neighbours must fall by this much


def reorder(graph: "Graph", method: str, order: torch.Tensor | None, features: int) -> "Graph":
    if order is not None:
        return graph._with_order(_checked(graph, order), "rows in the order given to reorder")
    if method not in METHODS:
        fail(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if features < 1:
        fail(f"features must be at least 1, got {features}")
    graph._may_build("the schedule", "reorder()")
    with torch.inference_mode(False), torch.no_grad():
        if method == "auto":
            return _auto(graph, features)
        if method == "none":
            return graph._with_order(None, "rows as given")
        return graph._with_order(make_order(graph, method), f"rows in {method} order")


def _checked(graph: "Graph", order: torch.Tensor) -> torch.Tensor:
    check_vector("order", order, graph.device)
    if len(order) != graph.num_dst:
        fail(f"order must have {graph.num_dst} elements (the number of destinations), got {len(order)}")
    check_range("order", order, graph.num_dst)
    every = torch.arange(graph.num_dst, device=graph.device, dtype=order.dtype)
    ordered = order.sort().values
    if bool((ordered != every).any()):
        fail(f"order must be a permutation, but {int(ordered[1:][ordered[1:] == ordered[:-1]][0])} repeats")
    return order.to(torch.int64, copy=True)


def make_order(graph: "Graph", method: str) -> torch.Tensor:
    """[num_dst] int64."""
    rows = graph.num_dst
    if method == "degree":
        degree = graph.degree()
        longest = max_degree(graph.indptr)
        return stable_order(longest - degree, longest + 1).long()
    if graph.num_src != rows:
        fail(f"{method} order needs as many sources as destinations, got {graph.num_src} and {rows}")
    labels = torch.ops.gpuprims._graph_labels
    if method == "community":
        found = labels(graph.indptr, graph.indices, _MAJORITY, _MAJORITY_ROUNDS, 1)
    else:
        found = labels(graph.indptr, graph.indices, _GROW, _GROW_ROUNDS, _REGION)
    return stable_order(found.clamp(max=rows), rows + 1).long()  # nodes without a label come last


def _window_rows(graph: "Graph", order: torch.Tensor | None) -> torch.Tensor:
    """[windows, rows of each]: runs of consecutive rows, evenly spread."""
    size = min(_WINDOW, graph.num_dst)
    count = min(_WINDOWS, max(graph.num_dst // max(size, 1), 1))
    first = torch.arange(count, device=graph.device) * (graph.num_dst - size) // max(count - 1, 1)
    places = first[:, None] + torch.arange(size, device=graph.device)
    return places if order is None else order[places]


def distinct_share(graph: "Graph", order: torch.Tensor | None) -> torch.Tensor:
    """Distinct neighbours of the windows' rows / neighbours (32 of a row at most): 0-d float64."""
    rows = _window_rows(graph, order)
    begin, end = graph.indptr[rows].long(), graph.indptr[rows + 1].long()
    degree = (end - begin)[..., None]
    sample = torch.arange(_SAMPLED, device=graph.device)
    count = degree.clamp(max=_SAMPLED)
    there = sample < count
    places = begin[..., None] + sample * degree // count.clamp(min=1)
    picked = graph.indices[torch.where(there, places, 0)].long()
    window = torch.arange(len(rows), device=graph.device)[:, None, None]
    nowhere = len(rows) * graph.num_src
    keys = sort_keys(torch.where(there, window * graph.num_src + picked, nowhere).flatten())
    new = torch.ones_like(keys, dtype=torch.bool)
    new[1:] = keys[1:] != keys[:-1]
    inside = keys < nowhere
    return (new & inside).sum().double() / inside.sum().clamp(min=1)


def _auto(graph: "Graph", features: int) -> "Graph":
    if graph.num_src != graph.num_dst or graph.num_edges == 0 or graph.num_dst < 2 * _WINDOW:
        return graph._with_order(None, "rows as given (auto: the graph is small or bipartite)")
    sparse = graph.num_edges < 6 * graph.num_dst and max_degree(graph.indptr) < 50
    method = "bfs" if sparse else "community"
    order = make_order(graph, method)
    given, ordered = torch.stack([distinct_share(graph, None), distinct_share(graph, order)]).tolist()
    facts = f"distinct neighbours of {_WINDOW} rows: {given:.3f} as given, {ordered:.3f} in {method} order"
    if given < _WORTH * ordered:
        return graph._with_order(None, f"rows as given (auto: {facts})")
    other = graph._with_order(order, f"rows in {method} order (auto: {facts}")
    if graph.device.type != "cuda":
        other.schedule += ")"
        return other
    kept = graph._with_order(None, "")
    before, after = _timed(kept, features), _timed(other, features)
    times = f"{before:.0f} us as given, {after:.0f} us so for {features} features"
    if after < before:
        other.schedule += f"; {times})"
        return other
    kept.schedule = f"rows as given (auto: {facts}; {times})"
    return kept


def _timed(graph: "Graph", features: int) -> float:
    """Microseconds of a sum on CUDA: the better of two, after one to warm up."""
    from .aggregate import neighbor_aggregate

    x = torch.zeros(graph.num_src, features, device=graph.device)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    with torch.cuda.device(graph.device):
        neighbor_aggregate(x, graph)
        for mark in marks:
            mark.record()
            neighbor_aggregate(x, graph)
        torch.cuda.current_stream().synchronize()
    return 1000 * min(marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2]))
