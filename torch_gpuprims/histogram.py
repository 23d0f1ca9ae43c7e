"""histogram and bincount; kernels are csrc/reduce/histogram*."""

from collections.abc import Callable
from typing import Any

import torch

from . import _explain
from . import _native as _native
from ._dispatch import below_autograd, plain, reraise
from .topk import _DTYPES, _name

_op = torch.ops.gpuprims.histogram.default
_MOST_BINS = 2**31
_NO_AMINMAX = (torch.uint16, torch.uint32, torch.uint64)


def histogram(input: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """How many elements lie in each of `bins` equal intervals of [min, max], as torch.histc, counted exactly.

    Args:
        input: any shape; float64/32/16, bfloat16, (u)int8/16/32/64 or bool.
        bins: the number of intervals, from 1 to 2^31.
        min, max: the range; elements outside of it are not counted, nor is NaN. Where they are equal, the
            least and greatest element take their place (one more read of the input), and where those are
            equal too, 1 is taken from the one and added to the other (beyond 2^52: one part in 2^52).

    Returns:
        int64 [bins] (torch.histc's counts have the input's dtype, in which float32 cannot count beyond 2^24).
        Element x is in bin floor((x - min) * bins / (max - min)), computed in float64, so an x on an edge is
        in the bin above, and max is in the last bin: the same on CPU and CUDA. Where the range is that of
        the data and not finite, nothing is counted (torch.histc raises, after waiting for the device).

    Deterministic: counts are integers. Asynchronous and capturable. Not differentiable.

    Cost: one read. Counts are collected in shared memory up to 50,000 bins or so, beyond in global memory.

    Raises:
        RuntimeError: bins is out of range, max is below min, or the dtype is not supported.

    >>> histogram(torch.tensor([1.0, 2.0, 1.0, 4.0]), bins=4, min=0, max=4)
    tensor([0, 2, 1, 1])
    """
    bounds: torch.Tensor | None = None
    known = input.layout is torch.strided and input.dtype in _DTYPES  # otherwise the op says what is wrong
    if min == max and known and input.numel() > 0:
        data = input.detach()
        if input.dtype in _NO_AMINMAX:
            data = data.double()
        low, high = torch.aminmax(data)
        first = torch.arange(2, device=data.device) == 0
        bounds = torch.where(first, low.double(), high.double())  # autocast has no stack of float64
    return _count(input, bounds, bins, float(min), float(max), True)


def bincount(x: torch.Tensor, num_bins: int) -> torch.Tensor:
    """How often each of 0, 1, .. num_bins - 1 occurs.

    Args:
        x: (u)int8/16/32/64 or bool, any shape. Other values are not counted.
        num_bins: the length of the result, from 1 to 2^31; torch.bincount waits for the device to find it.

    Returns:
        int64 [num_bins].

    Deterministic, asynchronous and capturable, which torch.bincount is not. Cost as histogram's.

    Raises:
        RuntimeError: x is not of an integer dtype, or num_bins is out of range.

    >>> bincount(torch.tensor([1, 3, 1, 9]), 4)
    tensor([0, 2, 0, 1])
    """
    if x.dtype.is_floating_point or x.dtype.is_complex:
        raise RuntimeError(f"bincount: x must be of an integer dtype, got {_name(x.dtype)}")
    if x.layout is not torch.strided:
        raise RuntimeError("bincount: x must be a dense tensor, got a sparse layout")
    if num_bins < 1 or num_bins > _MOST_BINS:
        raise RuntimeError(f"bincount: num_bins must be from 1 to {_MOST_BINS}, got {num_bins}")
    return _count(x, None, num_bins, 0.0, float(num_bins), False)


def _count(input: torch.Tensor, bounds: torch.Tensor | None, *rest: Any) -> torch.Tensor:
    try:
        input = input.detach() if input.requires_grad else input
        if plain(input, bounds):
            with below_autograd():
                result = _op(input, bounds, *rest)
        else:
            result = _op(input, bounds, *rest)
        if _explain.enabled:
            _explain.log("histogram", input, rest[0])
        return result
    except RuntimeError as error:
        reraise(error, "histogram", input=input)


# Shapes without data: the words of csrc/reduce/histogram_checks.h ------------------------------------------


def _check(ok: Any, words: Callable[[], str]) -> None:
    torch._check(ok, lambda: f"histogram: {words()}")


@torch.library.register_fake("gpuprims::histogram")
def _fake(
    input: torch.Tensor, range: torch.Tensor | None, bins: int, lo: float, hi: float, closed: bool = True
) -> torch.Tensor:
    _check(input.layout is torch.strided, lambda: "input must be a dense tensor, got a sparse layout")
    _check(input.dtype in _DTYPES, lambda: f"dtype {_name(input.dtype)} is not supported")
    _check(bins >= 1, lambda: f"bins must be from 1 to {_MOST_BINS}, got {bins}")
    _check(bins <= _MOST_BINS, lambda: f"bins must be from 1 to {_MOST_BINS}, got {bins}")
    if range is None:
        _check(lo <= hi, lambda: "max must not be below min")
    else:
        given = range
        _check(given.dtype == torch.float64, lambda: f"range must be float64, got {_name(given.dtype)}")
        _check(given.shape == (2,), lambda: "range must have the shape [2]")
        _check(given.device == input.device, lambda: "range must be on the device of input")
    return input.new_empty((bins,), dtype=torch.int64)


def _vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    """A loop: each input has counts of its own."""
    counts = [
        _op(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    return torch.stack(counts), 0


torch.library.register_vmap("gpuprims::histogram", _vmap)
