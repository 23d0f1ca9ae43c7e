"""Gradients of segment_reduce and segment_expand, made of the two ops and PyTorch's, so that they have
gradients themselves; batching rules."""

import math
from collections.abc import Callable
from typing import Any

import torch

from ._dispatch import apply, below_autograd, light_autograd
from .reduce_grad import others_product
from .reduce_segment_fake import MAX, MEAN, MIN, PROD, SUM

reduce_op = torch.ops.gpuprims.segment_reduce.default
expand_op = torch.ops.gpuprims.segment_expand.default


def run_reduce(*args: Any) -> torch.Tensor:
    """The op for a call that autograd, a transform, a subclass or a tracer may see."""
    if light_autograd(args[0], args[1]):
        return apply(_ReduceFunction, *args)
    return reduce_op(*args)


def run_expand(*args: Any) -> torch.Tensor:
    if light_autograd(args[0], args[1]):
        return apply(_ExpandFunction, *args)
    return expand_op(*args)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """16-bit floats in float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _first_extremum(
    x: torch.Tensor, out: torch.Tensor, expand: Callable[..., Any], reduce: Callable[..., Any]
) -> torch.Tensor:
    """True at the first value of each segment that is its extremum (or NaN)."""
    with torch.no_grad():
        best = expand(out)
        hit = (x == best) | ((x != x) & (best != best))
        n = x.shape[0]
        at = torch.arange(n, device=x.device).reshape(-1, *(1,) * (x.dim() - 1)).expand(x.shape)
        first = reduce(torch.where(hit, at, n), MIN)
        return expand(first) == at


def _linear_gradient(ctx: Any, grad: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """Of sum and mean."""
    if ctx.code == MEAN:
        lengths = (indptr[1:] - indptr[:-1]).clamp(min=1).reshape(-1, *(1,) * (len(ctx.shape) - 1))
        grad = (_wide(grad) / lengths).to(grad.dtype)
    return run_expand(grad, indptr, ctx.shape[0], ctx.promises)


def _gradient(
    code: int, promises: int, grad: torch.Tensor, x: torch.Tensor, out: torch.Tensor, indptr: torch.Tensor
) -> torch.Tensor:
    """Of max, min, prod and logsumexp."""
    n = x.shape[0]

    def expand(t: torch.Tensor) -> torch.Tensor:
        return run_expand(t, indptr, n, promises)

    def reduce(t: torch.Tensor, op: int) -> torch.Tensor:
        return run_reduce(t, indptr, op, promises)

    if code in (MAX, MIN):
        return torch.where(_first_extremum(x, out, expand, reduce), expand(grad), 0)
    if code == PROD:
        others = others_product(_wide(x), lambda t: expand(reduce(t, SUM)), lambda t: expand(reduce(t, PROD)))
        return (expand(_wide(grad)) * others).to(grad.dtype)
    best = expand(out)
    share = torch.where(best == -math.inf, 0, torch.exp(_wide(x) - _wide(best)))
    return (expand(_wide(grad)) * share).to(grad.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    values, indptr, ctx.code, ctx.promises = inputs
    ctx.shape = values.shape
    ctx.set_materialize_grads(False)
    if ctx.code in (SUM, MEAN):
        ctx.save_for_backward(indptr)
    else:
        ctx.save_for_backward(indptr, values, output)


def _backward(ctx: Any, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    indptr, *rest = ctx.saved_tensors
    if not rest:
        return _linear_gradient(ctx, grad, indptr), None, None, None
    return _gradient(ctx.code, ctx.promises, grad, rest[0], rest[1], indptr), None, None, None


def _save_expand(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, indptr, _, ctx.promises = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(indptr)


def _backward_expand(ctx: Any, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    (indptr,) = ctx.saved_tensors
    return run_reduce(grad, indptr, SUM, ctx.promises), None, None, None


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
            return reduce_op(*args)

    setup_context = staticmethod(_save)
    backward = staticmethod(_backward)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return _vmap_reduce(run_reduce, info, in_dims, args)


class EagerReduce(torch.autograd.Function):
    """_ReduceFunction without what functorch needs."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> torch.Tensor:
        with below_autograd():
            out = reduce_op(*args)
        _save(ctx, args, out)
        return out

    backward = staticmethod(_backward)


class _ExpandFunction(torch.autograd.Function):
    @staticmethod
    def forward(*args: Any) -> torch.Tensor:
        with below_autograd():
            return expand_op(*args)

    setup_context = staticmethod(_save_expand)
    backward = staticmethod(_backward_expand)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return _vmap_expand(run_expand, info, in_dims, args)


torch.library.register_autograd("gpuprims::segment_reduce", _backward, setup_context=_save)
torch.library.register_autograd("gpuprims::segment_expand", _backward_expand, setup_context=_save_expand)
torch.library.register_vmap(
    "gpuprims::segment_reduce", lambda info, in_dims, *args: _vmap_reduce(reduce_op, info, in_dims, args)
)
torch.library.register_vmap(
    "gpuprims::segment_expand", lambda info, in_dims, *args: _vmap_expand(expand_op, info, in_dims, args)
)
