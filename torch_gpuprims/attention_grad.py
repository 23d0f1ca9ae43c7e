"""Gradients and batching rules of the attention ops.

First derivatives are ops with kernels of their own, and store nothing an edge and channel. edge_softmax and
its gradient are closed under differentiation. Second derivatives of neighbor_attention and gatv2_score are
compositions of differentiable ops on [edges, heads, channels] tensors: right, deterministic, and not lean.
"""

from collections.abc import Callable
from typing import Any

import torch

from . import attention_fake as attention_fake
from .aggregate_grad import SUM, _graph_is_shared, _Op, _padded, _split, aggregate

Csr = tuple[torch.Tensor | None, ...]
_NO_DROPOUT = 0.0


class EdgeView:
    """The ends of each edge by id, and sums over the edges of a node that are differentiable, twice as
    well."""

    def __init__(self, csr: Csr) -> None:
        indptr, indices, edge_ids = csr
        assert indptr is not None and indices is not None
        edges, rows = indices.shape[0], indptr.shape[0] - 1
        every = torch.arange(edges, device=indptr.device)
        nodes = torch.arange(rows, device=indptr.device)
        owner = nodes.repeat_interleave((indptr[1:] - indptr[:-1]).long(), output_size=edges)
        if edge_ids is None:
            self.src, self.dst, position, ids = indices.long(), owner, every, every
        else:
            ids = edge_ids.long()
            position = torch.empty_like(ids).scatter_(0, ids, every)
            self.src, self.dst = indices.long()[position], owner[position]
        ends = torch.arange(edges + 1, device=indptr.device, dtype=indptr.dtype)
        self.rows = rows
        self.csr: Csr = (indptr, ids, None, None)
        self.transpose: Csr = (ends, self.dst, position.to(indptr.dtype), None)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """[edges, ...] by id -> [rows, ...]: neighbor_aggregate over the graph in which edges are sources."""
        flat = values.reshape(values.shape[0], values[:1].numel() if values.shape[0] else 0)
        total = aggregate(flat, None, self.csr, self.transpose, SUM, False, 0)[0]
        return total.reshape(self.rows, *values.shape[1:])


def _shift(z: torch.Tensor, bits: int) -> torch.Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def dropout_factors(seed: torch.Tensor, edges: int, heads: int, dropout: float) -> torch.Tensor:
    """What dropout multiplies each alpha with, float64 [edges, heads]: csrc/attention/hash.h in int64."""
    counter = torch.arange(1, edges * heads + 1, device=seed.device)
    z = seed.reshape(()) + counter * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    kept = _shift(z ^ _shift(z, 31), 32) >= int(dropout * 2.0**32 + 0.5)
    scale = 1 / (1 - dropout) if dropout < 1 else 0.0
    return (kept.double() * scale).reshape(edges, heads)


# neighbor_attention: x, a_src, a_dst, a_edge, seed, csr, transpose, slope, dropout, promises, want_positive
# ------------------


def _setup_attention(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:11], *output)
    ctx.rest = inputs[11:]
    ctx.set_materialize_grads(False)


def _wanted(needs: tuple[bool, ...], tensors: tuple[Any, ...]) -> int:
    return sum(1 << i for i, t in enumerate(tensors) if needs[i] and t is not None)


def _backward_attention(
    ctx: Any, grad: torch.Tensor | None, grad_lse: torch.Tensor | None, _: Any
) -> tuple[Any, ...]:
    result: list[Any] = [None] * 15
    if grad is None and grad_lse is None:
        return tuple(result)
    x, a_src, a_dst, a_edge, seed, *graph, out, lse, positive = ctx.saved_tensors
    if grad is None:
        grad = torch.zeros_like(out)
    terms = (x, a_src, a_dst, a_edge)
    wanted = _wanted(ctx.needs_input_grad, terms)
    *rest, want_positive = ctx.rest
    kept = positive if want_positive else None
    args = (grad, grad_lse, out, lse, *terms, seed, *graph, *rest, wanted, kept)
    grads = _attention_grad(args, grad, grad_lse, *terms)
    for i, part in enumerate(grads):
        if wanted >> i & 1:
            result[i] = _pad_rows(part, terms[i].shape[0]) if i < 2 else part
    return tuple(result)


def _pad_rows(grad: torch.Tensor, rows: Any) -> torch.Tensor:
    """Rows of x beyond the graph's sources were not read."""
    return _padded(grad.flatten(1), rows).reshape(rows, *grad.shape[1:]) if grad.shape[0] != rows else grad


# neighbor_attention_grad: grad, grad_lse, out, lse, x, a_src, a_dst, a_edge, seed, .. as above, wanted,
# positive


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


def _pull_back(
    function: Callable[..., tuple[torch.Tensor, ...]], tensors: tuple[Any, ...], grads: tuple[Any, ...],
    wanted: int,
) -> list[Any]:  # fmt: skip
    """The gradients in `tensors`, None where there is none, of function(*tensors), whose parts are
    optional."""
    given = [i for i, t in enumerate(tensors) if t is not None]

    def run(*some: torch.Tensor) -> tuple[torch.Tensor, ...]:
        every = list(tensors)
        for i, t in zip(given, some, strict=True):
            every[i] = t
        parts = function(*every)
        return tuple(part for i, part in enumerate(parts) if wanted >> i & 1)

    outputs, pull = torch.func.vjp(run, *(tensors[i] for i in given))  # type: ignore[misc]
    # Of the parts that nobody asked for there are no gradients.
    ups = [g for i, g in enumerate(grads) if wanted >> i & 1]
    result: list[Any] = [None] * len(tensors)
    cotangents = tuple(
        torch.zeros_like(o) if g is None else g.to(o.dtype) for o, g in zip(outputs, ups, strict=True)
    )
    for i, g in zip(given, pull(cotangents), strict=True):
        result[i] = g
    return result


def _backward_attention_grad(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    grad, grad_lse, _, _, *terms, seed, a, b, c, d, e, f = ctx.saved_tensors

    def run(grad: torch.Tensor, grad_lse: torch.Tensor | None, *terms: Any) -> tuple[torch.Tensor, ...]:
        return _compose_attention_grad(grad, grad_lse, terms, seed, (a, b, c), (d, e, f), ctx.rest)

    got = _pull_back(run, (grad, grad_lse, *terms), grads, ctx.rest[3])
    return (got[0], got[1], None, None, *got[2:], *[None] * 12)


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
    wanted = _wanted(ctx.needs_input_grad, tuple(tensors))
    args = (grad, *tensors, a, b, c, d, e, f, *ctx.rest, wanted)
    parts = _gatv2_grad(args, grad, *tensors)
    result: list[Any] = [part if wanted >> i & 1 else None for i, part in enumerate(parts)]
    if result[0] is not None:
        result[0] = _pad_rows(result[0], tensors[0].shape[0])
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

    return (*_pull_back(run, tuple(tensors), grads, wanted), *[None] * 9)


# vmap is a loop over the batch
# -------------------------------------------------------------------------------


def _vmap(name: str, tensors: int, graph: slice) -> Callable[..., tuple[Any, Any]]:
    """`tensors`: how many arguments may be batched; `graph`: those that may not."""

    def rule(call: Callable[..., Any], info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        _graph_is_shared(name, dims[graph])
        results = [call(one, *one[:tensors]) for one in _split(info.batch_size, dims, args)]
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        return tuple(map(torch.stack, zip(*results, strict=True))), tuple(0 for _ in results[0])

    return rule


_attention = _Op(
    "neighbor_attention", _setup_attention, _backward_attention, _vmap("neighbor_attention", 4, slice(5, 11))
)
_attention_grad = _Op(
    "neighbor_attention_grad",
    _setup_attention_grad,
    _backward_attention_grad,
    _vmap("neighbor_attention_grad", 8, slice(9, 15)),
)
_softmax = _Op("edge_softmax", _setup_softmax, _backward_softmax, _vmap("edge_softmax", 1, slice(1, 3)))
_softmax_grad = _Op(
    "edge_softmax_grad",
    _setup_softmax_grad,
    _backward_softmax_grad,
    _vmap("edge_softmax_grad", 2, slice(2, 4)),
)
_gatv2 = _Op("gatv2_score", _setup_gatv2, _backward_gatv2, _vmap("gatv2_score", 4, slice(4, 10)))
_gatv2_grad = _Op(
    "gatv2_score_grad", _setup_gatv2_grad, _backward_gatv2_grad, _vmap("gatv2_score_grad", 5, slice(5, 11))
)


def attention(
    terms: tuple[torch.Tensor | None, ...], seed: torch.Tensor | None, csr: Csr, transpose: Csr, slope: float,
    dropout: float, promises: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    a_dst = terms[2]
    want_positive = torch.is_grad_enabled() and a_dst is not None and a_dst.requires_grad
    args = (*terms, seed, *csr, *transpose, slope, dropout, promises, want_positive)
    return _attention(args, *terms)[:2]


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
