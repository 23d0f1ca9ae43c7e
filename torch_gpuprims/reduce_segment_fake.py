"""Fake kernels of segment_reduce and segment_expand; the checks are csrc/reduce/segment_checks.h's words."""

from typing import Any

import torch

from . import _native as _native
from .topk import _DTYPES, _name

#: Codes of SegmentOp in csrc/reduce/segment_ops.h.
OPS = ("sum", "mean", "max", "min", "prod", "logsumexp")
SUM, MEAN, MAX, MIN, PROD, LOGSUMEXP = range(6)


def _check(ok: Any, words: Any) -> None:
    torch._check(ok, words)


def _check_inputs(op: str, values: torch.Tensor, indptr: torch.Tensor) -> None:
    _check(
        values.layout is torch.strided,
        lambda: f"{op}: values must be a dense tensor, got a sparse layout",
    )
    _check(values.dtype in _DTYPES, lambda: f"{op}: dtype {_name(values.dtype)} is not supported")
    _check(values.dim() in (1, 2), lambda: f"{op}: values must have 1 or 2 dimensions, got {values.dim()}")
    _check(indptr.dim() == 1, lambda: f"{op}: indptr must have 1 dimension, got {indptr.dim()}")
    _check(
        indptr.dtype in (torch.int32, torch.int64),
        lambda: f"{op}: indptr must be int32 or int64, got {_name(indptr.dtype)}",
    )
    _check(indptr.device == values.device, lambda: f"{op}: indptr must be on the device of values")
    _check(indptr.shape[0] >= 1, lambda: f"{op}: indptr must have at least 1 element, got 0")


@torch.library.register_fake("gpuprims::segment_reduce")
def _fake_reduce(values: torch.Tensor, indptr: torch.Tensor, op: int, promises: int = 0) -> torch.Tensor:
    _check_inputs("segment_reduce", values, indptr)
    _check(0 <= op < len(OPS), lambda: f"segment_reduce: op must be a code from 0 to 5, got {op}")
    if op in (MEAN, LOGSUMEXP):
        _check(
            values.dtype.is_floating_point,
            lambda: f"segment_reduce: {OPS[op]} needs a floating dtype, got {_name(values.dtype)}",
        )
    counts = op in (SUM, PROD) and not values.dtype.is_floating_point and values.dtype != torch.uint64
    dtype = torch.int64 if counts else values.dtype
    return values.new_empty((indptr.shape[0] - 1, *values.shape[1:]), dtype=dtype)


@torch.library.register_fake("gpuprims::segment_expand")
def _fake_expand(values: torch.Tensor, indptr: torch.Tensor, n: int, promises: int = 0) -> torch.Tensor:
    _check_inputs("segment_expand", values, indptr)
    segments, rows = indptr.shape[0] - 1, values.shape[0]
    _check(
        rows == segments,
        lambda: f"segment_expand: values must have {segments} rows (the number of segments), got {rows}",
    )
    _check(n >= 0, lambda: f"segment_expand: n must not be negative, got {n}")
    return values.new_empty((n, *values.shape[1:]))
