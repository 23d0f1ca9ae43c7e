"""reduce and stats of a DTensor: dimensions that are not reduced may be sharded."""

import functools
from typing import Any

import torch

from .reduce_fake import Dims, reduced_dims


@torch.compiler.assume_constant_result  # Dynamo calls it and looks no further
def register_shardings() -> None:
    _register()


@functools.cache
def _register() -> None:
    """Imports DTensor, which takes a second. Where a reduced dimension is sharded the input is gathered:
    sums of parts would have other bits."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def kept(op: str, input: Any, dim: Dims, keepdim: bool) -> list[tuple[Any, Any]]:
        """(placement of the result, of the input) for each way to shard."""
        dims = reduced_dims(op, dim, input.ndim)
        places: list[tuple[Any, Any]] = [(Replicate(), Replicate())]
        for d in range(input.ndim):
            if d not in dims:
                places.append((Shard(d if keepdim else d - sum(r < d for r in dims)), Shard(d)))
        return places

    ops = torch.ops.gpuprims

    @register_sharding(ops.reduce.default)
    def _reduce(input, op, dim=None, keepdim=False, dtype=-1, correction=1.0):  # type: ignore[no-untyped-def]
        return [
            ([out], [into, None, None, None, None, None]) for out, into in kept("reduce", input, dim, keepdim)
        ]

    @register_sharding(ops.stats.default)
    def _stats(input, dim=None, keepdim=False, correction=1.0, indices=False):  # type: ignore[no-untyped-def]
        return [
            ([out] * 5 + [out if indices else Replicate()] * 2, [into, None, None, None, None])
            for out, into in kept("stats", input, dim, keepdim)
        ]
