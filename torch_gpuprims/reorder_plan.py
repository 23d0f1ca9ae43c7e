"""What pack_rows knows before it allocates: sizes, the order of rows, and whether the budget holds them."""

from dataclasses import dataclass
from typing import Any

import torch

from .aggregate_csr import index_dtype, stable_order
from .reorder_fake import GROUP, STRIP
from .reorder_packed import _LAYOUTS, fail, groups_of, seen_by_tracer, units_of
from .segments import Segments

#: A packed copy may take this many times the bytes of what is packed, and 16 MiB.
BUDGET_TIMES, BUDGET_MORE = 4, 16 << 20
Offsets = torch.Tensor | Segments


@dataclass
class PackPlan:
    """Of one call; `slots` and `longest` are the host's."""

    layout: str
    indptr: torch.Tensor
    slices: torch.Tensor | None
    order: torch.Tensor | None
    widths: torch.Tensor | None
    slots: int
    longest: int
    unit_count: int
    columns: int
    index_dtype: torch.dtype
    entry_bytes: int
    entries: int

    @property
    def rows(self) -> int:
        return self.indptr.shape[0] - 1

    @property
    def nbytes(self) -> int:
        return self.slots * self.entry_bytes

    def check_budget(self, budget: int | None) -> None:
        budget = budget_of(self, budget)
        if self.nbytes <= budget:
            return
        formula = f"rows x longest row = {self.rows} x {self.longest}"
        if self.layout == "sliced":
            formula = f"slices of 32 rows, each as wide as its longest, of at most {self.longest}"
        hint = (
            "layout='sliced' takes less where rows differ"
            if self.layout == "padded"
            else "a window takes less"
        )
        fail(
            "pack_rows",
            f"the packed copy of {self.entries} entries would take {self.nbytes} bytes ({formula} -> "
            f"{self.slots} slots of {self.entry_bytes} bytes), the budget is {budget}; {hint}, "
            "or raise budget_bytes",
        )

    def units(self) -> torch.Tensor | None:
        """Where a slice is wider than a group."""
        if self.widths is None or self.longest <= GROUP:
            return None
        return units_of(self.widths, self.unit_count)


def budget_of(plan: PackPlan, given: int | None) -> int:
    return BUDGET_TIMES * plan.entries * plan.entry_bytes + BUDGET_MORE if given is None else given


def _check(values: torch.Tensor, indptr: Any, indices: Any, layout: str, window: int | None) -> None:
    if layout not in _LAYOUTS:
        fail("pack_rows", f"layout must be 'padded' or 'sliced', got {layout!r}")
    if window is not None and layout != "sliced":
        fail("pack_rows", "window is for layout='sliced'")
    if window is not None and (not isinstance(window, int) or window < STRIP or window % STRIP != 0):
        fail("pack_rows", f"window must be a positive multiple of 32, got {window!r}")
    if values.layout != torch.strided:
        raise RuntimeError("pack_rows: values must be a dense tensor, got a sparse layout")
    if values.dim() == 0:
        raise RuntimeError("pack_rows: values must have at least 1 dimension, got 0")
    for name, t in (("indptr", indptr), ("indices", indices)):
        if t is None:
            continue
        if t.dim() != 1:
            raise RuntimeError(f"pack_rows: {name} must have 1 dimension, got {t.dim()}")
        if t.dtype not in (torch.int32, torch.int64):
            got = str(t.dtype).removeprefix("torch.")
            raise RuntimeError(f"pack_rows: {name} must be int32 or int64, got {got}")
        if t.device != values.device:
            raise RuntimeError(f"pack_rows: {name} must be on the device of values")
    if len(indptr) == 0:
        raise RuntimeError("pack_rows: indptr must have at least 1 element, got 0")
    if indices is not None and len(indices) != len(values):
        raise RuntimeError(f"pack_rows: indices must have {len(values)} elements, got {len(indices)}")
    if seen_by_tracer(values) or seen_by_tracer(indptr):
        fail(
            "pack_rows",
            "offsets are read on the host: pack before tracing or capture, then repack or refresh",
        )


def plan_pack(
    values: torch.Tensor, indptr: Offsets, indices: torch.Tensor | None, layout: str, window: int | None
) -> PackPlan:
    """Waits for the device once (twice where an offset is wrong)."""
    given = indptr.indptr if isinstance(indptr, Segments) else indptr
    _check(values, given, indices, layout, window)
    with torch.no_grad(), torch.inference_mode(False):
        return _measure(values, given.detach(), indices, layout, window)


def _measure(
    values: torch.Tensor, given: torch.Tensor, indices: torch.Tensor | None, layout: str, window: int | None
) -> PackPlan:
    entries, rows, device = values.shape[0], len(given) - 1, given.device
    dtype = index_dtype(max(entries, rows))
    lengths = (given[1:] - given[:-1]).long()
    zero = torch.zeros((), dtype=torch.int64, device=device)
    order = slices = widths = None
    size, units = zero, zero
    if layout == "sliced":
        sorted_lengths = lengths
        if window is not None and rows > 0:
            # Stable, by window and falling length. Wrong lengths give some order, which nobody sees.
            part = torch.arange(rows, device=device) // window
            keys = part * (entries + 1) + (entries - lengths.clamp(0, entries))
            order = stable_order(keys, (rows + window - 1) // window * (entries + 1)).long()
            sorted_lengths = lengths[order]
        strips = (rows + STRIP - 1) // STRIP
        padded = torch.nn.functional.pad(sorted_lengths, (0, strips * STRIP - rows))
        widths = padded.view(strips, STRIP).amax(1) if strips else padded
        slices = torch.nn.functional.pad((widths * STRIP).cumsum(0), (1, 0))
        size, units = slices[-1], groups_of(widths).sum()
    longest = lengths.max() if rows else zero
    falls = (given[1:] < given[:-1]).any().long()  # compared, not subtracted: a difference may wrap
    low = indices.min().long() if indices is not None and entries else zero
    high = indices.max().long() if indices is not None and entries else zero - 1
    facts = [given[0].long(), given[-1].long(), falls, longest, size, units, low, high]
    start, end, wrong, most, slots, unit_count, lowest, highest = torch.stack(facts).tolist()
    if start != 0 or end != entries or wrong:
        try:
            Segments(given, entries)
        except ValueError as error:
            words = str(error).removeprefix("Segments: ").replace("number of elements", "number of values")
            fail("pack_rows", words)
    if lowest < 0:
        assert indices is not None
        at = int((indices < 0).nonzero()[0])
        fail("pack_rows", f"indices must not be negative, but indices[{at}] = {int(indices[at])}")
    narrow = index_dtype(highest + 1)
    entry = values.element_size() * (values[0].numel() if entries else 0)
    if indices is not None:
        entry += narrow.itemsize
    return PackPlan(
        layout, given.to(dtype, copy=True).contiguous(), slices, None if order is None else order.to(dtype),
        widths, slots if layout == "sliced" else rows * most, most, unit_count, highest + 1, narrow, entry,
        entries,
    )  # fmt: skip
