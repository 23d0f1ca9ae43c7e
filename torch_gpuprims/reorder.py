"""pack_rows, unpack_rows, spmv and spmv_csr: values of CSR rows in the order in which threads read them."""

from typing import Any

import torch

from . import _explain, reorder_grad
from . import _native as _native
from ._dispatch import reraise
from .reorder_gather import PackedGather, Redirect, gather_packed, redirect
from .reorder_packed import _CHECKED, PackedRows, fail, filler_of
from .reorder_plan import Offsets, plan_pack
from .segments import Segments

__all__ = [
    "PackedGather", "PackedRows", "Redirect", "gather_packed", "pack_rows", "redirect", "spmv", "spmv_csr",
    "unpack_rows",
]  # fmt: skip
_SHORT_ROWS = 2


def pack_rows(
    values: torch.Tensor, indptr: Offsets, *, indices: torch.Tensor | None = None, layout: str = "padded",
    fill: Any = 0, window: int | None = None, budget_bytes: int | None = None,
) -> PackedRows:  # fmt: skip
    """Lay the values of CSR rows out so that neighbouring threads, a row each, read neighbouring memory.

    Args:
        values: [nnz, ...], of any dtype.
        indptr: CSR offsets [rows + 1], int32 or int64, from 0 to nnz, never decreasing; or Segments.
        indices: [nnz] int32 or int64, not negative: the columns of a matrix, packed beside the values for
            spmv.
        layout: "padded": every row takes as many slots as the longest one, slot (i, row) at i * rows + row.
            "sliced": 32 rows at a time take as many slots a row as the longest of them, so that one long row
            costs its own slice alone.
        fill: what empty slots hold.
        window: sliced alone, a multiple of 32: rows are sorted by falling length in windows of so many rows
            (equal lengths stay in order), which makes slices of equal rows.
        budget_bytes: the most bytes that the packed copy may take; by default 4 times those of values and
            indices, and 16 MiB.

    Returns:
        PackedRows. `refresh(values)` fills its memory again, `repack(values)` makes another of the same rows,
        `unpack()` is the inverse, `chunks(n)` cuts it. Its values are differentiable in `values`.

    A builder: it looks at the offsets and waits for the device once. Fails where a tracer or the capture of a
    CUDA graph looks on; pack before, and refresh or repack inside.

    Deterministic. Cost: values and indices are read once and written once, padding included; a window costs
    a sort of the rows.

    Raises:
        ValueError: layout or window unknown, an offset or index wrong (the message says which), a fill that
            the dtype does not hold, or the packed copy larger than the budget; nothing has been allocated
            for it then.
        RuntimeError: sizes, dtypes, layout or devices are not as above.

    >>> packed = pack_rows(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 3]))
    >>> packed.values
    tensor([1., 3., 2., 0.])
    >>> packed.unpack()
    tensor([1., 2., 3.])
    """
    plan = plan_pack(values, indptr, indices, layout, window)
    plan.check_budget(budget_bytes)
    filler = filler_of("pack_rows", fill, values)
    try:
        packing = (plan.indptr, plan.slices, plan.order, plan.units())
        packed = reorder_grad.pack(values, *packing, plan.slots, filler, _CHECKED)
        tensors: dict[str, Any] = {"values": packed, "_fill": filler}
        tensors |= dict(zip(("indptr", "_slices", "order", "units"), packing, strict=True))
        if indices is not None:
            minus = torch.full((1,), -1, dtype=plan.index_dtype, device=values.device)
            columns = indices.detach().to(plan.index_dtype)
            tensors["indices"] = reorder_grad.pack(columns, *packing, plan.slots, minus, _CHECKED)
    except RuntimeError as error:
        reraise(error)
    if _explain.enabled:
        _explain.log("pack_rows", values, indptr, indices=indices, layout=layout, window=window)
    return PackedRows._of(tensors, layout, fill, values.shape[0], plan.columns, _CHECKED)


def unpack_rows(packed: PackedRows) -> torch.Tensor:
    """The values before packing, [nnz, ...]: the inverse of pack_rows, and each the other's gradient.

    Cost: reads the packed values once (padding is skipped where 32 rows end together), writes nnz of them.
    """
    _check_packed("unpack_rows", packed)
    return packed.unpack()


def spmv(packed: PackedRows, x: torch.Tensor, *, start: torch.Tensor | None = None) -> torch.Tensor:
    """The product of a packed sparse matrix and a vector, or a few vectors.

    Args:
        packed: from pack_rows with indices; 1-D values in float16, bfloat16, float32 or float64.
        x: [columns] or [columns, m], in the dtype of the values; m small (neighbor_aggregate is for many).
        start: [rows] or [rows, m], what the products are added to.

    Returns:
        [rows] or [rows, m]. 16-bit values add up in float32.

    Deterministic: the bits of a row depend on its own entries, in order, alone, and are those of spmv_csr,
    whatever the layout, on CPU and GPU (docs/reorder.md has the tree).

    Gradients to the values (in their packed place), x and start, twice if asked. They need the transposed
    entries: built at the first gradient, which waits for the device, and kept; packed.prepare(columns)
    builds them before tracing. They run on neighbor_aggregate and sddmm.

    Cost: reads every slot of values and indices once, and x through the caches. One launch (two where a row
    has more than 256 entries), no synchronisation. Empty slots of a slice are read too.

    Raises:
        ValueError: packed has no indices.
        RuntimeError: shapes, dtypes or devices are not as above, or x is shorter than the largest index.
    """
    _check_packed("spmv", packed)
    if packed.indices is None:
        fail("spmv", "packed must have indices: give them to pack_rows")
    least = packed._columns or 0
    if x.dim() > 0 and not torch.compiler.is_compiling() and x.shape[0] < least:
        raise RuntimeError(
            f"spmv: x must have at least {least} rows (the largest index and one), got {x.shape[0]}"
        )
    transpose = _transpose_for(packed, x)
    args = (packed.values, packed.indices, *packed._packing, x, start, *transpose, packed._promises)
    try:
        out = reorder_grad.spmv(*args)
    except RuntimeError as error:
        reraise(error)
    if _explain.enabled:
        _explain.log("spmv", packed, x)
    return out


def _transpose_for(packed: PackedRows, x: torch.Tensor) -> tuple[Any, ...]:
    """The transposed entries, where they are built or a gradient may be asked for."""
    if packed.t_indptr is None:
        wanted = torch.is_grad_enabled() and (x.requires_grad or packed.values.requires_grad)
        if not wanted and not torch.compiler.is_compiling():
            wanted = torch._C._functorch.maybe_current_level() is not None  # it hides requires_grad
        if not wanted:
            return None, None, None
    if packed.t_indptr is None or (
        not torch.compiler.is_compiling() and x.dim() > 0 and packed.t_indptr.shape[0] > x.shape[0] + 1
    ):
        packed.prepare()
    return packed.t_indptr, packed.t_indices, packed.t_ids


def spmv_csr(indptr: Offsets, indices: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The product of a sparse matrix in CSR and a vector, or a few vectors, without packing.

    Args:
        indptr: [rows + 1], int32 or int64, from 0 to nnz, never decreasing; or Segments, which were validated
            when they were made (and then, where no row is longer than 128, the call is one launch).
        indices: [nnz] int32 or int64, columns. One outside of x makes its row NaN.
        values: [nnz] in float16, bfloat16, float32 or float64.
        x: [columns] or [columns, m], in the dtype of values; m small (neighbor_aggregate is for many).

    Returns:
        [rows] or [rows, m]. 16-bit values add up in float32. Where a raw indptr is not as above, every result
        is NaN; with GPUPRIMS_CHECK=1 it raises RuntimeError.

    Deterministic: the bits are those of spmv on the packed matrix.

    Gradients to values and x, twice if asked. The one to x sorts the entries by column on each call: for
    training, Graph with neighbor_aggregate or a packed matrix keep that.

    Cost: reads indptr, indices and values once, x through the caches. One launch with short Segments, else
    an indptr is looked at first, and long rows are cut into groups of 256.

    Raises:
        RuntimeError: shapes, dtypes or devices are not as above.

    >>> indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])
    >>> spmv_csr(indptr, indices, torch.tensor([1.0, 2.0, 3.0]), torch.ones(2))
    tensor([3., 3.])
    """
    offsets, promises = indptr, 0
    if isinstance(indptr, Segments):
        offsets = indptr.indptr
        if indptr.promises and not torch.compiler.is_compiling():
            if values.dim() > 0 and values.shape[0] != indptr.numel:
                raise RuntimeError(
                    f"spmv_csr: values must have {indptr.numel} elements (the end of the rows), "
                    f"got {values.shape[0]}"
                )
            promises = _CHECKED | _SHORT_ROWS * bool(indptr.promises & 4)
    try:
        out = reorder_grad.spmv_csr(offsets, indices, values, x, promises)
    except RuntimeError as error:
        reraise(error)
    if _explain.enabled:
        _explain.log("spmv_csr", indptr, indices, values, x)
    return out


def _check_packed(op: str, packed: Any) -> None:
    if not isinstance(packed, PackedRows):
        raise TypeError(f"{op}: packed must be PackedRows, got {type(packed).__name__}; pack_rows makes them")
