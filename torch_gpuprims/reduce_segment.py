"""segment_reduce and segment_expand over CSR offsets; kernels are csrc/reduce/segment_*."""

import math
from collections.abc import Callable
from typing import Any

import torch

from . import _explain
from . import _native as _native
from ._dispatch import apply, bare_apply, below_autograd, eager, light_autograd, plain, reraise
from .segments import Segments
from .topk import _DTYPES, _name

_reduce = torch.ops.gpuprims.segment_reduce.default
_expand = torch.ops.gpuprims.segment_expand.default

#: Codes of SegmentOp in csrc/reduce/segment_ops.h.
_OPS = ("sum", "mean", "max", "min", "prod", "logsumexp")
_CODES = {name: code for code, name in enumerate(_OPS)}
_SUM, _MEAN, _MAX, _MIN, _PROD, _LOGSUMEXP = range(6)


def segment_reduce(values: torch.Tensor, indptr: torch.Tensor | Segments, op: str = "sum") -> torch.Tensor:
    """The sum, mean, maximum, minimum, product or logsumexp of each segment of a tensor's first dimension.

    Args:
        values: [n] or [n, ...]; float64/32/16, bfloat16, (u)int8/16/32/64 or bool.
        indptr: CSR offsets [segments + 1], int32 or int64, from 0 to n, never decreasing; or Segments, which
            were validated when they were made. Segments may be empty, or of any length.
        op: "sum", "mean", "max", "min", "prod" or "logsumexp".

    Returns:
        [segments] or [segments, ...]. The dtype is that of values; of a sum or product of integers it is
        int64. 16-bit floats add up in float32, integers in 64 bits. An empty segment gives 0 (sum), NaN
        (mean), 1 (prod), -inf (max, logsumexp) or +inf (min); of integers the least or greatest value.

    NaN propagates. A maximum or minimum that is zero is +0.0.

    Deterministic: the bits of a segment depend on its values alone, not on its place, its neighbours, or the
    device for sum and mean. A flat segment's sum has the bits of `reduce` of the same values; rows [n, ...]
    are added up by a tree of their own (docs/reduce_ladder.md says which).

    Where a raw indptr is not as above, every result is NaN (integers: 0); with GPUPRIMS_CHECK=1 it raises
    RuntimeError. Nothing outside the tensors is touched.

    Gradients of all ops, double backward included (of prod: two derivatives, zeros included); those of max and
    min go to the first extremum of the segment, where torch.segment_reduce spreads them over ties.

    Cost: values and offsets are read once. Flat segments of up to 32 values are a thread's work, of up to
    4,096 a warp's, longer ones are cut; in rows a thread has a column. Two launches and a memset, one launch
    with Segments that are all short. Workspace on CUDA: at most 2 % of the input (of rows: 4 %), and 1 KiB.

    Raises:
        ValueError: op is not one of the above.
        RuntimeError: sizes, dtypes, layout or devices are not as above; the message says which.
        torch.OutOfMemoryError: no memory for the result or the workspace.

    >>> segment_reduce(torch.tensor([3.0, 9.0, 4.0, 7.0]), torch.tensor([0, 3, 3, 4]))
    tensor([16.,  0.,  7.])
    >>> segment_reduce(torch.tensor([3.0, 9.0, 4.0, 7.0]), torch.tensor([0, 3, 3, 4]), "max")
    tensor([9., -inf, 7.])
    """
    if op not in _CODES:
        raise ValueError(f"segment_reduce: op must be one of {', '.join(_OPS)}, got {op!r}")
    given = indptr
    offsets, promises = _offsets("segment_reduce", values, indptr)
    shape = values.shape
    flat = values.flatten(1) if values.dim() > 2 else values
    try:
        args = (flat, offsets, _CODES[op], promises)
        if plain(flat, offsets):
            with below_autograd():
                out = _reduce(*args)
        elif eager(flat, offsets):
            out = _apply_reduce(*args)
        else:
            out = _run_reduce(*args)
        if _explain.enabled:
            _explain.log("segment_reduce", values, given, op)
        return out.reshape(out.shape[0], *shape[1:]) if len(shape) > 2 else out
    except RuntimeError as error:
        _fail("segment_reduce", values, error)


def segment_expand(values: torch.Tensor, indptr: torch.Tensor | Segments, n: int) -> torch.Tensor:
    """The row of each element's segment: the transpose of segment_reduce's sum.

    Args:
        values: [segments] or [segments, ...], of any dtype that segment_reduce takes.
        indptr: CSR offsets [segments + 1], int32 or int64, from 0 to n, never decreasing; or Segments.
        n: the number of elements (sizes are the host's; the last offset is the device's).

    Returns:
        [n] or [n, ...]: row i is values[s], where segment s holds element i. Where a raw indptr is not as
        above: NaN (integers: 0); with GPUPRIMS_CHECK=1 RuntimeError.

    Gradient: segment_reduce's sum, deterministic. Cost: values and offsets are read once, the result is written
    once; a raw indptr is read a second time.

    >>> segment_expand(torch.tensor([3.0, 9.0, 4.0]), torch.tensor([0, 3, 3, 4]), 4)
    tensor([3., 3., 3., 4.])
    """
    offsets, promises = indptr, 0
    if isinstance(indptr, Segments):
        offsets = indptr.indptr
        if indptr.promises and not torch.compiler.is_compiling() and indptr.numel == n:
            promises = indptr.promises
    shape = values.shape
    flat = values.flatten(1) if values.dim() > 2 else values
    try:
        args = (flat, offsets, n, promises)
        if plain(flat, offsets):
            with below_autograd():
                out = _expand(*args)
        else:
            out = _run_expand(*args)
        return out.reshape(n, *shape[1:]) if len(shape) > 2 else out
    except RuntimeError as error:
        _fail("segment_expand", values, error)


def _offsets(name: str, values: torch.Tensor, indptr: torch.Tensor | Segments) -> tuple[torch.Tensor, int]:
    if not isinstance(indptr, Segments):
        return indptr, 0
    # Tracers would guard on these numbers; without them the op looks by itself.
    if indptr.promises and not torch.compiler.is_compiling():
        if values.dim() > 0 and values.shape[0] != indptr.numel:
            raise RuntimeError(
                f"{name}: values must have {indptr.numel} rows (the end of the segments), "
                f"got {values.shape[0]}"
            )
        return indptr.indptr, indptr.promises
    return indptr.indptr, 0


def _layout(name: str) -> str:
    return f"{name}: values must be a dense tensor, got a sparse layout"


def _fail(name: str, values: torch.Tensor, error: RuntimeError) -> Any:
    if getattr(values, "layout", torch.strided) is not torch.strided:
        raise RuntimeError(_layout(name)) from None
    reraise(error)


def _run_reduce(*args: Any) -> torch.Tensor:
    """The op for a call that autograd, a transform, a subclass or a tracer may see."""
    if light_autograd(args[0], args[1]):
        return apply(_ReduceFunction, *args)
    return _reduce(*args)


def _run_expand(*args: Any) -> torch.Tensor:
    if light_autograd(args[0], args[1]):
        return apply(_ExpandFunction, *args)
    return _expand(*args)


# Shapes without data: the words of csrc/reduce/segment_checks.h --------------------------------------------


def _check(ok: Any, words: Callable[[], str]) -> None:
    torch._check(ok, words)


def _check_inputs(op: str, values: torch.Tensor, indptr: torch.Tensor) -> None:
    torch._check(values.layout is torch.strided, lambda: _layout(op))
    _check(values.dtype in _DTYPES, lambda: f"{op}: dtype {_name(values.dtype)} is not supported")
    _check(
        values.dim() in (1, 2), lambda: f"{op}: values must have 1 or 2 dimensions, got {values.dim()}"
    )
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
    _check(0 <= op < len(_OPS), lambda: f"segment_reduce: op must be a code from 0 to 5, got {op}")
    if op in (_MEAN, _LOGSUMEXP):
        _check(
            values.dtype.is_floating_point,
            lambda: f"segment_reduce: {_OPS[op]} needs a floating dtype, got {_name(values.dtype)}",
        )
    counts = op in (_SUM, _PROD) and not values.dtype.is_floating_point
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


# Gradients, made of the two ops and PyTorch's, so that they have gradients themselves -----------------------


def _wide(x: torch.Tensor) -> torch.Tensor:
    """16-bit floats in float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _others(x: torch.Tensor, expand: Callable[..., Any], reduce: Callable[..., Any]) -> torch.Tensor:
    """The product of the other values of each value's segment, with first derivatives that hold where values
    are zero: a zero that is multiplied in stays an operand."""
    zero = x == 0
    count = expand(reduce(zero, _SUM))
    rest = expand(reduce(torch.where(zero, 1, x), _PROD))  # the product of what is not zero
    zeros = expand(reduce(torch.where(zero, x, 0), _SUM))  # the zero itself, where there is one
    of_zero = torch.where(count == 1, rest, torch.where(count == 2, (zeros - x) * rest, 0))
    quotient = rest / torch.where(zero, 1, x)
    of_other = torch.where(count == 0, quotient, torch.where(count == 1, zeros * quotient, 0))
    return torch.where(zero, of_zero, of_other)


def _first_extremum(
    x: torch.Tensor, out: torch.Tensor, expand: Callable[..., Any], reduce: Callable[..., Any]
) -> torch.Tensor:
    """True at the first value of each segment that is its extremum (or NaN)."""
    with torch.no_grad():
        best = expand(out)
        hit = (x == best) | ((x != x) & (best != best))
        n = x.shape[0]
        at = torch.arange(n, device=x.device).reshape(-1, *(1,) * (x.dim() - 1)).expand(x.shape)
        first = reduce(torch.where(hit, at, n), _MIN)
        return expand(first) == at


def _linear_gradient(ctx: Any, grad: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """Of sum and mean."""
    if ctx.code == _MEAN:
        lengths = (indptr[1:] - indptr[:-1]).clamp(min=1).reshape(-1, *(1,) * (len(ctx.shape) - 1))
        grad = (_wide(grad) / lengths).to(grad.dtype)
    return _run_expand(grad, indptr, ctx.shape[0], ctx.promises)


def _gradient(
    code: int, promises: int, grad: torch.Tensor, x: torch.Tensor, out: torch.Tensor, indptr: torch.Tensor
) -> torch.Tensor:
    """Of max, min, prod and logsumexp."""
    n = x.shape[0]

    def expand(t: torch.Tensor) -> torch.Tensor:
        return _run_expand(t, indptr, n, promises)

    def reduce(t: torch.Tensor, op: int) -> torch.Tensor:
        return _run_reduce(t, indptr, op, promises)

    if code in (_MAX, _MIN):
        return torch.where(_first_extremum(x, out, expand, reduce), expand(grad), 0)
    if code == _PROD:
        return (expand(_wide(grad)) * _others(_wide(x), expand, reduce)).to(grad.dtype)
    best = expand(out)
    share = torch.where(best == -math.inf, 0, torch.exp(_wide(x) - _wide(best)))
    return (expand(_wide(grad)) * share).to(grad.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    values, indptr, ctx.code, ctx.promises = inputs
    ctx.shape = values.shape
    ctx.set_materialize_grads(False)
    if ctx.code in (_SUM, _MEAN):
        ctx.save_for_backward(indptr)
    else:
        ctx.save_for_backward(indptr, values, output)


def _backward(ctx: Any, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    indptr, *rest = ctx.saved_tensors
    if not rest:
        return _linear_gradient(ctx, grad, indptr), None, None, None
    return _gradient(ctx.code, ctx.promises, grad, *rest, indptr), None, None, None


def _save_expand(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, indptr, _, ctx.promises = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(indptr)


def _backward_expand(ctx: Any, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    (indptr,) = ctx.saved_tensors
    return _run_reduce(grad, indptr, _SUM, ctx.promises), None, None, None


# Batching: the values of the batch lie behind each other, and so do their segments -------------------------


def _chain(indptr: torch.Tensor, size: int, n: Any) -> torch.Tensor:
    """Offsets of `size` copies behind each other. Bad offsets stay bad: the ends of all are indptr's own."""
    shift = torch.arange(size, device=indptr.device)[:, None] * n
    return torch.cat([(indptr[:-1].long() + shift).reshape(-1), indptr[-1:].long() + (size - 1) * n])


def _loop(run: Callable[..., Any], size: int, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    parts = [[a if d is None else a.select(d, i) for a, d in zip(args, in_dims[:3], strict=True)]
             for i in range(size)]  # fmt: skip
    return torch.stack([run(*part, 0) for part in parts]), 0


def _batch(t: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)


def _vmap_reduce(run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    values, indptr, code, *_ = args
    size = info.batch_size
    if in_dims[1] is not None:
        return _loop(run, size, in_dims, (values, indptr, code))
    values = _batch(values, in_dims[0], size)
    out = run(values.flatten(0, 1), _chain(indptr, size, values.shape[1]), code, 0)
    return out.unflatten(0, (size, indptr.shape[0] - 1)), 0


def _vmap_expand(run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    values, indptr, n, *_ = args
    size = info.batch_size
    if in_dims[1] is not None:
        return _loop(run, size, in_dims, (values, indptr, n))
    values = _batch(values, in_dims[0], size)
    out = run(values.flatten(0, 1), _chain(indptr, size, n), size * n, 0)
    return out.unflatten(0, (size, n)), 0


class _ReduceFunction(torch.autograd.Function):
    """The registered gradient at a part of its cost a call, for eager tensors and transforms."""

    @staticmethod
    def forward(*args: Any) -> torch.Tensor:
        with below_autograd():
            return _reduce(*args)

    setup_context = staticmethod(_save)
    backward = staticmethod(_backward)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return _vmap_reduce(_run_reduce, info, in_dims, args)


class _EagerReduce(torch.autograd.Function):
    """_ReduceFunction without what functorch needs."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> torch.Tensor:
        with below_autograd():
            out = _reduce(*args)
        _save(ctx, args, out)
        return out

    backward = staticmethod(_backward)


class _ExpandFunction(torch.autograd.Function):
    @staticmethod
    def forward(*args: Any) -> torch.Tensor:
        with below_autograd():
            return _expand(*args)

    setup_context = staticmethod(_save_expand)
    backward = staticmethod(_backward_expand)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return _vmap_expand(_run_expand, info, in_dims, args)


_apply_reduce = bare_apply(_EagerReduce)

torch.library.register_autograd("gpuprims::segment_reduce", _backward, setup_context=_save)
torch.library.register_autograd("gpuprims::segment_expand", _backward_expand, setup_context=_save_expand)
torch.library.register_vmap(
    "gpuprims::segment_reduce", lambda info, in_dims, *args: _vmap_reduce(_reduce, info, in_dims, args)
)
torch.library.register_vmap(
    "gpuprims::segment_expand", lambda info, in_dims, *args: _vmap_expand(_expand, info, in_dims, args)
)
