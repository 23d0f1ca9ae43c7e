"""Gradients and batching rules of neighbor_attention.

The first derivative is an op with kernels of its own, and stores nothing an edge and channel. The second is
a composition of differentiable ops on [edges, heads, channels] tensors: right, deterministic, and not lean.
"""

from typing import Any

import torch

from . import attention_fake as attention_fake
from .aggregate_grad import _Op
from .attention_edges import Csr, EdgeView, dropout_factors, pad_rows, pull_back, vmap_rule, wanted_bits
from .attention_scores import edge_softmax, edge_softmax_grad

# neighbor_attention: x, a_src, a_dst, a_edge, seed, csr, transpose, slope, dropout, promises, want_positive,
# bias


def _setup_attention(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:11], inputs[15], *output)
    ctx.rest = inputs[11:15]
    ctx.set_materialize_grads(False)


def _backward_attention(
    ctx: Any, grad: torch.Tensor | None, grad_lse: torch.Tensor | None, _: Any
) -> tuple[Any, ...]:
    result: list[Any] = [None] * 16
    if grad is None and grad_lse is None:
        return tuple(result)
    x, a_src, a_dst, a_edge, seed, *graph, bias, out, lse, positive = ctx.saved_tensors
    if grad is not None and bias is not None and ctx.needs_input_grad[15]:
        # A product with ones is at 2.4 times the rate of torch.sum(0).
        result[15] = (grad.flatten(1).t() @ grad.new_ones(grad.shape[0])).view(bias.shape)
    if grad is None:
        grad = torch.zeros_like(out)
    terms = (x, a_src, a_dst, a_edge)
    wanted = wanted_bits(ctx.needs_input_grad, terms)
    *rest, want_positive = ctx.rest
    kept = positive if want_positive else None
    args = (grad, grad_lse, out, lse, *terms, seed, *graph, *rest, wanted, kept, bias)
    grads = _attention_grad(args, grad, grad_lse, *terms)
    for i, part in enumerate(grads):
        if wanted >> i & 1:
            result[i] = pad_rows(part, terms[i].shape[0]) if i < 2 else part
    return tuple(result)


# neighbor_attention_grad: grad, grad_lse, out, lse, x, a_src, a_dst, a_edge, seed, .. as above, wanted,
# positive, bias


def _setup_attention_grad(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:15])
    ctx.rest = inputs[15:19]


def _compose_attention_grad(
    grad: torch.Tensor, grad_lse: torch.Tensor | None, terms: tuple[torch.Tensor | None, ...],
    seed: torch.Tensor | None, csr: Csr, transpose: Csr, rest: tuple[Any, ...],
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """neighbor_attention_grad of differentiable ops, with out and lse made again from the other arguments."""
    x, a_src, a_dst, a_edge = terms
    slope, dropout, _, wanted = rest
    assert x is not None and csr[0] is not None
    view = EdgeView(csr)
    edges, heads = view.src.shape[0], x.shape[1]
    raw = x.new_zeros(edges, heads)
    for term, ends in ((a_src, view.src), (a_dst, view.dst), (a_edge, None)):
        if term is not None:
            raw = raw + (term if ends is None else term[ends])
    through = torch.where(raw > 0, 1.0, slope).to(raw.dtype)
    alpha = edge_softmax(raw * through, csr[0], csr[2], 0)
    factor = alpha.new_ones(())
    if dropout > 0:
        assert seed is not None
        factor = dropout_factors(seed, edges, heads, dropout).to(alpha.dtype)
    grad_alpha = factor * (grad[view.dst] * x[view.src]).sum(-1)
    grad_score = edge_softmax_grad(grad_alpha, alpha, csr[0], csr[2], 0)
    if grad_lse is not None:
        grad_score = grad_score + alpha * grad_lse.to(alpha.dtype)[view.dst]
    grad_raw = grad_score * through
    empty = x.new_zeros(0)
    grad_x = grad_src = empty
    if wanted & 3:
        by_source = EdgeView(transpose)
        grad_x = by_source.sum((alpha * factor)[..., None] * grad[view.dst])
        grad_src = by_source.sum(grad_raw)
    parts = grad_x, grad_src, view.sum(grad_raw), grad_raw
    return tuple(part if wanted >> i & 1 else empty for i, part in enumerate(parts))


def _backward_attention_grad(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    grad, grad_lse, _, _, *terms, seed, a, b, c, d, e, f = ctx.saved_tensors

    def run(grad: torch.Tensor, grad_lse: torch.Tensor | None, *terms: Any) -> tuple[torch.Tensor, ...]:
        return _compose_attention_grad(grad, grad_lse, terms, seed, (a, b, c), (d, e, f), ctx.rest)

    got = pull_back(run, (grad, grad_lse, *terms), grads, ctx.rest[3])
    return (got[0], got[1], None, None, *got[2:], *[None] * 13)


_attention = _Op(
    "neighbor_attention",
    _setup_attention,
    _backward_attention,
    vmap_rule("neighbor_attention", (0, 1, 2, 3, 15), slice(5, 11)),
)
_attention_grad = _Op(
    "neighbor_attention_grad",
    _setup_attention_grad,
    _backward_attention_grad,
    vmap_rule("neighbor_attention_grad", range(8), slice(9, 15)),
)


def attention(
    terms: tuple[torch.Tensor | None, ...], seed: torch.Tensor | None, csr: Csr, transpose: Csr, slope: float,
    dropout: float, promises: int, bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    a_dst = terms[2]
    want_positive = torch.is_grad_enabled() and a_dst is not None and a_dst.requires_grad
    args = (*terms, seed, *csr, *transpose, slope, dropout, promises, want_positive, bias)
    return _attention(args, *terms, bias)[:2]
