"""merge_topk: lists of candidates with global indices, merged; kernels are csrc/topk/merge_op*."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import _native as _native
from ._dispatch import apply, below_autograd, eager, gradients, light_autograd, plain, reraise
from .topk import _DTYPES, TopK, _name

_op = torch.ops.gpuprims.merge_topk.default


def merge_topk(
    values: torch.Tensor, indices: torch.Tensor, k: int, dim: int = -1, largest: bool = True
) -> TopK:
    """The k best of lists of candidates that carry indices of their own: of shards, or parts of a stream.

    Concatenate the (values, indices) of each part along `dim`, with indices that count over the whole, and
    the result is the topk of the whole, wherever the lists stand and in whatever order they are.

    Args:
        values: candidates, any shape; dtypes as in topk.
        indices: of the same shape, int64 or int32. A negative one marks a missing candidate.
        k: how many; may exceed the number of candidates.
        dim: the dimension along which the candidates lie.
        largest: the largest; otherwise the smallest.

    Returns:
        TopK(values, indices) with k in place of the size of `dim`, indices in the dtype given. Missing slots
        come last: index -1, value as in topk with a mask.

    Order: by value as in topk (NaN greater than every number, -0.0 equal to +0.0), equal values by index, not
    by position; candidates alike in both by position. Nothing is dropped for being there twice. Same input,
    same bits.

    The gradient goes to the values taken, double backward and forward mode included. Asynchronous and
    capturable.

    Cost: one launch for up to 4,096 candidates a row on CUDA, ranked (up to 512) or sorted in shared memory;
    beyond that a stable sort by index and a topk, with 17 bytes of workspace a candidate and the sort's.

    Raises:
        RuntimeError: shapes, dtypes or devices are not as above; the message says which.

    >>> merge_topk(torch.tensor([7.0, 5.0, 7.0, 1.0]), torch.tensor([12, 3, 4, -1]), 3)
    TopK(values=tensor([7., 7., 5.]), indices=tensor([ 4, 12,  3]))
    """
    last = dim == -1
    if not last:
        rank = max(values.dim(), 1)
        if not -rank <= dim < rank:
            raise RuntimeError(f"merge_topk: dim must be between {-rank} and {rank - 1}, got {dim}")
        if indices.shape != values.shape:  # in words that name the shapes as they were given
            raise RuntimeError(f"merge_topk: {_shape_words(values, indices)}")
        values, indices = values.movedim(dim, -1), indices.movedim(dim, -1)
    args = (values, indices, k, largest)
    try:
        if plain(values, indices):
            with below_autograd():
                best, chosen, _ = _op(*args)
        elif eager(values, indices):
            best, chosen, _ = _apply(*args)
        else:
            best, chosen, _ = _run(*args)
    except RuntimeError as error:
        for name, t in (("values", values), ("indices", indices)):
            if getattr(t, "layout", torch.strided) is not torch.strided:
                raise RuntimeError(_LAYOUT.format(name)) from None
        reraise(error)
    return TopK(best, chosen) if last else TopK(best.movedim(-1, dim), chosen.movedim(-1, dim))


def _run(*args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if light_autograd(args[0], args[1]):
        return apply(_Function, *args)
    if "torch.distributed.tensor" in sys.modules and not torch.compiler.is_compiling():
        _register_sharding()
    return _op(*args)


# Shapes without data: the words of csrc/topk/merge_op_checks.h ---------------------------------------------

_LAYOUT = "merge_topk: {} must be a dense tensor, got a sparse layout"


def _check(ok: Any, words: Callable[[], str]) -> None:
    torch._check(ok, lambda: f"merge_topk: {words()}")


def _shape_words(values: torch.Tensor, indices: torch.Tensor) -> str:
    return f"indices must have the shape of values {list(values.shape)}, got {list(indices.shape)}"


@torch.library.register_fake("gpuprims::merge_topk")
def _fake(
    values: torch.Tensor, indices: torch.Tensor, k: int, largest: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch._check(values.layout is torch.strided, lambda: _LAYOUT.format("values"))
    torch._check(indices.layout is torch.strided, lambda: _LAYOUT.format("indices"))
    _check(values.dtype in _DTYPES, lambda: f"dtype {_name(values.dtype)} is not supported")
    _check(values.dim() >= 1, lambda: "values must have at least 1 dimension, got 0")
    _check(
        indices.dtype in (torch.int64, torch.int32),
        lambda: f"indices must be int64 or int32, got {_name(indices.dtype)}",
    )

    def shape_words() -> str:
        return _shape_words(values, indices)

    _check(indices.dim() == values.dim(), shape_words)
    for have, want in zip(indices.shape, values.shape, strict=True):
        if have is not want:
            _check(have == want, shape_words)
    _check(indices.device == values.device, lambda: "indices must be on the device of values")
    _check(k >= 0, lambda: f"k must not be negative, got {k}")
    shape = [*values.shape[:-1], k]
    return (
        values.new_empty(shape),
        values.new_empty(shape, dtype=indices.dtype),
        values.new_empty(shape, dtype=torch.int64),
    )


# Gradients and batching ------------------------------------------------------------------------------------


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.shape = inputs[0].shape
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.save_for_backward(output[2])
    ctx.save_for_forward(output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: torch.Tensor | None, *_: None) -> tuple[torch.Tensor | None, ...]:
    """Scatters to the candidates taken; missing slots go to a last column, which is cut off."""
    if grad is None:
        return None, None, None, None
    (positions,) = ctx.saved_tensors
    m = ctx.shape[-1]
    at = torch.where(positions < 0, m, positions)
    wide = grad.new_zeros((*ctx.shape[:-1], m + 1))
    return wide.scatter(-1, at, grad).narrow(-1, 0, m), None, None, None


def _jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> tuple[torch.Tensor, None, None]:
    (positions,) = ctx.saved_tensors
    m = ctx.shape[-1]
    wide = torch.cat([tangent, tangent.new_zeros((*ctx.shape[:-1], 1))], -1)  # missing slots take the last
    return wide.gather(-1, torch.where(positions < 0, m, positions)), None, None


def _vmap(run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    values, indices, k, largest = args

    def batched(t: torch.Tensor, dim: int | None) -> torch.Tensor:
        return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)

    values, indices = batched(values, in_dims[0]), batched(indices, in_dims[1])
    _check(values.dim() > 1, lambda: "values must have at least 1 dimension, got 0")
    return run(values, indices, k, largest), (0, 0, 0)


_Function, _apply = gradients(_op, _run, _setup_context, _backward, _vmap, jvp_of=_jvp)


@functools.cache
def _register_sharding() -> None:
    """Rows may be sharded, candidates may not. Imports DTensor, which takes a second."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(_op)
    def _sharding(values, indices, k, largest=True):  # type: ignore[no-untyped-def]
        places = [Replicate(), *map(Shard, range(values.ndim - 1))]
        return [([place] * 3, [place, place, None, None]) for place in places]
