"""Reductions: sums, extremes, norms, variances, logsumexp, statistics; kernels are in csrc/reduce."""

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from . import _explain
from . import reduce_fake as codes
from ._dispatch import (
    _function_modes,
    _functorch_level,
    _grad_enabled,
    _Tensor,
    _tracing,
    below_autograd,
    direct,
    eager,
    plain,
    plain_handle,
    reraise,
)
from .reduce_grad import eager_reduce, run_dot, run_reduce, run_stats

_ops = torch.ops.gpuprims
_op = _ops.reduce.default
_call, _handle = direct(_op)
_, _stats_handle = direct(_ops.stats.default)
_, _dot_handle = direct(_ops.dot.default)
_plain_handle = plain_handle(
    "reduce",
    lambda input, op, dim: _op(input, op, None if dim == codes.ALL_DIMS else [dim]),
    codes._plain,
)
_ALL = codes.ALL_DIMS
_CODES = {name: code for code, name in enumerate(codes.NAMES) if name != "norm"}
_NORMS = {1: codes.NORM1, 2: codes.NORM2, math.inf: codes.NORM_INF}
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(codes.DTYPES)}
#: What `op` may be.
REDUCE_OPS = tuple(dict.fromkeys(codes.NAMES))


class Stats(NamedTuple):
    min: torch.Tensor
    max: torch.Tensor
    mean: torch.Tensor
    var: torch.Tensor
    nan_count: torch.Tensor
    argmin: torch.Tensor | None = None
    argmax: torch.Tensor | None = None


# torch.export.save writes a NamedTuple by a name.
torch.utils._pytree._register_namedtuple(Stats, serialized_type_name="torch_gpuprims.Stats")


def reduce_code(op: str, ord: float = 2) -> int:
    """The raw op's number for an operation, or ValueError with all that there are."""
    if op == "norm":
        code = _NORMS.get(ord) if isinstance(ord, Hashable) else None
        if code is None:
            raise ValueError(f"reduce: ord must be 1, 2 or inf, got {ord!r}")
        return code
    code = _CODES.get(op) if isinstance(op, str) else None
    if code is None:
        raise ValueError(f"reduce: op must be one of {', '.join(REDUCE_OPS)}, got {op!r}")
    return code


def _dtype(dtype: torch.dtype | None) -> int:
    if dtype is None:
        return -1
    code = _DTYPE_CODES.get(dtype)
    if code is None:
        raise RuntimeError(f"reduce: dtype {str(dtype).removeprefix('torch.')} is not supported")
    return code


def reduce(
    input: torch.Tensor,
    op: str,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    correction: float = 1,
    ord: float = 2,
    out: Any = None,
) -> torch.Tensor:
    """Reduce one dimension, several, or all, in one read of the input, with the same bits always.

    Args:
        input: tensor of any shape and strides; float64/32/16, bfloat16, (u)int8/16/32/64 or bool. Nothing is
            copied, unless more than 10 groups of dimensions are left when neighbours are joined.
        op: "sum", "mean", "prod"; "max", "min" (values, as torch.amax); "argmax", "argmin"; "any", "all";
            "norm" (of order `ord`); "var", "std" (with `correction`); "logsumexp".
        dim: the dimensions to reduce; None, or none at all, is every dimension. argmax and argmin take one
            dim, or None for an index into the flattened input.
        keepdim: keep reduced dimensions with size 1.
        dtype: of the result of sum, mean, prod and norm. float64 for a float32 input adds in float64; a
            16-bit input is converted to float32 before. Where a floating result of integers was asked for,
            sums add in int64 and are rounded once; but products, and sums and means of 8-byte integers, which
            would wrap, convert the input to float64 before, as PyTorch does. A conversion is a copy.
        correction: var and std divide by max(0, n - correction).
        ord: of norm: 1, 2 or inf (vector norms).
        out: refused; use copy_.

    Returns:
        A contiguous tensor. Sums and products of integers are int64 (uint64 of uint64), exact modulo 2^64;
        16-bit floats are added in float32 and rounded once; argmax is int64, any and all are bool.

    NaN propagates in max and min, and argmax is the first NaN's index; ties go to the lowest index. A zero
    that max or min return is +0.0. An empty extent gives 0, 1, NaN (mean, var, std), -inf, False or True;
    where there is no identity it is an error.

    Determinism: additions form a tree that depends on the number of elements, their width, and whether they
    are neighbours in memory or not: the same bits for a row by itself, in any batch, at any offset, with any
    strides but 1, on any GPU; sum and mean have the same bits on the CPU. docs/reduce.md defines the trees.

    Gradients flow through all floating results, twice too. That of max and min goes to the first extremum
    (torch.amax shares it out equally among ties).

    Cost: one read of the input, one launch. Variance: shifted sums, joined by Chan, Golub & LeVeque (1983);
    logsumexp: one pass with a running maximum (Milakov & Gimelshein, 2018).

    Raises:
        ValueError: op or ord is none of the above; the message lists them.
        RuntimeError: dim, dtype or layout is not as above, or op is not defined for the dtype; the message
            says which and what was given.
        TypeError: `out` was given.
        torch.OutOfMemoryError: no memory for the result or the workspace.

    >>> reduce(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "sum", 1)
    tensor([3., 7.])
    >>> reduce(torch.tensor([3, 1, 3]), "argmax")
    tensor(0)
    """
    code = _CODES.get(op) if isinstance(op, str) else None
    if code is None:
        code = reduce_code(op, ord)
    try:
        if (
            dtype is None and not keepdim and correction == 1 and (dim is None or type(dim) is int)
            and dim != _ALL and out is None and not _explain.enabled
            # plain(input), spelled out: a Python call costs 0.1 us.
            and not (_tracing() or _functorch_level() is not None or _function_modes())
            and forward_ad._current_level < 0
            and type(input) is _Tensor
            and not (input.requires_grad and _grad_enabled())
        ):  # fmt: skip
            return _call(_plain_handle, input, code, _ALL if dim is None else dim)
        return _general(input, code, dim, keepdim, dtype, correction, out)
    except RuntimeError as error:
        reraise(error, "reduce", input=input)


def _general(
    input: torch.Tensor, code: int, dim: Any, keepdim: bool, dtype: Any, correction: float, out: Any
) -> torch.Tensor:
    if out is not None:
        raise TypeError("reduce: out= is not supported; use result.copy_(reduce(...)) and the like")
    arguments = (input, code, codes.listed(dim), keepdim, _dtype(dtype), float(correction))
    if plain(input):
        guard = below_autograd()  # entered when made; `with` would cost 0.3 us more
        try:
            result = _call(_handle, *arguments)
        finally:
            del guard
    elif eager(input):
        result = eager_reduce(*arguments)
    else:
        result = run_reduce(*arguments)
    if _explain.enabled:
        _explain.log("reduce", input, code, dim, dtype=dtype)
    return result


def stats(
    input: torch.Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    correction: float = 1,
    indices: bool = False,
) -> Stats:
    """Least, greatest, mean, variance and number of NaNs, in one read of the input.

    Args:
        input: floating tensor of any shape and strides.
        dim, keepdim: as in `reduce`; with `indices`, one dim or None.
        correction: of the variance, which is divided by max(0, n - correction).
        indices: also argmin and argmax (the first one; the first NaN), which are None otherwise.

    Returns:
        Stats(min, max, mean, var, nan_count, argmin, argmax): in input's dtype, nan_count and indices int64.
        NaN propagates into the first four.

    Determinism, gradients (of the first four) and errors as in `reduce`. Cost: the read that one sum takes.

    >>> stats(torch.tensor([1.0, 2.0, 3.0])).var
    tensor(1.)
    """
    arguments = (input, codes.listed(dim), keepdim, float(correction), indices)
    try:
        if plain(input):
            guard = below_autograd()
            try:
                result = _call(_stats_handle, *arguments)
            finally:
                del guard
        else:
            result = run_stats(*arguments)
        if _explain.enabled:
            _explain.log("stats", input, dim)
        return Stats(*result) if indices else Stats(*result[:5])
    except RuntimeError as error:
        reraise(error, "stats", input=input)


def dot(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The inner product of two vectors, as torch.dot, in the tree of `reduce(..., "sum")`.

    Args:
        input, other: [n], one floating dtype and device; 16-bit floats are multiplied and added in float32.

    Returns:
        A tensor of no dimensions. Same bits on every run, for any strides and offsets.

    >>> dot(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    tensor(11.)
    """
    try:
        if plain(input, other):
            guard = below_autograd()
            try:
                result = _call(_dot_handle, input, other)
            finally:
                del guard
        else:
            result = run_dot(input, other)
        if _explain.enabled:
            _explain.log("dot", input, other)
        return result
    except RuntimeError as error:
        reraise(error, "dot", input=input, other=other)
