"""The plan tensor of a graph: how rows are dealt to warps, and in which order (csrc/aggregate/plan.h)."""

import torch

from .aggregate_csr import index_dtype

#: The constants of csrc/aggregate/plan.h.
HEADER, UNIT, ROW_COST, HUB_DEGREE, LONG_DEGREE = 4, 32, 2, 1024, 64
#: What the kernels walk: indptr, indices, edge_ids (or None), plan (or None: they make one).
Walk = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]


def plan_size(rows: int, edges: int) -> int:
    """Elements of a plan without an order."""
    return HEADER + (edges + ROW_COST * rows + UNIT - 1) // UNIT + 1 + edges // HUB_DEGREE


def make_plan(indptr: torch.Tensor, edges: int, order: torch.Tensor | None = None) -> torch.Tensor:
    """The plan of a CSR matrix, int64, with no wait for the device.

    order: [rows] int64; what row i makes is row order[i] of the output.
    """
    rows, device = len(indptr) - 1, indptr.device
    if device.type == "cuda":  # one launch instead of ten
        plan = torch.ops.gpuprims._aggregate_plan(indptr, edges)
        return plan if order is None else torch.cat([plan, order])
    header = torch.zeros(HEADER, dtype=torch.int64, device=device)
    numbers = torch.arange(rows, device=device)
    begin = indptr[:-1].long()
    units = torch.arange(plan_size(rows, edges) - HEADER - edges // HUB_DEGREE, device=device) * UNIT
    starts = torch.searchsorted(begin + numbers * ROW_COST, units)
    is_hub = indptr[1:] - indptr[:-1] >= HUB_DEGREE
    header[0] = is_hub.sum()
    room = edges // HUB_DEGREE  # the last slot takes all that are none
    slot = torch.where(is_hub, is_hub.cumsum(0) - 1, room)
    hubs = numbers.new_zeros(room + 1).scatter(0, slot, numbers)[:room]
    return torch.cat([header, starts, hubs, *([] if order is None else [order])])


def order_of(indptr: torch.Tensor, edges: int, plan: torch.Tensor | None) -> torch.Tensor | None:
    """The order that a plan holds, if any."""
    if plan is None:
        return None
    rows, size = indptr.shape[0] - 1, plan_size(indptr.shape[0] - 1, edges)
    return plan[size:] if plan.shape[0] == size + rows and rows > 0 else None


def in_order(
    indptr: torch.Tensor, indices: torch.Tensor, edge_ids: torch.Tensor | None, order: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The CSR matrix with its rows in another order; ids still name the edges as they were given."""
    edges, offsets = len(indices), indptr.dtype
    begin = indptr[:-1].index_select(0, order)
    degree = indptr[1:].index_select(0, order) - begin
    moved = torch.zeros_like(indptr)
    torch.cumsum(degree, 0, out=moved[1:])
    small = index_dtype(max(edges, 1))
    shift = (begin - moved[:-1]).to(small)
    at = torch.arange(edges, device=indptr.device, dtype=small)
    at += shift.repeat_interleave(degree.long(), output_size=edges)
    ids = at.to(offsets) if edge_ids is None else edge_ids.index_select(0, at)
    return moved, indices.index_select(0, at), ids


def walk_of(csr: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], order: torch.Tensor | None) -> Walk:
    """What the kernels walk: on CUDA with a plan, in schedule order where there is one."""
    indptr, indices, edge_ids = csr
    edges = len(indices)
    if order is not None:
        moved = in_order(indptr, indices, edge_ids, order)
        return (*moved, make_plan(moved[0], edges, order))
    if indptr.device.type != "cuda":
        return (*csr, None)
    return (*csr, make_plan(indptr, edges))
