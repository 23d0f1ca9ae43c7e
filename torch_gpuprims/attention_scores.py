"""Gradients and batching rules of edge_softmax and gatv2_score.

edge_softmax and its gradient are closed under differentiation. The second derivative of gatv2_score is a
composition of differentiable ops on [edges, heads, channels] tensors: right, deterministic, and not lean.
"""

from typing import Any

import torch

from . import attention_fake as attention_fake
from .aggregate_grad import _Op
from .attention_edges import Csr, EdgeView, pad_rows, pull_back, vmap_rule, wanted_bits

# edge_softmax: scores, indptr, edge_ids, promises; its gradient: grad, alpha, ..
# -------------------------------


def _setup_softmax(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(output, *inputs[1:3])
    ctx.promises = inputs[3]


def _backward_softmax(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    alpha, indptr, edge_ids = ctx.saved_tensors
    return edge_softmax_grad(grad, alpha, indptr, edge_ids, ctx.promises), None, None, None


def _setup_softmax_grad(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.promises = inputs[4]


def _backward_softmax_grad(ctx: Any, up: torch.Tensor) -> tuple[Any, ...]:
    grad, alpha, indptr, edge_ids = ctx.saved_tensors
    rest = (indptr, edge_ids, ctx.promises)

    def row_sum(values: torch.Tensor) -> torch.Tensor:  # over the edges of each edge's row
        return values - edge_softmax_grad(values, torch.ones_like(values), *rest)

    grad_grad = edge_softmax_grad(up, alpha, *rest)
    grad_alpha = up * (grad - row_sum(alpha * grad)) - grad * row_sum(alpha * up)
    return grad_grad, grad_alpha, None, None, None


# gatv2_score: x_src, x_dst, att, edge, csr, transpose, slope, promises; its gradient: grad, .., wanted
# ----------


def _setup_gatv2(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:10])
    ctx.rest = inputs[10:]


def _backward_gatv2(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    *tensors, a, b, c, d, e, f = ctx.saved_tensors
    wanted = wanted_bits(ctx.needs_input_grad, tuple(tensors))
    args = (grad, *tensors, a, b, c, d, e, f, *ctx.rest, wanted)
    parts = _gatv2_grad(args, grad, *tensors)
    result: list[Any] = [part if wanted >> i & 1 else None for i, part in enumerate(parts)]
    if result[0] is not None:
        result[0] = pad_rows(result[0], tensors[0].shape[0])
    if result[2] is not None:
        result[2] = result[2].sum(0)
    return (*result, *[None] * 8)


def _setup_gatv2_grad(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:11])
    ctx.rest = inputs[11:]


def _backward_gatv2_grad(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    *tensors, a, b, c, d, e, f = ctx.saved_tensors
    slope, _, wanted = ctx.rest

    def run(grad: torch.Tensor, x_src: Any, x_dst: Any, att: Any, edge: Any) -> tuple[torch.Tensor, ...]:
        view = EdgeView((a, b, c))
        z = x_src[view.src] + x_dst[view.dst]
        if edge is not None:
            z = z + edge
        through = torch.where(z > 0, 1.0, slope).to(z.dtype)
        up = grad[..., None]
        grad_z = up * att * through
        empty = z.new_zeros(0)
        grad_src = EdgeView((d, e, f)).sum(grad_z) if wanted & 1 else empty
        return grad_src, view.sum(grad_z), view.sum(up * z * through), grad_z

    return (*pull_back(run, tuple(tensors), grads, wanted), *[None] * 9)


_softmax = _Op(
    "edge_softmax",
    _setup_softmax,
    _backward_softmax,
    vmap_rule("edge_softmax", range(1), slice(1, 3)),
)
_softmax_grad = _Op(
    "edge_softmax_grad",
    _setup_softmax_grad,
    _backward_softmax_grad,
    vmap_rule("edge_softmax_grad", range(2), slice(2, 4)),
)
_gatv2 = _Op(
    "gatv2_score",
    _setup_gatv2,
    _backward_gatv2,
    vmap_rule("gatv2_score", range(4), slice(4, 10)),
)
_gatv2_grad = _Op(
    "gatv2_score_grad",
    _setup_gatv2_grad,
    _backward_gatv2_grad,
    vmap_rule("gatv2_score_grad", range(5), slice(5, 11)),
)


def edge_softmax(
    scores: torch.Tensor, indptr: torch.Tensor, edge_ids: torch.Tensor | None, promises: int
) -> torch.Tensor:
    return _softmax((scores, indptr, edge_ids, promises), scores)


def edge_softmax_grad(
    grad: torch.Tensor,
    alpha: torch.Tensor,
    indptr: torch.Tensor,
    edge_ids: torch.Tensor | None,
    promises: int,
) -> torch.Tensor:
    return _softmax_grad((grad, alpha, indptr, edge_ids, promises), grad, alpha)


def gatv2_score(
    tensors: tuple[torch.Tensor | None, ...], csr: Csr, transpose: Csr, slope: float, promises: int
) -> torch.Tensor:
    return _gatv2((*tensors, *csr, *transpose, slope, promises), *tensors)
