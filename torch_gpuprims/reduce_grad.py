"""Gradients and batching of the reductions: aten and registered ops alone, so they differentiate in turn."""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import reduce_fake as codes
from ._dispatch import apply, bare_apply, below_autograd, direct, light_autograd
from .reduce_fake import check_dot, check_reduce, check_stats, reduced_dims
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
    return x.permute([*kept, *dims]).reshape(*(x.shape[d] for d in kept), math.prod(x.shape[d] for d in dims))


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


def others_product(
    x: torch.Tensor,
    total: Callable[[torch.Tensor], torch.Tensor],
    product: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The product of all others of each value's extent (which total and product reduce), with first
    derivatives that hold where values are zero: a zero that is multiplied in stays an operand.

    A quotient of the whole product: products from both ends could overflow where the whole does not.
    """
    zero = x == 0
    count = total(zero)
    rest = product(torch.where(zero, 1, x))  # of what is not zero
    zeros = total(torch.where(zero, x, 0))  # the zero itself, where there is one
    of_zero = torch.where(count == 1, rest, torch.where(count == 2, (zeros - x) * rest, 0))
    quotient = rest / torch.where(zero, 1, x)
    of_other = torch.where(count == 0, quotient, torch.where(count == 1, zeros * quotient, 0))
    return torch.where(zero, of_zero, of_other)


def _product_gradient(x: torch.Tensor, wide: torch.Tensor, dims: list[int]) -> torch.Tensor:
    if not dims:
        return wide.reshape(x.shape)
    x = x.float() if x.dtype.itemsize == 2 else x

    def reduced(op: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda t: _reduced(t, op, dims)

    return wide * others_product(x, reduced(codes.SUM), reduced(codes.PROD))


def _centred(
    wide: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, n: Any, correction: float
) -> torch.Tensor:
    """The gradient of the variance. Factors come first: (x - mean) * 2 / n alone may be no float16."""
    freedom = n - correction
    scale = 2.0 / freedom if freedom > 0 else math.inf
    return (wide * scale) * (x - mean)


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
        return _product_gradient(x.to(grad.dtype), wide, ctx.dims)
    if op == codes.NORM1:
        return wide * x.sgn()
    if op == codes.VAR:
        mean = _reduced(x, codes.MEAN, ctx.dims) if ctx.dims else x
        return _centred(wide, x, mean, _count(x, ctx.dims), ctx.correction)
    out = _wide(ctx.saved_tensors[1], ctx)
    if op == codes.NORM2:
        return wide * torch.where(out == 0, 0, x / out)
    if op == codes.STD:
        mean = _reduced(x, codes.MEAN, ctx.dims) if ctx.dims else x
        slope = torch.where(out == 0, 0, wide / (2 * out))
        return _centred(slope, x, mean, _count(x, ctx.dims), ctx.correction)
    return wide * (x - torch.where(out == -math.inf, 0, out)).exp()  # logsumexp


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
        part = _centred(_wide(var, ctx), x, centre, n, ctx.correction)
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
    return input.movedim(at, 0)  # as it lies: rows keep the class of their strides


def _vmap_reduce(run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    input, op, dims, keepdim, *rest = args
    input = _batched(input, in_dims[0], info.batch_size)
    rank = input.dim() - 1
    chosen, _ = check_reduce(input, input.shape[1:], op, dims, rest[0])
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
    chosen = check_stats(input, input.shape[1:], dims, indices)
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
    check_dot(x, y, x.shape[1:], y.shape[1:])
    wide = torch.float32 if x.dtype.itemsize == 2 else x.dtype
    products = (x.to(wide) * y.to(wide)).contiguous()  # dot's tree is that of contiguous rows
    return _reduced(products, codes.SUM, [1], False).to(x.dtype), 0


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
        if "torch.distributed.tensor" in sys.modules:
            register_shardings()
        return op(*args)

    return run


run_reduce = _register("reduce", _setup, _backward, _vmap_reduce)
run_stats = _register("stats", _stats_setup, _stats_backward, _vmap_stats)
run_dot = _register("dot", _dot_setup, _dot_backward, _vmap_dot)
if "torch.distributed.tensor" in sys.modules:  # for torch.ops, which pass by no wrapper
    register_shardings()


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
