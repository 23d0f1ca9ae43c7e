"""Gradients and batching of the sorts: gradients go back through the permutation, tangents forth, batches
into the rows. What a setup returns is what a jvp needs."""

from collections.abc import Callable
from typing import Any

import torch

from ._dispatch import apply, bare_apply, below_autograd, direct, light_autograd
from .sort_fake import sorted_dim

_ops = torch.ops.gpuprims
_call, _handle = direct(_ops.sort.default)


def _through(indices: torch.Tensor, shape: Any, dim: int, grad: torch.Tensor) -> torch.Tensor:
    """Of the input: aten ops alone, so that it differentiates and compiles in turn."""
    return grad.new_zeros(shape).scatter(dim, indices.long(), grad)


# sort -----------------------------------------------------------------------------------------------------


def _sort_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    ctx.dim, ctx.shape = inputs[1], inputs[0].shape
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])
    ctx.set_materialize_grads(False)
    return output[1]


def _sort_backward(ctx: Any, grad: torch.Tensor | None, _: None) -> tuple[torch.Tensor | None, ...]:
    if grad is None:
        return (None,) * 4
    return _through(ctx.saved_tensors[0], ctx.shape, ctx.dim, grad), None, None, None


def _sort_jvp(ctx: Any, tangent: torch.Tensor | None, *_: None) -> tuple[torch.Tensor | None, None]:
    if tangent is None:
        return None, None
    return tangent.gather(ctx.dim, ctx.saved_tensors[0].long()), None


def _vmap_rows(op: str, run: Callable[..., Any], in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    """For ops (input, dim, ...) whose outputs have input's shape."""
    input, dim, *rest = args
    input = input.movedim(in_dims[0], 0)
    rank = input.dim() - 1
    dim = sorted_dim(op, dim, rank)
    if rank == 0:
        input = input.unsqueeze(1)
    result = run(input, dim + 1, *rest)
    if isinstance(result, torch.Tensor):
        return (result.squeeze(1) if rank == 0 else result), 0
    return tuple(t.squeeze(1) if rank == 0 else t for t in result), (0,) * len(result)


# sort_keys: the backward pass sorts again, for the permutation ---------------------------------------------


def _keys_setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
    ctx.dim, ctx.descending = inputs[1], inputs[2]
    ctx.save_for_backward(inputs[0])
    return inputs[0]


def _keys_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    (input,) = ctx.saved_tensors
    indices = _ops.argsort(input.detach(), ctx.dim, ctx.descending)
    return _through(indices, input.shape, ctx.dim, grad), None, None


def _keys_jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:
    (input,) = ctx.saved_tensors
    return tangent.gather(ctx.dim, _ops.argsort(input.detach(), ctx.dim, ctx.descending))


def _vmap_in_place(
    run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> tuple[None, None]:
    batch, descending = args[0].movedim(in_dims[0], 0), args[1]
    if batch.dim() == 1:  # scalars
        return None, None
    if batch.is_contiguous():
        run(batch, descending)
    else:
        batch.copy_(_ops.sort_keys(batch, -1, descending))
    return None, None


# segment_sort ---------------------------------------------------------------------------------------------


def _segment_setup(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])
    ctx.set_materialize_grads(False)
    return output[1]


def _segment_backward(ctx: Any, grad: torch.Tensor | None, _: None) -> tuple[torch.Tensor | None, ...]:
    """Where indptr was wrong all goes to a last slot, which is cut off."""
    if grad is None:
        return (None,) * 4
    (indices,) = ctx.saved_tensors
    n = grad.shape[0]
    at = torch.where(indices < 0, n, indices)
    return _through(at, (n + 1,), 0, grad).narrow(0, 0, n), None, None, None


def _segment_jvp(ctx: Any, tangent: torch.Tensor | None, *_: None) -> tuple[torch.Tensor | None, None]:
    """Where indptr was wrong the tangent is 0."""
    if tangent is None:
        return None, None
    (indices,) = ctx.saved_tensors
    return torch.where(indices < 0, 0, tangent.gather(0, indices.clamp_min(0).long())), None


def _vmap_segments(
    run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> Any:
    """A batch of b calls is one call with b times the segments."""
    keys, indptr, descending, bits = args
    batch = info.batch_size
    keys = keys.expand(batch, *keys.shape) if in_dims[0] is None else keys.movedim(in_dims[0], 0)
    if in_dims[1] is not None:  # each has its own offsets: a loop
        rows = zip(keys, indptr.movedim(in_dims[1], 0), strict=True)
        parts = [run(*row, descending, bits) for row in rows]
        return tuple(torch.stack(column) for column in zip(*parts, strict=True)), (0, 0)
    n = keys.shape[1]
    shift = torch.arange(batch, device=keys.device).unsqueeze(1) * n
    # Bad offsets stay bad: the first and the last of all are those of indptr.
    offsets = torch.cat([(indptr[:-1].long() + shift).reshape(-1), indptr[-1:].long() + (batch - 1) * n])
    values, indices = run(keys.reshape(-1), offsets, descending, 64 if bits == 32 else bits)
    indices = indices.view(batch, n)
    indices = torch.where(indices < 0, -1, indices - shift)
    return (values.view(batch, n), indices if bits == 64 else indices.int()), (0, 0)


# Registration ---------------------------------------------------------------------------------------------


def _register(
    name: str,
    setup: Callable[..., torch.Tensor] | None,
    backward: Callable[..., Any] | None,
    forward: Callable[..., Any] | None,
    batched: Callable[..., Any],
) -> Callable[..., Any]:
    """Register the op's gradient and vmap; returns the op as a function that torch.func may see too.

    The torch.autograd.Function is for eager calls; compilers, export and subclasses see the registered op.
    """
    op = getattr(_ops, name).default
    qualified = f"gpuprims::{name}"

    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        rest = op._schema.arguments[len(args) :]  # the dispatcher leaves defaults out
        return batched(op, info, in_dims, (*args, *(argument.default_value for argument in rest)))

    torch.library.register_vmap(qualified, vmap)
    if setup is None or backward is None or forward is None:
        return op
    torch.library.register_autograd(qualified, backward, setup_context=setup)  # type: ignore[arg-type]

    setup_saving = setup

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(*args: Any) -> Any:
            with below_autograd():
                return op(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_forward(setup_saving(ctx, inputs, output))

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
            return batched(run, info, in_dims, args)

    Function.backward = staticmethod(backward)  # type: ignore[method-assign, assignment]
    Function.jvp = staticmethod(forward)  # type: ignore[method-assign, assignment]

    def run(*args: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        return apply(Function, *args) if light_autograd(*tensors) else op(*args)

    return run


def _rows(name: str) -> Callable[..., Any]:
    return lambda run, info, in_dims, args: _vmap_rows(name, run, in_dims, args)


run_sort = _register("sort", _sort_setup, _sort_backward, _sort_jvp, _rows("sort"))
run_sort_keys = _register("sort_keys", _keys_setup, _keys_backward, _keys_jvp, _rows("sort_keys"))
run_segment_sort = _register("segment_sort", _segment_setup, _segment_backward, _segment_jvp, _vmap_segments)
_register("argsort", None, None, None, _rows("argsort"))
_register("_sort_keys_", None, None, None, _vmap_in_place)


class _EagerSort(torch.autograd.Function):
    """The function behind run_sort without what functorch needs: 4 us less a call. Its apply is the C one."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        guard = below_autograd()
        try:
            output = _call(_handle, *args)
        finally:
            del guard
        _sort_setup(ctx, args, output)
        return output

    backward = staticmethod(_sort_backward)


eager_sort = bare_apply(_EagerSort)
