"""Checks that the fake kernels of several ops make, in the words of csrc/<op>/checks.h."""

from typing import Any

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTS = (torch.int32, torch.int64)
Maybe = torch.Tensor | None


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check(ok: Any, message: str) -> None:
    torch._check(ok, lambda: message)


def check_dense(op: str, name: str, t: torch.Tensor) -> None:
    check(t.layout == torch.strided, f"{op}: {name} must be a dense tensor, got a sparse layout")


def check_floats(op: str, name: str, t: torch.Tensor) -> None:
    """Dense, of a floating dtype."""
    check_dense(op, name, t)
    words = f"{op}: {name} must be float16, bfloat16, float32 or float64, got {dtype_name(t.dtype)}"
    check(t.dtype in FLOATS, words)


def check_ints(op: str, name: str, t: torch.Tensor, beside: torch.Tensor, beside_name: str) -> None:
    """A vector of int32 or int64 on the device of another tensor."""
    check(t.dim() == 1, f"{op}: {name} must have 1 dimension, got {t.dim()}")
    check(t.dtype in INTS, f"{op}: {name} must be int32 or int64, got {dtype_name(t.dtype)}")
    check(t.device == beside.device, f"{op}: {name} must be on the device of {beside_name}")
