"""Gradients and batching rules of the aggregation ops. The three ops are closed under differentiation:

    aggregate     gradient in x: aggregate (sum, mean) or extreme_grad (max, min) over the transpose;
                  gradient in the weights: sddmm
    sddmm         aggregate or extreme_grad over the graph and over its transpose
    extreme_grad  pick (PyTorch's gather) and sddmm

`csr` and `transpose` are (indptr, indices, edge_ids, plan); a gradient swaps them. No atomics anywhere.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from . import aggregate_fake as aggregate_fake
from ._dispatch import apply, below_autograd, light_autograd, plain
from .aggregate_plan import order_of

Csr = tuple[torch.Tensor | None, ...]
_Call = Callable[..., Any]  # of the op: (arguments, the tensors among them that may want a gradient)
SUM, MEAN = 0, 1
_raw = torch.ops.gpuprims


class _Op:
    """A raw op, and an autograd.Function around it that costs less a call than the registered gradient."""

    def __init__(self, name: str, setup: Callable[..., None], backward: Any, vmap: Any) -> None:
        raw = self.raw = getattr(_raw, name).default
        torch.library.register_autograd(f"gpuprims::{name}", backward, setup_context=setup)
        # PyTorch calls a registered rule where autograd.Functions cannot run: it calls the raw op in turn.
        torch.library.register_vmap(f"gpuprims::{name}", partial(vmap, lambda args, *_: raw(*args)))

        def forward(*args: Any) -> Any:
            with below_autograd():
                return raw(*args)

        body = {"forward": forward, "setup_context": setup, "backward": backward, "vmap": partial(vmap, self)}
        members = {key: staticmethod(value) for key, value in body.items()}
        self.light: Any = type(f"{name}_function", (torch.autograd.Function,), members)

    def __call__(self, args: tuple[Any, ...], *tensors: torch.Tensor | None) -> Any:
        """`tensors` are those of `args` that a gradient can be wanted for."""
        if plain(*tensors):
            with below_autograd():
                return self.raw(*args)
        return apply(self.light, *args) if light_autograd() else self.raw(*args)


def aggregate(
    x: torch.Tensor, weight: torch.Tensor | None, csr: Csr, transpose: Csr, reduce: int, want_arg: bool,
    promises: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    args = (x, *csr[:3], weight, *transpose[:3], reduce, want_arg, promises, csr[3], transpose[3])
    return _aggregate(args, x, weight)


def sddmm(
    a: torch.Tensor, b: torch.Tensor, csr: Csr, transpose: Csr, arg: torch.Tensor | None, promises: int
) -> torch.Tensor:
    return _sddmm((a, b, *csr[:3], arg, *transpose[:3], promises, csr[3], transpose[3]), a, b)


def extreme_grad(
    grad: torch.Tensor, arg: torch.Tensor, weight: torch.Tensor | None, csr: Csr, transpose: Csr,
    promises: int,
) -> torch.Tensor:  # fmt: skip
    args = (grad, arg, *csr[:3], weight, *transpose[:3], promises, csr[3], transpose[3])
    return _extreme_grad(args, grad, weight)


def pick(x: torch.Tensor, weight: torch.Tensor | None, arg: torch.Tensor, csr: Csr) -> torch.Tensor:
    """weight[e] * x[source of e] for the edge e that arg names, 0 where it names none; second derivatives."""
    _, indices, edge_ids, _ = csr
    assert indices is not None
    if indices.shape[0] == 0:
        return x.new_zeros(arg.shape)
    source = indices.long()
    if edge_ids is not None:
        source = torch.empty_like(source).scatter_(0, edge_ids.long(), source)
    edge = arg.clamp(min=0).long()
    picked = x.gather(0, source[edge])
    if weight is not None:
        picked = picked * weight[edge]
    return torch.where(arg >= 0, picked, torch.zeros_like(picked))


def _swapped(promises: int) -> int:
    """The same promises about the graph whose transpose this one is."""
    return (promises & 1) | (promises & 10) << 1 | (promises & 20) >> 1


def _padded(grad: torch.Tensor, rows: Any) -> torch.Tensor:
    """Rows of x beyond the graph's sources were not read."""
    if grad.shape[0] == rows:
        return grad
    return torch.nn.functional.pad(grad, (0, 0, 0, rows - grad.shape[0]))


def _needs_transpose(op: str, transpose: Csr) -> None:
    if transpose[0] is None:
        raise RuntimeError(
            f"{op}: a gradient needs the transposed graph: give t_indptr, t_indices and t_edge_ids"
        )


def _degrees(csr: Csr) -> torch.Tensor:
    """Edges of each row of the output, [rows, 1], at least 1."""
    indptr, indices, _, plan = csr
    assert indptr is not None
    assert indices is not None
    degree = (indptr[1:] - indptr[:-1]).clamp(min=1)
    order = order_of(indptr, indices.shape[0], plan)
    return (degree if order is None else torch.empty_like(degree).scatter_(0, order, degree))[:, None]


# Saved tensors are (tensors of the op.., csr.., transpose..); gradients are in the order of the arguments.


def _setup_aggregate(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, *csr, weight, t_indptr, t_indices, t_edge_ids, reduce, want_arg, promises, plan, t_plan = inputs
    ctx.save_for_backward(
        None if weight is None else x, weight, output[1], *csr, plan, t_indptr, t_indices, t_edge_ids, t_plan
    )
    ctx.reduce, ctx.want_arg, ctx.promises, ctx.rows = reduce, want_arg, promises, x.shape[0]
    ctx.set_materialize_grads(False)


def _backward_aggregate(ctx: Any, grad: torch.Tensor | None, _: Any) -> tuple[Any, ...]:
    result: list[Any] = [None] * 13
    if grad is None:
        return tuple(result)
    x, weight, arg, *graph = ctx.saved_tensors
    csr, transpose = tuple(graph[:4]), tuple(graph[4:])
    promises, swapped = ctx.promises, _swapped(ctx.promises)
    extreme = ctx.reduce > MEAN
    if extreme and not ctx.want_arg:
        raise RuntimeError("neighbor_aggregate: a gradient of max or min needs want_arg=True")
    if ctx.reduce == MEAN:
        degree = _degrees(csr)
        # 16-bit floats do not hold every degree.
        wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
        grad = (grad.to(wide) / degree.to(wide)).to(grad.dtype)
    if ctx.needs_input_grad[0]:
        _needs_transpose("neighbor_aggregate", transpose)
        if extreme:
            grad_x = extreme_grad(grad, arg, weight, transpose, csr, swapped)
        else:
            grad_x = aggregate(grad, weight, transpose, csr, SUM, False, swapped)[0]
        result[0] = _padded(grad_x, ctx.rows)
    if weight is not None and ctx.needs_input_grad[4]:
        result[4] = sddmm(grad, x, csr, transpose, arg if extreme else None, promises)
    return tuple(result)


def _setup_sddmm(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, *csr, arg, t_indptr, t_indices, t_edge_ids, promises, plan, t_plan = inputs
    ctx.save_for_backward(a, b, arg, *csr, plan, t_indptr, t_indices, t_edge_ids, t_plan)
    ctx.promises = promises


def _backward_sddmm(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    a, b, arg, *graph = ctx.saved_tensors
    csr, transpose = tuple(graph[:4]), tuple(graph[4:])
    promises, swapped = ctx.promises, _swapped(ctx.promises)
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        if arg is None:
            grad_a = aggregate(b, grad, csr, transpose, SUM, False, promises)[0]
        else:
            grad_a = pick(b, grad, arg, csr)
    if ctx.needs_input_grad[1]:
        _needs_transpose("sddmm", transpose)
        if arg is None:
            grad_b = aggregate(a, grad, transpose, csr, SUM, False, swapped)[0]
        else:
            grad_b = extreme_grad(a, arg, grad, transpose, csr, swapped)
        grad_b = _padded(grad_b, b.shape[0])
    return (grad_a, grad_b, *[None] * 10)


def _setup_extreme_grad(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    grad, arg, *csr, weight, t_indptr, t_indices, t_edge_ids, promises, plan, t_plan = inputs
    ctx.save_for_backward(
        None if weight is None else grad, weight, arg, *csr, plan, t_indptr, t_indices, t_edge_ids, t_plan
    )
    ctx.promises = promises


def _backward_extreme_grad(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
    grad, weight, arg, *graph = ctx.saved_tensors
    transpose, csr = tuple(graph[:4]), tuple(graph[4:])  # csr: of the forward
    _needs_transpose("neighbor_extreme_grad", csr)
    grad_grad = grad_weight = None
    if ctx.needs_input_grad[0]:
        grad_grad = pick(grad_out, weight, arg, csr)
    if weight is not None and ctx.needs_input_grad[5]:
        grad_weight = sddmm(grad, grad_out, csr, transpose, arg, _swapped(ctx.promises))
    return (grad_grad, None, None, None, None, grad_weight, *[None] * 6)


# vmap: where only features are batched, the batch becomes features, [rows, batch * features]; else a loop.


def _fold(t: torch.Tensor, dim: int | None, batch: int) -> torch.Tensor:
    t = t[:, None].expand(-1, batch, -1) if dim is None else t.movedim(dim, 1)
    return t.reshape(t.shape[0], batch * t.shape[2])


def _unfold(t: torch.Tensor, batch: int) -> torch.Tensor:
    return t.reshape(t.shape[0], batch, t.shape[1] // batch)


def _split(batch: int, dims: tuple[Any, ...], args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The arguments of each member of the batch."""
    return [
        tuple(a if d is None else a.select(d, i) for a, d in zip(args, dims, strict=True))
        for i in range(batch)
    ]


def _graph_is_shared(op: str, dims: tuple[Any, ...]) -> None:
    if any(dim is not None for dim in dims):
        raise RuntimeError(f"{op}: vmap over the graph is not supported, only over features and weights")


def _vmap_aggregate(call: _Call, info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    _graph_is_shared("neighbor_aggregate", dims[1:4] + dims[5:8] + dims[11:])
    batch, with_arg = info.batch_size, args[8] > MEAN and args[9]
    if dims[4] is None:
        out, arg = call((_fold(args[0], dims[0], batch), *args[1:]), args[0], args[4])
        return (_unfold(out, batch), _unfold(arg, batch) if with_arg else arg), (1, 1 if with_arg else None)
    outs, chosen = zip(*(call(one, one[0], one[4]) for one in _split(batch, dims, args)), strict=True)
    return (torch.stack(outs), torch.stack(chosen) if with_arg else chosen[0]), (0, 0 if with_arg else None)


def _vmap_sddmm(call: _Call, info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    _graph_is_shared("sddmm", dims[2:5] + dims[6:9] + dims[10:])
    return torch.stack([call(one, one[0], one[1]) for one in _split(info.batch_size, dims, args)]), 0


def _vmap_extreme_grad(call: _Call, info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    _graph_is_shared("neighbor_extreme_grad", dims[2:5] + dims[6:9] + dims[10:])
    batch = info.batch_size
    if dims[5] is None:
        grad, arg = _fold(args[0], dims[0], batch), _fold(args[1], dims[1], batch)
        return _unfold(call((grad, arg, *args[2:]), args[0], args[5]), batch), 1
    return torch.stack([call(one, one[0], one[5]) for one in _split(batch, dims, args)]), 0


_aggregate = _Op("neighbor_aggregate", _setup_aggregate, _backward_aggregate, _vmap_aggregate)
_sddmm = _Op("sddmm", _setup_sddmm, _backward_sddmm, _vmap_sddmm)
_extreme_grad = _Op("neighbor_extreme_grad", _setup_extreme_grad, _backward_extreme_grad, _vmap_extreme_grad)
