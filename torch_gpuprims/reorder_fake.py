"""Fake kernels of the reordering ops; the checks are csrc/reorder/checks.h, word for word."""

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from . import _native as _native
from ._fake_checks import Maybe as _Maybe
from ._fake_checks import check as _check
from ._fake_checks import check_dense as _dense
from ._fake_checks import check_floats as _floats
from ._fake_checks import check_ints as _ints
from ._fake_checks import dtype_name as _name

STRIP = 32  # kStrip of csrc/reorder/layout.h
GROUP = 256  # kGroup


def _known(*numbers: Any) -> bool:
    """Not symbols: of those the kernel asks."""
    return all(isinstance(n, int) for n in numbers)


def _rows(op: str, name: str, t: torch.Tensor) -> None:
    _dense(op, name, t)
    _check(t.dim() >= 1, f"{op}: {name} must have at least 1 dimension, got 0")


def _same_dtype(op: str, name: str, t: torch.Tensor, values: torch.Tensor) -> None:
    words = f"{op}: {name} must have the dtype of values ({_name(values.dtype)}), got {_name(t.dtype)}"
    _check(t.dtype == values.dtype, words)


def _fill(op: str, fill: _Maybe, values: torch.Tensor) -> None:
    if fill is None:
        return
    _check(fill.numel() == 1, f"{op}: fill must have 1 element, got {fill.numel()}")
    _same_dtype(op, "fill", fill, values)
    _check(fill.device == values.device, f"{op}: fill must be on the device of values")


def _packing(
    op: str, values: torch.Tensor, of: str, indptr: torch.Tensor, slices: _Maybe, order: _Maybe,
    units: _Maybe, slots: Any,
) -> None:  # fmt: skip
    _ints(op, "indptr", indptr, values, of)
    _check(indptr.shape[0] >= 1, f"{op}: indptr must have at least 1 element, got 0")
    rows = indptr.shape[0] - 1
    _check(slots >= 0, f"{op}: slots must not be negative, got {slots}")
    if slices is not None:
        _ints(op, "slices", slices, values, of)
        _check(slices.dtype == torch.int64, f"{op}: slices must be int64, got int32")
        if _known(rows, slices.shape[0]):
            need = (rows + STRIP - 1) // STRIP + 1
            words = f"{op}: slices must have {need} elements, got {slices.shape[0]}"
            _check(slices.shape[0] == need, words)
    elif _known(rows, slots):
        words = f"{op}: slots must be a multiple of the number of rows ({rows}), got {slots}"
        _check(slots == 0 if rows == 0 else slots % rows == 0, words)
    if order is not None:
        _ints(op, "order", order, values, of)
        _check(
            order.dtype == indptr.dtype,
            f"{op}: order must have the dtype of indptr ({_name(indptr.dtype)}), got {_name(order.dtype)}",
        )
        have = order.shape[0]
        _check(have == rows, f"{op}: order must have {rows} elements, got {have}")
    if units is not None:
        words = f"{op}: units must have shape [2, units], got {list(units.shape)}"
        _check(units.dim() == 2, words)
        _check(units.shape[0] == 2, words)
        _check(units.dtype == torch.int32, f"{op}: units must be int32, got {_name(units.dtype)}")
        _check(units.device == values.device, f"{op}: units must be on the device of {of}")


def _out(op: str, out: torch.Tensor, values: torch.Tensor) -> None:
    _rows(op, "out", out)
    _same_dtype(op, "out", out, values)
    _check(out.device == values.device, f"{op}: out must be on the device of values")
    _check(out.is_contiguous(), f"{op}: out must be contiguous")
    words = f"{op}: out must have the features of values {list(values.shape)}, got {list(out.shape)}"
    _check(out.shape[1:] == values.shape[1:], words)


@torch.library.register_fake("gpuprims::pack_rows")
def _pack_rows(
    values: torch.Tensor, indptr: torch.Tensor, slices: _Maybe, order: _Maybe, units: _Maybe, slots: int,
    fill: _Maybe = None, promises: int = 0,
) -> torch.Tensor:  # fmt: skip
    _rows("pack_rows", "values", values)
    _packing("pack_rows", values, "values", indptr, slices, order, units, slots)
    _fill("pack_rows", fill, values)
    return values.new_empty((slots, *values.shape[1:]))


@torch.library.register_fake("gpuprims::_pack_rows")
def _pack_rows_into(
    out: torch.Tensor, values: torch.Tensor, indptr: torch.Tensor, slices: _Maybe, order: _Maybe,
    units: _Maybe, fill: _Maybe = None, promises: int = 0,
) -> None:  # fmt: skip
    _rows("pack_rows", "values", values)
    _out("pack_rows", out, values)
    _packing("pack_rows", values, "values", indptr, slices, order, units, out.shape[0])
    _fill("pack_rows", fill, values)


@torch.library.register_fake("gpuprims::unpack_rows")
def _unpack_rows(
    packed: torch.Tensor, indptr: torch.Tensor, slices: _Maybe, order: _Maybe, units: _Maybe, entries: int,
    promises: int = 0,
) -> torch.Tensor:  # fmt: skip
    op = "unpack_rows"
    _rows(op, "packed", packed)
    _packing(op, packed, "packed", indptr, slices, order, units, packed.shape[0])
    _check(entries >= 0, f"{op}: entries must not be negative, got {entries}")
    return packed.new_empty((entries, *packed.shape[1:]))


def _gather(values: torch.Tensor, index: torch.Tensor, fill: _Maybe) -> None:
    _rows("gather_packed", "values", values)
    _ints("gather_packed", "index", index, values, "values")
    _fill("gather_packed", fill, values)


@torch.library.register_fake("gpuprims::gather_packed")
def _gather_packed(
    values: torch.Tensor, index: torch.Tensor, fill: _Maybe = None, t_indptr: _Maybe = None,
    t_order: _Maybe = None,
) -> torch.Tensor:  # fmt: skip
    _gather(values, index, fill)
    return values.new_empty((index.shape[0], *values.shape[1:]))


@torch.library.register_fake("gpuprims::_gather_packed")
def _gather_packed_into(
    out: torch.Tensor, values: torch.Tensor, index: torch.Tensor, fill: _Maybe = None
) -> None:
    _gather(values, index, fill)
    _out("gather_packed", out, values)
    rows = index.shape[0]
    _check(out.shape[0] == rows, f"gather_packed: out must have {rows} rows, got {out.shape[0]}")


def _numbers(op: str, values: torch.Tensor) -> None:
    _floats(op, "values", values)
    _check(values.dim() == 1, f"{op}: values must have 1 dimension, got {values.dim()}")


def _operand(op: str, name: str, x: torch.Tensor, values: torch.Tensor) -> None:
    _dense(op, name, x)
    _same_dtype(op, name, x, values)
    _check(x.dim() in (1, 2), f"{op}: {name} must have 1 or 2 dimensions, got {x.dim()}")
    _check(x.device == values.device, f"{op}: {name} must be on the device of values")
    if _known(x.shape[0]):
        most = 2**31 - 1
        _check(x.shape[0] <= most, f"{op}: {name} must have at most {most} rows, got {x.shape[0]}")


def _entries(op: str, indices: torch.Tensor, values: torch.Tensor) -> None:
    _ints(op, "indices", indices, values, "values")
    need, have = values.shape[0], indices.shape[0]
    _check(have == need, f"{op}: indices must have {need} elements (as values has), got {have}")


@torch.library.register_fake("gpuprims::spmv")
def _spmv(
    values: torch.Tensor, indices: torch.Tensor, indptr: torch.Tensor, slices: _Maybe, order: _Maybe,
    units: _Maybe, x: torch.Tensor, start: _Maybe = None, t_indptr: _Maybe = None, t_indices: _Maybe = None,
    t_ids: _Maybe = None, promises: int = 0,
) -> torch.Tensor:  # fmt: skip
    _numbers("spmv", values)
    _entries("spmv", indices, values)
    _packing("spmv", values, "values", indptr, slices, order, units, values.shape[0])
    _operand("spmv", "x", x, values)
    shape = (indptr.shape[0] - 1, *x.shape[1:])
    if start is not None:
        _operand("spmv", "start", start, values)
        words = f"spmv: start must have the shape of the result, got {list(start.shape)}"
        _check(start.dim() == len(shape), words)
        for have, need in zip(start.shape, shape, strict=True):
            _check(have == need, words)
    return x.new_empty(shape)


@torch.library.register_fake("gpuprims::spmv_csr")
def _spmv_csr(
    indptr: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, x: torch.Tensor, promises: int = 0
) -> torch.Tensor:
    _numbers("spmv_csr", values)
    _ints("spmv_csr", "indptr", indptr, values, "values")
    _check(indptr.shape[0] >= 1, "spmv_csr: indptr must have at least 1 element, got 0")
    _entries("spmv_csr", indices, values)
    _operand("spmv_csr", "x", x, values)
    return x.new_empty((indptr.shape[0] - 1, *x.shape[1:]))


@register_flop_formula(torch.ops.gpuprims.spmv)
def _spmv_flops(values_shape: Any, *shapes: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Empty slots included: shapes do not tell them apart."""
    columns = out_shape[1] if len(out_shape) > 1 else 1
    return 2 * values_shape[0] * columns


@register_flop_formula(torch.ops.gpuprims.spmv_csr)
def _spmv_csr_flops(
    indptr: Any, indices_shape: Any, *shapes: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    columns = out_shape[1] if len(out_shape) > 1 else 1
    return 2 * indices_shape[0] * columns
