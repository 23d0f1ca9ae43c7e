"""Gradients and batching of the reductions: aten and registered ops alone, so they differentiate in turn."""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import reduce_fake as codes
from ._dispatch import apply, bare_apply, below_autograd, direct, light_autograd
from .reduce_fake import reduced_dims
from .reduce_sharding import register_shardings

_ops = torch.ops.gpuprims
_call, _handle = direct(_ops.reduce.default)


def _reduced(x: torch.Tensor, op: int, dims: list[int], keepdim: bool = True) -> torch.Tensor:
    """A reduction within a gradient: what functorch may differentiate again."""
    return run_reduce(x, op, dims, keepdim, -1, 1.0)


def _wide(t: torch.Tensor, ctx: Any) -> torch.Tensor:
    """A result, with its reduced dimensions as dimensions of size 1."""
    if ctx.keepdim:
        return t
    for dim in ctx.dims:
        t = t.unsqueeze(dim)
    return t


def _rows(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """[kept..., n]: the reduced dimensions in one, last."""
    kept = [d for d in range(x.dim()) if d not in dims]
    return x.permute(*kept, *dims).reshape(*(x.shape[d] for d in kept), math.prod(x.shape[d] for d in dims))


def _unrows(rows: torch.Tensor, shape: Any, dims: list[int]) -> torch.Tensor:
    kept = [d for d in range(len(shape)) if d not in dims]
    order = [*kept, *dims]
    back = sorted(range(len(order)), key=order.__getitem__)
    return rows.reshape([shape[d] for d in order]).permute(back)


def _first_extremum(x: torch.Tensor, grad: torch.Tensor, ctx: Any, least: bool) -> torch.Tensor:
    """The gradient of max or min: all of it to the first extremum (the first NaN)."""
    if not ctx.dims:
        return grad.reshape(x.shape)
    flat = _rows(x.detach(), ctx.dims)
    if len(ctx.dims) == x.dim():
        flat = flat.reshape(-1)
    at = _reduced(flat, codes.ARGMIN if least else codes.ARGMAX, [-1])
    narrow = grad.reshape(at.shape)
    return _unrows(grad.new_zeros(flat.shape).scatter(-1, at, narrow), x.shape, ctx.dims)


def _others_product(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """The product of all others, zeros or not."""
    rows = _rows(x, dims)
    one = torch.ones_like(rows[..., :1])
    before = torch.cat([one, rows[..., :-1]], -1).cumprod(-1)
    behind = torch.cat([rows[..., 1:], one], -1).flip(-1).cumprod(-1).flip(-1)
    return _unrows(before * behind, x.shape, dims)


def _centred(x: torch.Tensor, mean: torch.Tensor, n: Any, correction: float) -> torch.Tensor:
    """The derivative of the variance."""
    freedom = n - correction
    scale = 2.0 / freedom if freedom > 0 else math.inf
    return (x - mean) * scale


def _count(x: torch.Tensor, dims: list[int]) -> Any:
    return math.prod(x.shape[d] for d in dims)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    input, ctx.op, dims, ctx.keepdim, _, ctx.correction = inputs
    ctx.dims = reduced_dims("reduce", dims, input.dim())
    if not output.is_floating_point():
        ctx.mark_non_differentiable(output)
    ctx.shape, ctx.dtype = input.shape, input.dtype
    if ctx.op in (codes.SUM, codes.MEAN):
        return
    if ctx.op in (codes.NORM2, codes.STD, codes.LOGSUMEXP):
        ctx.save_for_backward(input, output)
    else:
        ctx.save_for_backward(input)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    nothing = (None,) * 5
    if ctx.op in (codes.SUM, codes.MEAN):
        wide = _wide(grad, ctx)
        if ctx.op == codes.MEAN:
            wide = wide / math.prod(ctx.shape[d] for d in ctx.dims)
        return wide.to(ctx.dtype).expand(ctx.shape), *nothing
    return _gradient(ctx, grad).to(ctx.dtype), *nothing


def _gradient(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    x, op, wide = ctx.saved_tensors[0], ctx.op, _wide(grad, ctx)
    if op in (codes.MAX, codes.MIN):
        return _first_extremum(x, grad, ctx, op == codes.MIN)
    if op == codes.NORM_INF:
        return _first_extremum(x.abs(), grad, ctx, False) * x.sgn()
    if op == codes.PROD:
        return wide * _others_product(x.to(grad.dtype), ctx.dims)
    if op == codes.NORM1:
        return wide * x.sgn()
    if op == codes.VAR:
        mean = _reduced(x, codes.MEAN, ctx.dims) if ctx.dims else x
        return wide * _centred(x, mean, _count(x, ctx.dims), ctx.correction)
    out = _wide(ctx.saved_tensors[1], ctx)
    if op == codes.NORM2:
        return wide * torch.where(out == 0, 0, x / out)
    if op == codes.STD:
        mean = _reduced(x, codes.MEAN, ctx.dims) if ctx.dims else x
        slope = torch.where(out == 0, 0, wide / (2 * out))
        return slope * _centred(x, mean, _count(x, ctx.dims), ctx.correction)
    return wide * (x - torch.where(out.isinf(), 0, out)).exp()  # logsumexp


# stats ------------------------------------------------------------------------------------------------------


def _stats_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    input, dims, ctx.keepdim, ctx.correction, _ = inputs
    ctx.dims = reduced_dims("stats", dims, input.dim())
    ctx.mark_non_differentiable(*output[4:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input)


def _stats_backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    (x,) = ctx.saved_tensors
    least, most, mean, var = grads[:4]
    total = None
    if least is not None:
        total = _first_extremum(x, least, ctx, True)
    if most is not None:
        part = _first_extremum(x, most, ctx, False)
        total = part if total is None else total + part
    n = _count(x, ctx.dims)
    if mean is not None:
        part = (_wide(mean, ctx) / n).expand(x.shape)
        total = part if total is None else total + part
    if var is not None:
        centre = _reduced(x, codes.MEAN, ctx.dims) if ctx.dims else x
        part = _wide(var, ctx) * _centred(x, centre, n, ctx.correction)
        total = part if total is None else total + part
    return total, None, None, None, None


# dot --------------------------------------------------------------------------------------------------------


def _dot_setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _dot_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = ctx.saved_tensors
    return grad * y, grad * x


# Batching: the new dimension is one more of rows ------------------------------------------------------------


def _batched(input: torch.Tensor, at: int | None, size: int) -> torch.Tensor:
    if at is None:
        return input.expand(size, *input.shape)
    return input if at == 0 else input.movedim(at, 0).contiguous()  # rows keep the class of their strides


def _vmap_reduce(run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    input, op, dims, keepdim, *rest = args
    input = _batched(input, in_dims[0], info.batch_size)
    rank = input.dim() - 1
    chosen = reduced_dims("reduce", dims, rank)
    if op in (codes.ARGMAX, codes.ARGMIN) and len(chosen) != 1:  # an index into all that there is
        out = run(input.reshape(info.batch_size, -1), op, [1], False, *rest)
        return (out.reshape(info.batch_size, *[1] * rank) if keepdim else out), 0
    if rank == 0:
        return run(input.unsqueeze(1), op, [1], False, *rest), 0
    return run(input, op, [d + 1 for d in chosen], keepdim, *rest), 0


def _vmap_stats(run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    input, dims, keepdim, correction, indices = args
    input = _batched(input, in_dims[0], info.batch_size)
    rank, size = input.dim() - 1, info.batch_size
    chosen = reduced_dims("stats", dims, rank)
    if len(chosen) != 1 and (indices or rank == 0):
        out = run(input.reshape(size, -1), [1], False, correction, indices)
        shape = (size, *[1] * rank) if keepdim else (size,)
        out = tuple(t.reshape(shape) if indices or i < 5 else t for i, t in enumerate(out))
    else:
        out = run(input, [d + 1 for d in chosen], keepdim, correction, indices)
    if not indices:
        out = (*out[:5], *(t.new_empty(size, 0) for t in out[5:]))
    return tuple(out), (0,) * 7


def _vmap_dot(run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    x, y = (_batched(t, at, info.batch_size) for t, at in zip(args, in_dims, strict=True))
    torch._check(x.dim() == 2 and y.dim() == 2, lambda: "dot: input and other must be vectors of one length")
    wide = torch.float32 if x.dtype.itemsize == 2 else x.dtype
    return _reduced(x.to(wide) * y.to(wide), codes.SUM, [1], False).to(x.dtype), 0


# Registration ---------------------------------------------------------------------------------------------


def _register(
    name: str, setup: Callable[..., None], backward: Callable[..., Any], batched: Callable[..., Any]
) -> Callable[..., Any]:
    """Register the op's gradient and vmap; returns the op as a function that torch.func may see too.

    The torch.autograd.Function is for eager calls; compilers, export and subclasses see the registered op.
    """
    op = getattr(_ops, name).default
    qualified = f"gpuprims::{name}"

    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        rest = op._schema.arguments[len(args) :]  # the dispatcher leaves defaults out
        full = (*args, *(argument.default_value for argument in rest))
        return batched(op, info, (*in_dims, *[None] * len(rest)), full)

    torch.library.register_vmap(qualified, vmap)
    torch.library.register_autograd(qualified, backward, setup_context=setup)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(*args: Any) -> Any:
            with below_autograd():
                return op(*args)

        setup_context = staticmethod(setup)  # type: ignore[arg-type]

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
            return batched(run, info, in_dims, args)

    Function.backward = staticmethod(backward)  # type: ignore[method-assign, assignment]

    def run(*args: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if light_autograd(*tensors):
            return apply(Function, *args)
        if "torch.distributed.tensor" in sys.modules and not torch.compiler.is_compiling():
            register_shardings()
        return op(*args)

    return run


run_reduce = _register("reduce", _setup, _backward, _vmap_reduce)
run_stats = _register("stats", _stats_setup, _stats_backward, _vmap_stats)
run_dot = _register("dot", _dot_setup, _dot_backward, _vmap_dot)


class _EagerReduce(torch.autograd.Function):
    """The function behind run_reduce without what functorch needs. Its apply is the C one."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> torch.Tensor:
        guard = below_autograd()
        try:
            output = _call(_handle, *args)
        finally:
            del guard
        _setup(ctx, args, output)
        return output

    backward = staticmethod(_backward)


eager_reduce = bare_apply(_EagerReduce)
