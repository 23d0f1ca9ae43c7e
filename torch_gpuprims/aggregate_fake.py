"""Fake kernels and FLOPs of the aggregation ops; the checks are csrc/aggregate/checks.h, word for word."""

import math
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from .aggregate_plan import plan_size

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTS = (torch.int32, torch.int64)
_Maybe = torch.Tensor | None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check(ok: Any, message: str) -> None:
    torch._check(ok, lambda: message)


def _features(op: str, name: str, x: torch.Tensor) -> None:
    _check(x.layout == torch.strided, f"{op}: {name} must be a dense tensor, got a sparse layout")
    _check(
        x.dtype in _FLOATS,
        f"{op}: {name} must be float16, bfloat16, float32 or float64, got {_name(x.dtype)}",
    )
    _check(x.dim() == 2, f"{op}: {name} must have 2 dimensions [rows, features], got {x.dim()}")


def _vector(op: str, name: str, t: torch.Tensor, x: torch.Tensor, x_name: str) -> None:
    _check(t.dim() == 1, f"{op}: {name} must have 1 dimension, got {t.dim()}")
    _check(t.dtype in _INTS, f"{op}: {name} must be int32 or int64, got {_name(t.dtype)}")
    _check(t.device == x.device, f"{op}: {name} must be on the device of {x_name}")


def _size(op: str, name: str, t: torch.Tensor, edges: Any) -> None:
    _check(
        t.shape[0] == edges,
        f"{op}: {name} must have {edges} elements (the number of edges), got {t.shape[0]}",
    )


def _ids(
    op: str, name: str, ids: torch.Tensor, indptr: torch.Tensor, edges: Any, x: torch.Tensor, x_name: str
) -> None:
    _vector(op, name, ids, x, x_name)
    _check(
        ids.dtype == indptr.dtype,
        f"{op}: {name} must have the dtype of indptr ({_name(indptr.dtype)}), got {_name(ids.dtype)}",
    )
    _size(op, name, ids, edges)


def _graph(op: str, x_name: str, x: torch.Tensor, csr: tuple[Any, ...], transpose: tuple[Any, ...]) -> None:
    indptr, indices, edge_ids = csr
    t_indptr, t_indices, t_edge_ids = transpose
    _vector(op, "indptr", indptr, x, x_name)
    _check(indptr.shape[0] >= 1, f"{op}: indptr must have at least 1 element, got 0")
    _vector(op, "indices", indices, x, x_name)
    edges = indices.shape[0]
    if indptr.dtype == torch.int32:
        _check(edges <= 2**31 - 1, f"{op}: indptr must be int64 for {edges} edges, got int32")
    if edge_ids is not None:
        _ids(op, "edge_ids", edge_ids, indptr, edges, x, x_name)
    _check((t_indptr is None) == (t_indices is None), f"{op}: t_indptr and t_indices must be given together")
    if t_indptr is None:
        return
    _vector(op, "t_indptr", t_indptr, x, x_name)
    _vector(op, "t_indices", t_indices, x, x_name)
    _size(op, "t_indices", t_indices, edges)
    if t_edge_ids is not None:
        _ids(op, "t_edge_ids", t_edge_ids, indptr, edges, x, x_name)
    sources = t_indptr.shape[0] - 1
    _check(x.shape[0] >= sources, rows_message(op, x_name, sources, x.shape[0]))


def rows_message(op: str, x_name: str, sources: Any, rows: Any) -> str:
    return f"{op}: {x_name} must have at least {sources} rows (the graph's sources), got {rows}"


def _plan(op: str, plan: _Maybe, indptr: torch.Tensor, edges: Any, x: torch.Tensor, x_name: str) -> None:
    if plan is None:
        return
    _check(plan.dim() == 1, f"{op}: plan must have 1 dimension, got {plan.dim()}")
    _check(plan.dtype == torch.int64, f"{op}: plan must be int64, got {_name(plan.dtype)}")
    _check(plan.device == x.device, f"{op}: plan must be on the device of {x_name}")
    rows, have = indptr.shape[0] - 1, plan.shape[0]
    size = plan_size(rows, edges)
    if all(isinstance(n, int) for n in (rows, have, size)):  # symbols: the kernel looks
        words = f"{op}: plan must have {size} or {size + rows} elements, got {have}"
        _check(have in (size, size + rows), words)


def _weight(op: str, weight: _Maybe, edges: Any, x: torch.Tensor, x_name: str) -> None:
    if weight is None:
        return
    _check(weight.layout == torch.strided, f"{op}: edge_weight must be a dense tensor, got a sparse layout")
    words = f"{op}: edge_weight must have shape [{edges}] (the number of edges), got {list(weight.shape)}"
    _check(weight.dim() == 1, words)
    _check(weight.shape[0] == edges, words)
    _check(
        weight.dtype == x.dtype,
        f"{op}: edge_weight must have the dtype of {x_name} ({_name(x.dtype)}), got {_name(weight.dtype)}",
    )
    _check(weight.device == x.device, f"{op}: edge_weight must be on the device of {x_name}")


def _arg(op: str, x_name: str, arg: torch.Tensor, x: torch.Tensor, indptr: torch.Tensor) -> None:
    words = f"{op}: arg must have the shape of {x_name} {list(x.shape)}, got {list(arg.shape)}"
    _check(arg.dim() == 2, words)
    _check(arg.shape[0] == x.shape[0], words)
    _check(arg.shape[1] == x.shape[1], words)
    _check(
        arg.dtype == indptr.dtype,
        f"{op}: arg must have the dtype of indptr ({_name(indptr.dtype)}), got {_name(arg.dtype)}",
    )
    _check(arg.device == x.device, f"{op}: arg must be on the device of {x_name}")


@torch.library.register_fake("gpuprims::neighbor_aggregate")
def _aggregate(
    x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor, edge_ids: _Maybe = None,
    edge_weight: _Maybe = None, t_indptr: _Maybe = None, t_indices: _Maybe = None, t_edge_ids: _Maybe = None,
    reduce: int = 0, want_arg: bool = False, promises: int = 0, plan: _Maybe = None, t_plan: _Maybe = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    op = "neighbor_aggregate"
    _check(0 <= reduce <= 3, f"{op}: reduce must be 0 (sum), 1 (mean), 2 (max) or 3 (min), got {reduce}")
    _features(op, "x", x)
    _graph(op, "x", x, (indptr, indices, edge_ids), (t_indptr, t_indices, t_edge_ids))
    _weight(op, edge_weight, indices.shape[0], x, "x")
    _plan(op, plan, indptr, indices.shape[0], x, "x")
    shape = (indptr.shape[0] - 1, x.shape[1])
    return x.new_empty(shape), indptr.new_empty(shape if reduce >= 2 and want_arg else (0,))


def plain_fake(
    x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor, edge_ids: _Maybe, edge_weight: _Maybe,
    reduce: int, promises: int, plan: _Maybe,
) -> torch.Tensor:  # fmt: skip
    """Of _neighbor_aggregate."""
    return _aggregate(x, indptr, indices, edge_ids, edge_weight, reduce=reduce, plan=plan)[0]


@torch.library.register_fake("gpuprims::_aggregate_plan")
def _(indptr: torch.Tensor, edges: int) -> torch.Tensor:
    return indptr.new_empty((plan_size(indptr.shape[0] - 1, edges),), dtype=torch.int64)


@torch.library.register_fake("gpuprims::_graph_labels")
def _(
    indptr: torch.Tensor, indices: torch.Tensor, method: int, rounds: int, spacing: int = 1
) -> torch.Tensor:
    return indices.new_empty((indptr.shape[0] - 1,), dtype=torch.int32)


@torch.library.register_fake("gpuprims::sddmm")
def _(
    a: torch.Tensor, b: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor, edge_ids: _Maybe = None,
    arg: _Maybe = None, t_indptr: _Maybe = None, t_indices: _Maybe = None, t_edge_ids: _Maybe = None,
    promises: int = 0, plan: _Maybe = None, t_plan: _Maybe = None,
) -> torch.Tensor:  # fmt: skip
    _features("sddmm", "a", a)
    _features("sddmm", "b", b)
    _check(a.dtype == b.dtype, f"sddmm: b must have the dtype of a ({_name(a.dtype)}), got {_name(b.dtype)}")
    _check(a.device == b.device, "sddmm: a must be on the device of b")
    _check(
        a.shape[1] == b.shape[1],
        f"sddmm: b must have the features of a ({a.shape[1]}), got {b.shape[1]}",
    )
    _graph("sddmm", "b", b, (indptr, indices, edge_ids), (t_indptr, t_indices, t_edge_ids))
    rows = indptr.shape[0] - 1
    _check(
        a.shape[0] == rows,
        f"sddmm: a must have {rows} rows (the graph's destinations), got {a.shape[0]}",
    )
    if arg is not None:
        _arg("sddmm", "a", arg, a, indptr)
    _plan("sddmm", plan, indptr, indices.shape[0], b, "b")
    return a.new_empty((indices.shape[0],))


@torch.library.register_fake("gpuprims::neighbor_extreme_grad")
def _(
    grad: torch.Tensor, arg: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor,
    edge_ids: _Maybe = None, edge_weight: _Maybe = None, t_indptr: _Maybe = None, t_indices: _Maybe = None,
    t_edge_ids: _Maybe = None, promises: int = 0, plan: _Maybe = None, t_plan: _Maybe = None,
) -> torch.Tensor:  # fmt: skip
    op = "neighbor_extreme_grad"
    _features(op, "grad", grad)
    _graph(op, "grad", grad, (indptr, indices, edge_ids), (t_indptr, t_indices, t_edge_ids))
    _arg(op, "grad", arg, grad, indptr)
    _weight(op, edge_weight, indices.shape[0], grad, "grad")
    _plan(op, plan, indptr, indices.shape[0], grad, "grad")
    return grad.new_empty((indptr.shape[0] - 1, grad.shape[1]))


def _flops(x_shape: Any, indptr: Any, indices: Any, *rest: Any, **_: Any) -> int:
    """One addition an edge and feature, and one multiplication where edges have weights."""
    weighted = len(rest) > 1 and rest[1] is not None
    return math.prod(indices) * x_shape[1] * (2 if weighted else 1)


register_flop_formula(torch.ops.gpuprims.neighbor_aggregate)(_flops)
register_flop_formula(torch.ops.gpuprims.sddmm)(
    lambda a, b, indptr, indices, *_, **__: 2 * math.prod(indices) * a[1]
)
