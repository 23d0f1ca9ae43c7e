"""Parts of packed rows that share their memory."""

from itertools import pairwise

import torch

from .reorder_fake import GROUP, STRIP
from .reorder_packed import PackedRows, fail, seen_by_tracer, units_of


def chunks(packed: PackedRows, count: int) -> list[PackedRows]:
    if count < 1:
        fail("chunks", f"count must be at least 1, got {count}")
    if packed.num_rows == 0 or packed.num_slots == 0:
        return [packed]
    if packed.layout == "padded":
        longest = packed.num_slots // packed.num_rows
        cuts = [longest * i // min(count, longest) for i in range(min(count, longest) + 1)]
        return [_columns(packed, a, b) for a, b in pairwise(cuts)]
    if seen_by_tracer(packed.indptr):
        fail("chunks", "offsets are read from the device: cut before tracing or capture")
    return _strips(packed, count)


def _part(
    packed: PackedRows, first: int, last: int, entries: int | None, **tensors: torch.Tensor | None
) -> PackedRows:
    indices = None if packed.indices is None else packed.indices[first:last]
    every = {"values": packed.values[first:last], "indices": indices, "_fill": packed._fill} | tensors
    return PackedRows._of(every, packed.layout, packed.fill, entries, packed._columns, packed._promises)


def _columns(packed: PackedRows, first: int, last: int) -> PackedRows:
    """Slots `first` to `last` of every row."""
    rows = packed.num_rows
    lengths = (packed.lengths - first).clamp(0, last - first)
    indptr = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(packed.indptr.dtype)
    return _part(packed, first * rows, last * rows, None, indptr=indptr)


def _strips(packed: PackedRows, count: int) -> list[PackedRows]:
    slices, order = packed.slices, packed.order
    strips = slices.shape[0] - 1
    # A cut at strip c is whole where the first 32 c positions hold the first 32 c rows.
    whole = torch.ones(strips, dtype=torch.bool, device=slices.device)
    if order is not None:
        most = order.cummax(0).values[STRIP - 1 :: STRIP]
        every = torch.arange(1, len(most) + 1, device=slices.device) * STRIP
        whole[1 : len(most) + 1] = (most < every)[: strips - 1]
    ends = packed.indptr[:-1:STRIP]
    at, may_cut, ends_at = torch.stack([slices[:-1], whole.long(), ends.long()]).tolist()
    at, ends_at = [*at, packed.num_slots], [*ends_at, packed.num_entries]
    cuts = [0]
    for c in range(1, strips):
        if may_cut[c] and len(cuts) < count and at[c] * count >= packed.num_slots * len(cuts):
            cuts.append(c)
    parts = []
    for a, b in pairwise([*cuts, strips]):
        last_row = min(b * STRIP, packed.num_rows)
        widths = [(at[s + 1] - at[s]) // STRIP for s in range(a, b)]
        units = None
        if max(widths) > GROUP:
            total = sum(max((w + GROUP - 1) // GROUP, 1) for w in widths)
            units = units_of((slices[a + 1 : b + 1] - slices[a:b]) // STRIP, total)
        parts.append(
            _part(
                packed, at[a], at[b], ends_at[b] - ends_at[a],
                indptr=packed.indptr[a * STRIP : last_row + 1] - ends_at[a],
                _slices=slices[a : b + 1] - at[a],
                order=None if order is None else order[a * STRIP : last_row] - a * STRIP,
                units=units,
            )
        )  # fmt: skip
    return parts
