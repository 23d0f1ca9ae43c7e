"""What packing would take, in words, for torch_gpuprims.explain; called through _explain.py."""

from typing import Any

import torch

from .reorder_fake import GROUP, STRIP
from .reorder_plan import budget_of, plan_pack


def pack_rows(
    values: torch.Tensor,
    indptr: Any,
    *,
    indices: Any = None,
    layout: str = "padded",
    window: int | None = None,
    budget_bytes: int | None = None,
    **kwargs: Any,
) -> str:
    """Reads the offsets, as pack_rows does."""
    plan = plan_pack(values, indptr, indices, layout, window)
    dtype = str(values.dtype).removeprefix("torch.")
    how = {"padded": f"rows x longest row = {plan.rows} x {plan.longest}", "sliced": "slices of 32 rows"}[
        layout
    ]
    sorted_in = f", rows sorted in windows of {window}" if window else ""
    padding = 100 * (plan.slots - plan.entries) / max(plan.slots, 1)
    budget = budget_of(plan, budget_bytes)
    fits = "within" if plan.nbytes <= budget else "over"
    shape = f"[{plan.rows} rows, {plan.entries} entries, longest {plan.longest}]"
    size = f"{plan.slots} slots, {padding:.1f} % padding, {plan.nbytes} bytes"
    return f"pack_rows {dtype} {shape} -> {layout}, {how}{sorted_in}: {size}, {fits} the budget of {budget}"


def spmv(packed: Any, x: torch.Tensor, **kwargs: Any) -> str:
    dtype = str(packed.dtype).removeprefix("torch.")
    strips = (packed.num_rows + STRIP - 1) // STRIP
    if packed.units is None:
        walk = packed.layout == "sliced" and packed.num_slots <= 16 * packed.num_rows  # spmv_cuda.cpp
        walk = walk and packed.indices.dtype == torch.int32 and x.numel() == x.shape[0]
        work = f"{strips} units of 32 rows, {'warps walk over them' if walk else 'a warp each'}, one launch"
    else:
        work = f"{packed.units.shape[1]} units of 32 rows by {GROUP} columns, a warp each, two launches"
    moved = packed.num_slots * (packed.values.element_size() + packed.indices.element_size()) / 1e6
    return (
        f"spmv {dtype} [{packed.num_rows} rows, {packed.num_slots} slots, {packed.layout}] -> {work}, "
        f"reads {moved:.3f} MB of slots"
    )


def spmv_csr(indptr: Any, indices: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> str:
    rows = getattr(indptr, "indptr", indptr).shape[0] - 1
    short = getattr(indptr, "promises", 0) & 4
    launches = "one launch" if short else f"offsets looked at, rows above {GROUP} cut, four launches"
    dtype = str(values.dtype).removeprefix("torch.")
    moved = values.shape[0] * (values.element_size() + indices.element_size()) / 1e6
    return (
        f"spmv_csr {dtype} [{rows} rows, {values.shape[0]} entries] -> a warp 32 rows, {launches}, "
        f"reads {moved:.3f} MB of entries"
    )
