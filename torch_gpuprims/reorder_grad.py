"""Gradients and batching rules of the reordering ops.

pack_rows and unpack_rows are each other's gradient; gather_packed's is a segment_reduce of the gradient in
the order of what was read; those of the products are neighbor_aggregate (over the transpose) and sddmm. No
atomics, and so the bits are the same on every run.
"""

import math
from typing import Any

import torch

from . import reorder_fake as reorder_fake
from ._dispatch import apply, below_autograd, gradients, light_autograd, plain
from .aggregate_csr import stable_order
from .aggregate_grad import SUM, aggregate, sddmm
from .reduce_segment_grad import run_reduce

_CHECKED = 1
_raw = torch.ops.gpuprims
_pack, _unpack = _raw.pack_rows.default, _raw.unpack_rows.default
_gather, _spmv, _spmv_csr = _raw.gather_packed.default, _raw.spmv.default, _raw.spmv_csr.default


def _run(op: Any, function: Any, tensors: tuple[Any, ...], args: tuple[Any, ...]) -> torch.Tensor:
    """`tensors` are those of `args` that a gradient can be wanted for."""
    if plain(*tensors):
        with below_autograd():
            return op(*args)
    return apply(function, *args) if light_autograd(*tensors) else op(*args)


def pack(*args: Any) -> torch.Tensor:
    return _run(_pack, _PackFunction, args[:1], args)


def unpack(*args: Any) -> torch.Tensor:
    return _run(_unpack, _UnpackFunction, args[:1], args)


def gather(*args: Any) -> torch.Tensor:
    return _run(_gather, _GatherFunction, args[:1], args)


def spmv(*args: Any) -> torch.Tensor:
    return _run(_spmv, _SpmvFunction, (args[0], args[6], args[7]), args)


def spmv_csr(*args: Any) -> torch.Tensor:
    return _run(_spmv_csr, _SpmvCsrFunction, args[2:4], args)


# Packing ----------------------------------------------------------------------------------------------------


def _save_pack(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    values, *packing, _, _, ctx.promises = inputs
    ctx.save_for_backward(*packing)
    ctx.entries = values.shape[0]
    ctx.set_materialize_grads(False)


def _backward_pack(ctx: Any, grad: torch.Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 8
    return unpack(grad, *ctx.saved_tensors, ctx.entries, ctx.promises), *(None,) * 7


def _save_unpack(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    packed, *packing, _, ctx.promises = inputs
    ctx.save_for_backward(*packing)
    ctx.slots = packed.shape[0]
    ctx.set_materialize_grads(False)


def _backward_unpack(ctx: Any, grad: torch.Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 7
    return pack(grad, *ctx.saved_tensors, ctx.slots, None, ctx.promises), *(None,) * 6


def _batch_features(run: Any, info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    """The batch becomes the last feature; the packing, or the index, is one for all."""
    if any(dim is not None for dim in in_dims[1:]):
        parts = [
            run(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        return torch.stack(parts), 0
    out = run(args[0].movedim(in_dims[0], -1), *args[1:])
    return out, out.dim() - 1


_PackFunction, _ = gradients(_pack, pack, _save_pack, _backward_pack, _batch_features)
_UnpackFunction, _ = gradients(_unpack, unpack, _save_unpack, _backward_unpack, _batch_features)

# Gathering --------------------------------------------------------------------------------------------------


def inverse(index: torch.Tensor, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(offsets [rows + 1], positions): the positions of index, by what they read, in order within each.

    What lies outside of [0, rows) goes behind. Does not wait for the device.
    """
    index = index.long()  # rows may be more than an int32 holds
    keys = torch.where((index >= 0) & (index < rows), index, rows)
    # The number of bits must be a constant where rows is a symbol.
    order = stable_order(keys, rows + 1) if isinstance(rows, int) else keys.argsort(stable=True)
    bounds = torch.arange(rows + 1, device=index.device)
    return torch.searchsorted(keys[order], bounds), order


def _save_gather(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    values, index, _, t_indptr, t_order = inputs
    ctx.save_for_backward(index, t_indptr, t_order)
    ctx.rows = values.shape[0]
    ctx.set_materialize_grads(False)


def _backward_gather(ctx: Any, grad: torch.Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 5
    index, t_indptr, t_order = ctx.saved_tensors
    if t_indptr is None:
        t_indptr, t_order = inverse(index, ctx.rows)
    # Positions that read nothing lie behind the last offset: a segment of their own, left out.
    ends = torch.cat([t_indptr, t_indptr.new_full((1,), index.shape[0])])
    sorted_grad = gather(grad, t_order, None, None, None)
    if grad.is_complex():  # two real sums
        sorted_grad = torch.view_as_real(sorted_grad.resolve_conj())
    features = sorted_grad.shape[1:]
    flat = sorted_grad.reshape(index.shape[0], math.prod(features)) if features else sorted_grad
    total = run_reduce(flat, ends, SUM, 0)[: ctx.rows].reshape(ctx.rows, *features)
    if grad.is_complex():
        return torch.view_as_complex(total), *(None,) * 4
    return total.to(grad.dtype), *(None,) * 4


_GatherFunction, _ = gradients(_gather, gather, _save_gather, _backward_gather, _batch_features)

# Products ---------------------------------------------------------------------------------------------------


def _column(t: torch.Tensor) -> torch.Tensor:
    return t[:, None] if t.dim() == 1 else t


def _padded(grad: torch.Tensor, like: torch.Size) -> torch.Tensor:
    """Rows of x beyond the columns of the transpose were not read."""
    if grad.shape[0] != like[0]:
        grad = torch.nn.functional.pad(grad, (0, 0, 0, like[0] - grad.shape[0]))
    return grad if len(like) == 2 else grad.squeeze(1)


def _save_spmv(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    values, indices, indptr, slices, order, units, x, start, *transpose, ctx.promises = inputs
    ctx.has_start = start is not None
    ctx.save_for_backward(values, x, indices, indptr, slices, order, units, *transpose)
    ctx.set_materialize_grads(False)


def _backward_spmv(ctx: Any, grad: torch.Tensor | None) -> tuple[Any, ...]:
    result: list[Any] = [None] * 12
    if grad is None:
        return tuple(result)
    values, x, indices, indptr, slices, order, units, *transpose = ctx.saved_tensors
    packing = (indptr, slices, order, units)
    result[7] = grad if ctx.has_start and ctx.needs_input_grad[7] else None
    wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[6]
    if not any(wanted):
        return tuple(result)
    if transpose[0] is None:
        raise RuntimeError(
            "spmv: a gradient needs the transposed entries: give t_indptr, t_indices and t_ids"
        )
    columns = unpack(indices, *packing, transpose[1].shape[0], ctx.promises)
    csr, other = (indptr, columns, None, None), (*transpose, None)
    if wanted[0]:
        entries = sddmm(_column(grad), _column(x), csr, other, None, ctx.promises & _CHECKED)
        result[0] = pack(entries, *packing, values.shape[0], None, ctx.promises)
    if wanted[1]:
        weight = unpack(values, *packing, transpose[1].shape[0], ctx.promises)
        summed = aggregate(_column(grad), weight, other, csr, SUM, False, ctx.promises & _CHECKED)[0]
        result[6] = _padded(summed, x.shape)
    return tuple(result)


def _save_csr(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.promises = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def transposed(
    indptr: torch.Tensor, indices: torch.Tensor, columns: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(t_indptr, t_indices, t_ids) of CSR, in the dtype of indptr; entries of a column in order of rows."""
    t_indptr, order = inverse(indices, columns)
    every = torch.arange(indices.shape[0], device=indices.device)
    rows = torch.searchsorted(indptr.long(), every, right=True) - 1
    return t_indptr.to(indptr.dtype), rows[order].to(indptr.dtype), order.to(indptr.dtype)


def _backward_csr(ctx: Any, grad: torch.Tensor | None) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 5
    indptr, indices, values, x = ctx.saved_tensors
    csr = (indptr, indices, None, None)
    other = (*transposed(indptr, indices, x.shape[0]), None)
    checked = ctx.promises & _CHECKED
    grad_values = grad_x = None
    if ctx.needs_input_grad[2]:
        grad_values = sddmm(_column(grad), _column(x), csr, other, None, checked)
    if ctx.needs_input_grad[3]:
        # Out-of-range indices leave the transpose short: it is looked at.
        grad_x = _padded(aggregate(_column(grad), values, other, csr, SUM, False, 0)[0], x.shape)
    return None, None, grad_values, grad_x, None


def _batch_product(at: int, others: tuple[int, ...]) -> Any:
    """vmap where args[at] is x: the batch becomes columns of it, or where anything else is batched a loop."""

    def batch(run: Any, info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
        size = info.batch_size
        rest = [dim for i, dim in enumerate(in_dims) if i != at]
        if any(dim is not None for dim in rest) or any(args[i] is not None for i in others):
            parts = [
                run(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)))
                for i in range(size)
            ]
            return torch.stack(parts), 0
        x = args[at].movedim(in_dims[at], 1)  # [columns, batch, ...]
        out = run(*args[:at], x.flatten(1), *args[at + 1 :])
        return out.reshape(out.shape[0], *x.shape[1:]), 1

    return batch


_SpmvFunction, _ = gradients(_spmv, spmv, _save_spmv, _backward_spmv, _batch_product(6, (7,)))
_SpmvCsrFunction, _ = gradients(_spmv_csr, spmv_csr, _save_csr, _backward_csr, _batch_product(3, ()))
