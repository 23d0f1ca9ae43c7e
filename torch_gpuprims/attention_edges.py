"""What the gradients of the attention ops share: edges by id, dropout, and rules for autograd and vmap."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .aggregate_grad import SUM, _graph_is_shared, _padded, _split, aggregate

Csr = tuple[torch.Tensor | None, ...]


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
        flat = values.reshape(values.shape[0], math.prod(values.shape[1:]))
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


def wanted_bits(needs: tuple[bool, ...], tensors: tuple[Any, ...]) -> int:
    return sum(1 << i for i, t in enumerate(tensors) if needs[i] and t is not None)


def pad_rows(grad: torch.Tensor, rows: Any) -> torch.Tensor:
    """Rows of x beyond the graph's sources were not read."""
    return _padded(grad.flatten(1), rows).reshape(rows, *grad.shape[1:]) if grad.shape[0] != rows else grad


def pull_back(
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


# vmap is a loop over the batch
# -------------------------------------------------------------------------------


def vmap_rule(name: str, tensors: Sequence[int], graph: slice) -> Callable[..., tuple[Any, Any]]:
    """`tensors`: the arguments that may want a gradient; `graph`: those that may not."""

    def rule(call: Callable[..., Any], info: Any, dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        _graph_is_shared(name, dims[graph])
        members = _split(info.batch_size, dims, args)
        # PyTorch leaves out arguments that have their defaults.
        results = [call(one, *(one[i] for i in tensors if i < len(one))) for one in members]
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        return tuple(map(torch.stack, zip(*results, strict=True))), tuple(0 for _ in results[0])

    return rule
