"""Fake kernels and FLOPs of the attention ops; the checks are csrc/attention/checks.h, word for word."""

import math
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from ._fake_checks import Maybe as _Maybe
from ._fake_checks import check as _check
from ._fake_checks import check_dense as _dense
from ._fake_checks import check_floats as _floats
from ._fake_checks import check_ints as _vector
from ._fake_checks import dtype_name as _name
from .aggregate_fake import _graph, _ids


def _heads(op: str, name: str, x: torch.Tensor) -> None:
    _floats(op, name, x)
    _check(x.dim() == 3, f"{op}: {name} must have 3 dimensions [rows, heads, channels], got {x.dim()}")
    _check(
        x.shape[0] < 2**32 - 1,
        f"{op}: {name} must have fewer than 4294967295 rows, got {x.shape[0]}",
    )
    width = x.shape[1] * x.shape[2]
    _check(width < 2**28, f"{op}: {name} must have fewer than 268435456 elements a row, got {width}")


def _shape(op: str, name: str, t: torch.Tensor, shape: tuple[Any, ...], what: str) -> None:
    words = f"{op}: {name} must have shape {list(shape)} {what}, got {list(t.shape)}"
    _check(t.dim() == len(shape), words)
    for size, wanted in zip(t.shape, shape, strict=True):
        _check(size == wanted, words)


def _like(
    op: str, name: str, t: _Maybe, shape: tuple[Any, ...], what: str, x: torch.Tensor, x_name: str = "x"
) -> None:
    if t is None:
        return
    _dense(op, name, t)
    _shape(op, name, t, shape, what)
    _check(
        t.dtype == x.dtype,
        f"{op}: {name} must have the dtype of {x_name} ({_name(x.dtype)}), got {_name(t.dtype)}",
    )
    _check(t.device == x.device, f"{op}: {name} must be on the device of {x_name}")


def _terms(
    op: str, x: torch.Tensor, a_src: _Maybe, a_dst: _Maybe, a_edge: _Maybe, seed: _Maybe,
    csr: tuple[Any, ...], transpose: tuple[Any, ...], dropout: float, bias: _Maybe,
) -> None:  # fmt: skip
    _heads(op, "x", x)
    _graph(op, "x", x, csr, transpose)
    given = a_src is not None or a_dst is not None or a_edge is not None
    _check(given, f"{op}: one of a_src, a_dst and a_edge must be given")
    heads = x.shape[1]
    _like(op, "a_src", a_src, (x.shape[0], heads), "(sources, heads)", x)
    _like(op, "a_dst", a_dst, (csr[0].shape[0] - 1, heads), "(destinations, heads)", x)
    _like(op, "a_edge", a_edge, (csr[1].shape[0], heads), "(edges, heads)", x)
    words = f"{op}: bias must be None where x is {_name(x.dtype)}"
    _check(bias is None or x.dtype == _accumulator(x.dtype), words)
    _like(op, "bias", bias, (heads, x.shape[2]), "(heads, channels)", x)
    _check(0 <= dropout <= 1, f"{op}: dropout must be between 0 and 1, got {dropout:g}")
    _check(dropout == 0 or seed is not None, f"{op}: dropout needs a seed")
    if seed is None:
        return
    _check(
        seed.dtype == torch.int64 and math.prod(seed.shape) == 1,
        f"{op}: seed must be int64 with 1 element, got {_name(seed.dtype)} with {math.prod(seed.shape)}",
    )
    _check(seed.device == x.device, f"{op}: seed must be on the device of x")


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


@torch.library.register_fake("gpuprims::neighbor_attention")
def _(
    x: torch.Tensor, a_src: _Maybe, a_dst: _Maybe, a_edge: _Maybe, seed: _Maybe, indptr: torch.Tensor,
    indices: torch.Tensor, edge_ids: _Maybe = None, t_indptr: _Maybe = None, t_indices: _Maybe = None,
    t_edge_ids: _Maybe = None, negative_slope: float = 0.2, dropout: float = 0.0, promises: int = 0,
    want_positive: bool = False, bias: _Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    csr, transpose = (indptr, indices, edge_ids), (t_indptr, t_indices, t_edge_ids)
    _terms("neighbor_attention", x, a_src, a_dst, a_edge, seed, csr, transpose, dropout, bias)
    rows, wide = indptr.shape[0] - 1, _accumulator(x.dtype)
    kept = rows * x.shape[1] * (x.shape[2] + 1) if want_positive else 0
    return (
        x.new_empty((rows, *x.shape[1:])),
        x.new_empty((rows, x.shape[1]), dtype=wide),
        x.new_empty((kept,), dtype=wide),
    )


def _lse(op: str, name: str, lse: torch.Tensor, x: torch.Tensor, rows: Any) -> None:
    _shape(op, name, lse, (rows, x.shape[1]), "(destinations, heads)")
    wanted = _accumulator(x.dtype)
    _check(lse.dtype == wanted, f"{op}: {name} must be {_name(wanted)}, got {_name(lse.dtype)}")
    _check(lse.device == x.device, f"{op}: {name} must be on the device of x")


def _results(x: torch.Tensor, wanted: int, *shapes: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(x.new_empty(shape if wanted >> bit & 1 else (0,)) for bit, shape in enumerate(shapes))


def _transposed(op: str, t_indptr: _Maybe, wanted: int) -> None:
    _check(
        t_indptr is not None or not wanted,
        f"{op}: a gradient needs the transposed graph: give t_indptr, t_indices and t_edge_ids",
    )


@torch.library.register_fake("gpuprims::neighbor_attention_grad")
def _(
    grad: torch.Tensor, grad_lse: _Maybe, out: torch.Tensor, lse: torch.Tensor, x: torch.Tensor,
    a_src: _Maybe, a_dst: _Maybe, a_edge: _Maybe, seed: _Maybe, indptr: torch.Tensor, indices: torch.Tensor,
    edge_ids: _Maybe = None, t_indptr: _Maybe = None, t_indices: _Maybe = None, t_edge_ids: _Maybe = None,
    negative_slope: float = 0.2, dropout: float = 0.0, promises: int = 0, wanted: int = 15,
    positive: _Maybe = None, bias: _Maybe = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    op = "neighbor_attention_grad"
    csr, transpose = (indptr, indices, edge_ids), (t_indptr, t_indices, t_edge_ids)
    _terms(op, x, a_src, a_dst, a_edge, seed, csr, transpose, dropout, bias)
    rows, heads, edges = indptr.shape[0] - 1, x.shape[1], indices.shape[0]
    _check(edges < 2**32 - 1, f"{op}: the graph must have fewer than 4294967295 edges, got {edges}")
    shape, what = (rows, heads, x.shape[2]), "(destinations, heads, channels)"
    _like(op, "grad", grad, shape, what, x)
    _like(op, "out", out, shape, what, x)
    _lse(op, "lse", lse, x, rows)
    if grad_lse is not None:
        _lse(op, "grad_lse", grad_lse, x, rows)
    if positive is not None:
        size = rows * heads * (x.shape[2] + 1)
        _shape(op, "positive", positive, (size,), "(what the forward pass gave)")
        _check(positive.dtype == lse.dtype, f"{op}: positive must have the dtype of lse")
        _check(positive.device == x.device, f"{op}: positive must be on the device of x")
    _transposed(op, t_indptr, wanted & 3)
    sources = 0 if t_indptr is None else t_indptr.shape[0] - 1
    shapes = (sources, *x.shape[1:]), (sources, heads), (rows, heads), (edges, heads)
    return _results(x, wanted, *shapes)


def _scores(op: str, name: str, scores: torch.Tensor, indptr: torch.Tensor, edge_ids: _Maybe) -> None:
    _floats(op, name, scores)
    _check(scores.dim() == 2, f"{op}: {name} must have 2 dimensions [edges, heads], got {scores.dim()}")
    _vector(op, "indptr", indptr, scores, name)
    _check(indptr.shape[0] >= 1, f"{op}: indptr must have at least 1 element, got 0")
    edges = scores.shape[0]
    if indptr.dtype == torch.int32:
        _check(edges <= 2**31 - 1, f"{op}: indptr must be int64 for {edges} edges, got int32")
    if edge_ids is not None:
        _ids(op, "edge_ids", edge_ids, indptr, edges, scores, name)


@torch.library.register_fake("gpuprims::edge_softmax")
def _(scores: torch.Tensor, indptr: torch.Tensor, edge_ids: _Maybe = None, promises: int = 0) -> torch.Tensor:
    _scores("edge_softmax", "scores", scores, indptr, edge_ids)
    return scores.new_empty(scores.shape)


@torch.library.register_fake("gpuprims::edge_softmax_grad")
def _(
    grad: torch.Tensor, alpha: torch.Tensor, indptr: torch.Tensor, edge_ids: _Maybe = None, promises: int = 0
) -> torch.Tensor:
    op = "edge_softmax_grad"
    _scores(op, "grad", grad, indptr, edge_ids)
    _like(op, "alpha", alpha, tuple(grad.shape), "(edges, heads)", grad, "grad")
    return grad.new_empty(grad.shape)


def _gatv2(
    op: str, x_src: torch.Tensor, x_dst: torch.Tensor, att: torch.Tensor, edge: _Maybe, csr: tuple[Any, ...],
    transpose: tuple[Any, ...],
) -> None:  # fmt: skip
    _heads(op, "x_src", x_src)
    _graph(op, "x_src", x_src, csr, transpose)
    inner, rows, edges = tuple(x_src.shape[1:]), csr[0].shape[0] - 1, csr[1].shape[0]
    _like(op, "x_dst", x_dst, (rows, *inner), "(destinations, heads, channels)", x_src, "x_src")
    _like(op, "att", att, inner, "(heads, channels)", x_src, "x_src")
    _like(op, "edge", edge, (edges, *inner), "(edges, heads, channels)", x_src, "x_src")


@torch.library.register_fake("gpuprims::gatv2_score")
def _(
    x_src: torch.Tensor, x_dst: torch.Tensor, att: torch.Tensor, edge: _Maybe, indptr: torch.Tensor,
    indices: torch.Tensor, edge_ids: _Maybe = None, t_indptr: _Maybe = None, t_indices: _Maybe = None,
    t_edge_ids: _Maybe = None, negative_slope: float = 0.2, promises: int = 0,
) -> torch.Tensor:  # fmt: skip
    csr, transpose = (indptr, indices, edge_ids), (t_indptr, t_indices, t_edge_ids)
    _gatv2("gatv2_score", x_src, x_dst, att, edge, csr, transpose)
    return x_src.new_empty((indices.shape[0], x_src.shape[1]))


@torch.library.register_fake("gpuprims::gatv2_score_grad")
def _(
    grad: torch.Tensor, x_src: torch.Tensor, x_dst: torch.Tensor, att: torch.Tensor, edge: _Maybe,
    indptr: torch.Tensor, indices: torch.Tensor, edge_ids: _Maybe = None, t_indptr: _Maybe = None,
    t_indices: _Maybe = None, t_edge_ids: _Maybe = None, negative_slope: float = 0.2, promises: int = 0,
    wanted: int = 15,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    op = "gatv2_score_grad"
    csr, transpose = (indptr, indices, edge_ids), (t_indptr, t_indices, t_edge_ids)
    _gatv2(op, x_src, x_dst, att, edge, csr, transpose)
    rows, edges, inner = indptr.shape[0] - 1, indices.shape[0], tuple(x_src.shape[1:])
    _like(op, "grad", grad, (edges, x_src.shape[1]), "(edges, heads)", x_src, "x_src")
    _transposed(op, t_indptr, wanted & 1)
    sources = 0 if t_indptr is None else t_indptr.shape[0] - 1
    return _results(x_src, wanted, (sources, *inner), (rows, *inner), (rows, *inner), (edges, *inner))


@register_flop_formula(torch.ops.gpuprims.neighbor_attention)
def _flops(x: Any, *shapes: Any, **_: Any) -> int:
    """A multiplication and an addition an edge, head and channel."""
    return 2 * math.prod(shapes[5]) * x[1] * x[2]


@register_flop_formula(torch.ops.gpuprims.neighbor_attention_grad)
def _grad_flops(*shapes: Any, **_: Any) -> int:
    """Two dot products and a sum an edge and head."""
    return 6 * math.prod(shapes[10]) * shapes[4][1] * shapes[4][2]


@register_flop_formula(torch.ops.gpuprims.gatv2_score)
def _gatv2_flops(x_src: Any, *shapes: Any, **_: Any) -> int:
    return 3 * math.prod(shapes[4]) * x_src[1] * x_src[2]
