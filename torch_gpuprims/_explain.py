"""What a call would do: the algorithm, grid, workspace and bytes that its plan chooses, in one line."""

import ctypes
import logging
import math
import os
from typing import Any

import torch

from ._native import library

_log = logging.getLogger("torch_gpuprims")
#: GPUPRIMS_LOG=1, read at import: every call says what it does, at level INFO.
enabled = os.environ.get("GPUPRIMS_LOG", "0") not in ("", "0")
if enabled:
    logging.basicConfig()
    _log.setLevel(logging.INFO)

_H200_SMS = 132  # what a plan is made for where there is no GPU
_ALGOS = ("", "warp_row", "block_row", "split_row", "sort")
# The order of enum Dtype in csrc/common/dtype.h.
_DTYPES = (
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
)  # fmt: skip


def _topk(input: torch.Tensor, k: int, dim: int = -1, *args: Any, mask: Any = None, **kwargs: Any) -> str:
    n = input.shape[dim] if input.dim() else 1
    rows = math.prod(input.shape) // n if n else 0
    if input.device.type != "cuda" and torch.cuda.is_available() is False:
        sms = _H200_SMS
    else:
        sms = torch.cuda.get_device_properties(input.device if input.is_cuda else 0).multi_processor_count
    name = os.environ.get("GPUPRIMS_TOPK_ALGO", "")
    forced = _ALGOS.index(name) if name in _ALGOS else 0
    text = ctypes.create_string_buffer(512)
    numbers = [ctypes.c_int64(value) for value in (rows, n, k)]
    library.gpuprims_explain_topk(
        _DTYPES.index(input.dtype), *numbers, sms, forced, mask is not None, text, ctypes.c_int64(len(text))
    )
    where = "" if input.is_cuda else f" (on a GPU of {sms} multiprocessors; this input is on {input.device})"
    return text.value.decode() + where


_OPS = {"topk": _topk}


def explain(op: str, *args: Any, **kwargs: Any) -> str:
    """One line about what `op`, called with these arguments, does on a GPU.

    The plan is a pure function of sizes, dtype and device: nothing is launched, and no GPU is needed.

    >>> explain("topk", torch.empty(4096, 256), 8).split(" -> ")[0]
    'topk float32 [4096, 256] k=8'
    """
    if op not in _OPS:
        raise ValueError(f"explain: no op named {op!r}; there are {', '.join(sorted(_OPS))}")
    return _OPS[op](*args, **kwargs)


def log(op: str, *args: Any, **kwargs: Any) -> None:
    """Log a call's explanation; wrappers call it where `enabled`."""
    _log.info(explain(op, *args, **kwargs))
