"""topk: the k largest or smallest elements of a dimension; CPU and CUDA kernels are in csrc/topk."""

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from . import _explain
from ._dispatch import (
    _function_modes,
    _grad_enabled,
    _Tensor,
    _tracing,
    apply,
    below_autograd,
    direct,
    eager,
    gradients,
    light_autograd,
    plain,
    plain_handle,
    reraise,
)  # fmt: skip

_op = torch.ops.gpuprims.topk.default
_call, _handle = direct(_op)
_tuple = tuple.__new__  # half the cost of TopK(*pair)
_INT64 = torch.int64
_DEFAULTS = (-1, True, True, None, 64)  # of the raw op's arguments after k


class TopK(NamedTuple):
    values: torch.Tensor
    indices: torch.Tensor


# torch.export.save writes a NamedTuple by a name.
torch.utils._pytree._register_namedtuple(TopK, serialized_type_name="torch_gpuprims.TopK")


def topk(
    input: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    mask: torch.Tensor | None = None,
    index_dtype: torch.dtype = torch.int64,
    out: Any = None,
) -> TopK:
    """The k largest (or smallest) elements of each row along `dim`, in order, with their indices.

    Swaps for torch.topk, with the ties, NaNs and runs made definite, a mask, and int32 indices.

    Args:
        input: tensor of any shape and strides; float64/32/16, bfloat16, (u)int8/16/32/64 or bool.
        k: how many, between 0 and the size of `dim`.
        dim: the dimension to select from.
        largest: the largest elements; otherwise the smallest.
        sorted: accepted as in torch.topk. The result is always in order: that costs nothing more.
        mask: bool, broadcastable to `input`; False drops an element. Slots left over when a row has fewer
            than k elements hold -inf (largest) or +inf (smallest), for integers and bool the least or
            greatest value of the dtype, and index -1. Only the index tells.
        index_dtype: torch.int64, or torch.int32 where the dimension has fewer than 2^31 elements.

    Returns:
        TopK(values, indices), both contiguous, of input's shape with k in place of the size of `dim`. Values
        are input's own bits.

    Order: NaN of either sign is greater than every number, -0.0 equals +0.0, and of equal elements the one
    with the lowest index comes first. The answer is thus unique: same input, same bits, on every device, on
    every run and for any number of threads.

    Gradients reach the selected elements (indices have none), double backward and forward mode (torch.func's
    jvp, jacfwd, hessian) included; the raw op has no forward mode. Under autocast the dtype of input is kept.

    Cost: the input is read once where k is a small part of a row. Rows may lie apart in memory; on CUDA a
    dimension whose elements are not neighbours is copied first, as in torch.topk. The method is a running
    threshold: an element is looked at again only if it reaches the k-th best seen so
    far, as in DeepSeek's DeepSelect; long rows on CUDA take radix digits, as in AIR Top-K (Zhang et al.,
    SC'23). Where k is a sizeable part of a row, the row is sorted.

    Raises:
        RuntimeError: k, dim, dtype, layout, device, mask or index_dtype is not as above; the message says
            which and what was given.
        TypeError: `out` was given.
        torch.OutOfMemoryError: no memory for the result or the workspace.

    >>> topk(torch.tensor([1.0, 3.0, 2.0, 3.0]), 3)
    TopK(values=tensor([3., 3., 2.]), indices=tensor([1, 3, 2]))
    >>> topk(torch.tensor([5, 8, 7]), 2, mask=torch.tensor([True, False, False])).indices
    tensor([ 0, -1])
    """
    try:
        if (
            dim == -1 and largest and mask is None and index_dtype is _INT64 and out is None
            and not _explain.enabled
        ):  # fmt: skip
            # plain(input), spelled out: a Python call costs 0.1 us, and so does every argument of the op. A
            # functorch transform is left to the dispatcher, which hands it _transformed.
            if (
                type(input) is _Tensor
                and not (input.requires_grad and _grad_enabled())
                and forward_ad._current_level < 0
                and not (_tracing() or _function_modes())
            ):
                return _tuple(TopK, _call(_plain_handle, input, k))
            if eager(input):
                return _tuple(TopK, _apply(input, k))
        result = _general(input, k, dim, largest, sorted, mask, index_dtype, out)
        if _explain.enabled:
            _explain.log("topk", input, k, dim, largest, mask=mask, index_dtype=index_dtype)
        return result
    except RuntimeError as error:
        for name, tensor in (("input", input), ("mask", mask)):  # no kernel of ours is found, to say so
            if getattr(tensor, "layout", torch.strided) is not torch.strided:
                raise RuntimeError(_LAYOUT.format(name)) from None
        reraise(error)


def _general(
    input: torch.Tensor, k: int, dim: int, largest: bool, sorted: bool, mask: torch.Tensor | None,
    index_dtype: torch.dtype, out: Any,
) -> TopK:  # fmt: skip
    if out is not None:
        raise TypeError("topk: out= is not supported; use values.copy_(result.values) and the like")
    bits = 64 if index_dtype is _INT64 else 32 if index_dtype is torch.int32 else 0  # the op refuses 0
    if plain(input, mask):
        guard = below_autograd()  # entered when made; `with` would cost 0.3 us more
        try:
            return _tuple(TopK, _call(_handle, input, k, dim, largest, sorted, mask, bits))
        finally:
            del guard
    if eager(input, mask):
        return _tuple(TopK, _apply(input, k, dim, largest, sorted, mask, bits))
    return TopK(*_run(input, k, dim, largest, sorted, mask, bits))


def _run(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The op for a call that autograd, a transform, a subclass or a tracer may see."""
    input, mask = args[0], args[5]
    if light_autograd(input, mask):
        return apply(_Function, *args)
    if "torch.distributed.tensor" in sys.modules and not torch.compiler.is_compiling():
        _register_sharding()
    return _op(*args)


# Shapes without data: the words of csrc/topk/checks.h, for sizes that may be symbols ------------------------

_LAYOUT = "topk: {} must be a dense tensor, got a sparse layout"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_DTYPES = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool}
    | {torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.uint8, torch.uint16, torch.uint32, torch.uint64}
)


def _selected(dim: int, rank: int) -> int:
    """`dim` as a number from 0; a 0-d tensor counts as one dimension of size 1."""
    span = max(rank, 1)
    torch._check(-span <= dim < span, lambda: f"topk: dim must be between {-span} and {span - 1}, got {dim}")
    return dim % span


def _check_k(k: int, n: int, dim: int) -> None:
    def words() -> str:
        return f"topk: k must be between 0 and {n} (the size of dimension {dim}), got {k}"

    torch._check(k >= 0, words)
    torch._check(k <= n, words)


def _check_mask(mask: Any, input: Any) -> None:
    """Of their shapes."""

    def words() -> str:
        return f"topk: mask of shape {list(mask)} does not broadcast to input of shape {list(input)}"

    torch._check(len(mask) <= len(input), words)
    for have, want in zip(reversed(mask), reversed(input), strict=False):
        if have is not want and have != 1:
            torch._check(have == want, words)


def _check(input: torch.Tensor, k: int, dim: int, mask: torch.Tensor | None, index_bits: int) -> int:
    """Refuses what the kernels refuse; returns `dim` as a number from 0."""
    check = torch._check
    check(input.layout is torch.strided, lambda: _LAYOUT.format("input"))
    check(input.dtype in _DTYPES, lambda: f"topk: dtype {_name(input.dtype)} is not supported")
    rank = input.dim()
    dim = _selected(dim, rank)
    n = input.shape[dim] if rank else 1

    _check_k(k, n, dim)
    check(index_bits in (64, 32), lambda: "topk: index_dtype must be int64 or int32")
    if index_bits == 32:
        check(n < 2**31, lambda: f"topk: index_dtype int32 holds no index of a dimension of {n}")
    if mask is not None:
        check(mask.dtype == torch.bool, lambda: f"topk: mask must be bool, got {_name(mask.dtype)}")
        check(mask.layout is torch.strided, lambda: _LAYOUT.format("mask"))
        check(mask.device == input.device, lambda: "topk: mask must be on the device of input")
        _check_mask(mask.shape, input.shape)
    return dim


@torch.library.register_fake("gpuprims::topk")
def _fake(
    input: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    mask: torch.Tensor | None = None,
    index_bits: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    dim, rank = _check(input, k, dim, mask, index_bits), input.dim()
    shape = [*input.shape[:dim], k, *input.shape[dim + 1 :]] if rank else []
    index_dtype = torch.int64 if index_bits == 64 else torch.int32
    return input.new_empty(shape), input.new_empty(shape, dtype=index_dtype)


def _transformed(input: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _run(input, k, *_DEFAULTS)


_plain_handle = plain_handle("topk", lambda input, k: _op(input, k), _fake, _transformed)


# Gradients --------------------------------------------------------------------------------------------------


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    input, _, ctx.dim, _, _, mask, _ = inputs
    ctx.shape, ctx.masked = input.shape, mask is not None
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])
    ctx.save_for_forward(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: torch.Tensor | None, _: None) -> tuple[torch.Tensor | None, ...]:
    """Scatters to the selected elements; aten ops alone, so that it differentiates and compiles in turn."""
    nothing = (None,) * 6
    if grad is None:
        return None, *nothing
    (indices,) = ctx.saved_tensors
    indices = indices.long()
    if not ctx.shape:  # there is one element, and room for no other
        return torch.where(indices < 0, 0, grad), *nothing
    if not ctx.masked:
        return grad.new_zeros(ctx.shape).scatter(ctx.dim, indices, grad), *nothing
    dim = ctx.dim % len(ctx.shape)
    n = ctx.shape[dim]
    wide = (*ctx.shape[:dim], n + 1, *ctx.shape[dim + 1 :])  # slots without an element go to a last column
    indices = torch.where(indices < 0, n, indices)
    return grad.new_zeros(wide).scatter(dim, indices, grad).narrow(dim, 0, n), *nothing


def _jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> tuple[torch.Tensor, None]:
    (indices,) = ctx.saved_tensors
    indices = indices.long()
    if not ctx.masked:
        return tangent.gather(ctx.dim, indices), None
    return torch.where(indices < 0, 0, tangent.gather(ctx.dim, indices.clamp(min=0))), None


# Batching: the new dimension is one more of rows ------------------------------------------------------------


def _vmap(run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    input, k, dim, largest, sorted, mask, bits = args
    if in_dims[0] is None:
        input = input.expand(info.batch_size, *input.shape)
    else:
        input = input.movedim(in_dims[0], 0)
    rank = input.dim() - 1
    dim = _selected(dim, rank)
    if mask is not None and in_dims[5] is not None:
        mask = mask.movedim(in_dims[5], 0)
    if mask is not None:  # as for one sample: with the batch a mask may have one dimension more
        _check_mask(mask.shape if in_dims[5] is None else mask.shape[1:], input.shape[1:])
    if rank == 0:
        input = input.unsqueeze(1)
    if mask is not None and in_dims[5] is not None:
        for _ in range(input.dim() - mask.dim()):  # aligned on the right, as broadcasting does
            mask = mask.unsqueeze(1)
    values, indices = run(input, k, dim + 1, largest, sorted, mask, bits)
    if rank == 0:
        values, indices = values.squeeze(1), indices.squeeze(1)
    return (values, indices), (0, 0)


def _eager_forward(ctx: Any, input: torch.Tensor, k: int, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if rest:
        guard = below_autograd()
        try:
            values, indices = _call(_handle, input, k, *rest)
        finally:
            del guard
        ctx.shape, ctx.dim, ctx.masked = input.shape, rest[0], rest[3] is not None
    else:
        values, indices = _call(_plain_handle, input, k)
        ctx.shape, ctx.dim, ctx.masked = input.shape, -1, False
    ctx.mark_non_differentiable(indices)
    ctx.save_for_backward(indices)
    ctx.set_materialize_grads(False)
    return values, indices


_Function, _apply = gradients(_op, _run, _setup_context, _backward, _vmap, _eager_forward, _jvp)


# DTensor ----------------------------------------------------------------------------------------------------


@functools.cache
def _register_sharding() -> None:
    """Any dimension but the selected one may be sharded. Imports DTensor, which takes a second."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(_op)
    def _sharding(input, k, dim=-1, largest=True, sorted=True, mask=None, index_bits=64):  # type: ignore[no-untyped-def]
        def rule(shard: int | None) -> tuple[list[Any], list[Any]]:
            place = Replicate() if shard is None else Shard(shard)
            mask_place = None
            if mask is not None:
                at = -1 if shard is None else shard - (input.ndim - mask.ndim)
                mask_place = Shard(at) if at >= 0 and mask.shape[at] != 1 else Replicate()
            return [place, place], [place, None, None, None, None, mask_place, None]

        chosen = dim % max(input.ndim, 1)
        return [rule(None), *(rule(d) for d in range(input.ndim) if d != chosen)]
