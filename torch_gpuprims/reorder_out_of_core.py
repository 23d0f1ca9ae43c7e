"""aggregate_out_of_core: features in host memory, aggregated by a device that need not hold them."""

import bisect
import functools
import math
import threading
import weakref
from collections import deque
from typing import Any, NamedTuple

import torch

from .aggregate import neighbor_aggregate
from .aggregate_plan import in_order
from .graph import Graph
from .reorder_overlap import overlapped

_OP = "aggregate_out_of_core"
_lock = threading.Lock()
_kept: "weakref.WeakKeyDictionary[Graph, dict[tuple[int, int], list[_Part]]]" = weakref.WeakKeyDictionary()


class _Part(NamedTuple):
    """Destinations begin:end (in schedule order) with the rows of x that they read, renumbered."""

    begin: int
    end: int
    edges: torch.Tensor | slice  # where the weights of its edges are
    needed: torch.Tensor | None  # [rows read], CPU, rising; None: `span` as it lies
    span: tuple[int, int]
    graph: Graph


def aggregate_out_of_core(
    x_host: torch.Tensor,
    graph: Graph,
    edge_weight: torch.Tensor | None = None,
    reduce: str = "sum",
    *,
    budget_bytes: int,
    device: torch.device | str | None = None,
    streams: int = 2,
) -> torch.Tensor:
    """neighbor_aggregate for features that stay in host memory; the same bits, in host memory.

    The destinations are cut into ranges. For each, the rows of x that it reads are gathered on the host into
    pinned memory, copied, and aggregated, and the result is copied back; `overlapped` runs the gather and
    copy of later ranges beside the rest. Ranges hold whole rows, so each row's tree of additions is the
    one that neighbor_aggregate has.

    Args:
        x_host: [num_src, ...] on the CPU; not written. Pinned memory saves a copy where a range reads a run
            of neighbouring rows.
        graph: on the CPU or the device. Its ranges (renumbered sources) are kept with it, so later calls
            with the same width and budget do not cut it again. Where it has a schedule (Graph.reorder), the
            ranges follow it, so that a range's rows share what they read; results are then put in place on
            the host at the end, in one more copy.
        edge_weight, reduce: as in neighbor_aggregate.
        budget_bytes: device memory for gathered rows and results in flight. A graph on the CPU counts too;
            one on the device lies there with 4 more bytes an edge.
        device: where to aggregate; by default the graph's, if CUDA, else a CUDA device, else the CPU.
        streams: ranges under way beside the one that is aggregated.

    Returns: [num_dst, ...] on the CPU (pinned where the device is CUDA and there is no schedule). Waits for
    the device. No gradient.

    Raises:
        RuntimeError: x_host is not on the CPU, needs a gradient, or has too few rows; or the budget does not
            hold one row's neighbours (the message says how much does).
    """
    if x_host.device.type != "cpu":
        raise RuntimeError(f"{_OP}: x_host must be on the CPU, got {x_host.device}")
    if x_host.dim() == 0 or len(x_host) < graph.num_src:
        raise RuntimeError(
            f"{_OP}: x_host must have at least {graph.num_src} rows (the number of sources), "
            f"got shape {list(x_host.shape)}"
        )
    if torch.is_grad_enabled() and x_host.requires_grad:
        raise RuntimeError(f"{_OP}: x_host must not require a gradient: use torch.no_grad()")
    if edge_weight is not None and edge_weight.shape != (graph.num_edges,):
        raise RuntimeError(
            f"{_OP}: edge_weight must have shape [{graph.num_edges}], got {list(edge_weight.shape)}"
        )
    if not isinstance(streams, int) or streams < 1:
        raise ValueError(f"{_OP}: streams must be an int >= 1, got {streams!r}")
    place = _place(graph, device)
    x, row_bytes = x_host.detach(), math.prod(x_host.shape[1:]) * x_host.element_size()
    share = budget_bytes // (streams + 1)
    parts = ranges_of(graph, row_bytes, share, streams)
    pinned = place.type == "cuda"
    out = torch.empty((graph.num_dst, *x.shape[1:]), dtype=x.dtype, pin_memory=pinned)
    under_way: deque[torch.cuda.Event] = deque()

    def gather(part: _Part) -> tuple[Any, ...]:
        first, last = part.span
        rows = x[first:last] if part.needed is None else None
        if rows is None or (pinned and not rows.is_pinned()):
            if len(under_way) > streams:  # staging memory stays bounded, too
                under_way.popleft().synchronize()
            staged = torch.empty((part.graph.num_src, *x.shape[1:]), dtype=x.dtype, pin_memory=pinned)
            rows = staged.copy_(rows) if rows is not None else _select(x, part.needed, staged)
        on_device = rows.to(place, non_blocking=True)
        weight = _weights(edge_weight, part, place)
        sub = part.graph if part.graph.device == place else part.graph.to(place, non_blocking=True)
        if pinned:
            event = torch.cuda.Event()
            event.record()
            under_way.append(event)
        return part, on_device, weight, sub

    def aggregate(block: tuple[Any, ...]) -> None:
        part, rows, weight, sub = block
        out[part.begin : part.end].copy_(neighbor_aggregate(rows, sub, weight, reduce), non_blocking=True)

    with torch.no_grad():
        overlapped(parts, gather, aggregate, streams, device=place)
    if pinned:
        torch.cuda.current_stream(place).synchronize()
    if graph._order is None:
        return out
    return torch.empty_like(out).index_copy_(0, graph._order.cpu(), out)


def ranges_of(graph: Graph, row_bytes: int, share: int, streams: int) -> list[_Part]:
    """The ranges for a width and budget, kept as long as the graph."""
    with _lock:
        kept = _kept.setdefault(graph, {})
    with graph._lock, torch.inference_mode(False), torch.no_grad():
        if (row_bytes, share) not in kept:
            kept[row_bytes, share] = _cut(graph, row_bytes, share, streams)
        return kept[row_bytes, share]


def _place(graph: Graph, device: torch.device | str | None) -> torch.device:
    if device is None:
        if graph.device.type == "cuda":
            return graph.device
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place = torch.device(device)
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    if graph.device.type != "cpu" and graph.device != place:
        raise RuntimeError(f"{_OP}: graph must be on the CPU or {place}, got {graph.device}")
    return place


def _select(x: torch.Tensor, needed: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
    assert needed is not None
    return torch.index_select(x, 0, needed, out=out)


def _weights(edge_weight: torch.Tensor | None, part: _Part, place: torch.device) -> torch.Tensor | None:
    if edge_weight is None:
        return None
    edges = part.edges if isinstance(part.edges, slice) else part.edges.to(edge_weight.device)
    return edge_weight.detach()[edges].to(place, non_blocking=True)


def _cut(graph: Graph, row_bytes: int, share: int, streams: int) -> list[_Part]:
    """Ranges of at most `share` bytes each; the distinct sources of one range predict those of the next."""
    csr, order = graph.csr, graph._order
    if order is not None:
        csr = in_order(csr[0], csr[1], csr[2], order)
    indptr = csr[0].cpu()
    edge_bytes = 4 if graph.device.type == "cpu" else 0  # of a graph that is copied range by range
    parts: list[_Part] = []
    begin, distinct = 0, 1.0  # distinct sources an edge
    while begin < graph.num_dst:
        likely = functools.partial(
            _likely, indptr, begin, distinct * row_bytes + edge_bytes, row_bytes + 2 * edge_bytes
        )
        counts = range(1, graph.num_dst - begin + 1)
        count = max(bisect.bisect_right(counts, float(share), key=likely), 1)
        while True:
            part = _part(csr, indptr, begin, begin + count)
            takes = (part.graph.num_src + count) * row_bytes + edge_bytes * (part.graph.num_edges + 2 * count)
            if takes <= share:
                break
            if count == 1:
                row = begin if graph._order is None else int(graph._order[begin])
                raise RuntimeError(
                    f"{_OP}: budget_bytes must be at least {takes * (streams + 1)} for destination {row} "
                    f"with {part.graph.num_edges} edges, got {share * (streams + 1)}"
                )
            count = max(min(count - 1, int(0.9 * count * share / takes)), 1)
        if part.graph.num_edges:
            distinct = min(1.0, 1.05 * part.graph.num_src / part.graph.num_edges)
        parts.append(part)
        begin += count
    return parts


def _likely(indptr: torch.Tensor, begin: int, of_edge: float, of_row: float, count: int) -> float:
    """Bytes that `count` rows from `begin` may take."""
    return int(indptr[begin + count] - indptr[begin]) * of_edge + count * of_row


def _part(csr: tuple[Any, ...], indptr: torch.Tensor, begin: int, end: int) -> _Part:
    edges = slice(int(indptr[begin]), int(indptr[end]))
    sources, offsets = csr[1][edges], csr[0][begin : end + 1] - edges.start
    needed, renumbered = torch.unique(sources, return_inverse=True)
    span = (int(needed[0]), int(needed[-1]) + 1) if len(needed) else (0, 0)
    rows: torch.Tensor | None = needed.long().cpu()
    count = len(needed)
    if span[1] - span[0] <= 1.25 * count:  # a run with few gaps: copied as it lies
        rows, count, renumbered = None, span[1] - span[0], sources - span[0]
    where = edges if csr[2] is None else csr[2][edges].long()
    return _Part(begin, end, where, rows, span, Graph(offsets, renumbered, count))
