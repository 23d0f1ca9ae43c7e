"""segment_reduce and segment_expand in the contract table."""

from collections.abc import Callable
from typing import Any

import torch

from torch_gpuprims import Segments, segment_expand, segment_reduce
from torch_gpuprims.nn import SegmentReduce

from .spec import Call, Device, Op, distinct
from .topk_segment import offsets


def full(n: int, device: Device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Offsets of n elements without an empty segment: infinities have no finite differences."""
    ends = torch.unique_consecutive(offsets(n, "cpu", dtype))
    if len(ends) == n:  # sizes that are equal share a symbol
        ends = torch.arange(n + 1, dtype=dtype)
    return ends.to(device)


def _values(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor]:
    return (distinct(n, device=device, dtype=dtype),)


def _rows(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor]:
    return (distinct(n, 3, device=device, dtype=dtype),)


def _samples(device: Device) -> list[tuple[Any, ...]]:
    (x,) = _values(20, device, torch.float32)
    indptr = offsets(20, device)
    return [
        (x, indptr, 0),
        (x.clone().requires_grad_(), full(20, device), 1),  # NaN differs from itself for opcheck
        (x.clone().requires_grad_(), full(20, device), 2),
        (x.view(20, 1).expand(20, 3).contiguous().requires_grad_(), full(20, device).int(), 3),
        (x.clone().requires_grad_(), indptr, 4),
        (x.clone().requires_grad_(), full(20, device), 5),
        ((10 * x).to(torch.int8), indptr, 0),
        (x[::2], torch.tensor([0, 4, 10], device=device), 4),
        (x[:0], indptr[:1], 0),
        ((10 * x).to(torch.int16), indptr + 1, 2),  # bad: filled
    ]


def _factors(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor]:
    """Around 1: products may overflow, but never to inf * 0, which would differ from itself."""
    return (0.5 * distinct(n, device=device, dtype=dtype).tanh() + 1,)


def _call(op: str, rest: Any = offsets, values: Any = _values) -> Call:
    return Call(lambda x, indptr: segment_reduce(x, indptr, op), values, lambda n, device: (rest(n, device),))


def _zeros(device: Device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, device=device, dtype=dtype)


def _at(device: Device, *ends: int) -> torch.Tensor:
    return torch.tensor(ends or (0, 2, 5), device=device)


def _empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    return [
        (lambda: segment_reduce(_zeros(device, 0), _at(device, 0)), (0,)),
        (lambda: segment_reduce(_zeros(device, 0), _at(device, 0, 0, 0), "max"), (2,)),
        (lambda: segment_reduce(_zeros(device, 5, 0), _at(device)), (2, 0)),
        (lambda: segment_reduce(_zeros(device, 5, 2, 3), _at(device), "prod"), (2, 2, 3)),
        (lambda: segment_reduce(_zeros(device, 1), _at(device, 0, 1)), (1,)),
    ]


def _huge(device: Device, dtype: torch.dtype) -> None:
    n = 2**31 + 64
    x = torch.zeros(n, dtype=dtype, device=device)
    x[torch.tensor([5, 2**31 - 1, 2**31, n - 1], device=device)] = torch.tensor(
        [4, 7, 8, 9], dtype=dtype, device=device
    )
    indptr = torch.tensor([0, 7, 7, n - 20, n], device=device)
    assert segment_reduce(x, indptr).tolist() == [4, 0, 15, 9]
    assert segment_reduce(x, indptr, "max").tolist()[2:] == [8, 9]


_COMMON: list[tuple[str, Callable[[Device], tuple[Any, ...]]]] = [
    ("dtype complex64 is not supported", lambda d: (_zeros(d, 2, dtype=torch.complex64), _at(d))),
    ("values must have 1 or 2 dimensions, got 3", lambda d: (_zeros(d, 2, 1, 1), _at(d))),
    ("indptr must have 1 dimension, got 2", lambda d: (_zeros(d, 2), _at(d)[None])),
    ("indptr must be int32 or int64, got float32", lambda d: (_zeros(d, 2), _at(d).float())),
    ("indptr must have at least 1 element, got 0", lambda d: (_zeros(d, 2), _at(d)[:0])),
]


def _errors(op: str, last: int) -> list[tuple[str, Callable[[Device], tuple[Any, ...]]]]:
    def with_last(make: Callable[[Device], tuple[Any, ...]]) -> Callable[[Device], tuple[Any, ...]]:
        return lambda device: (*make(device), last)

    return [(f"{op}: {words}", with_last(make)) for words, make in _COMMON]


SEGMENT_REDUCE = Op(
    word="reduce",
    samples=_samples,
    calls={
        "sum": _call("sum"),
        "mean of rows": _call("mean", full, _rows),
        "max": _call("max", full),
        "min of rows": _call("min", full, _rows),
        "module, sum of rows": Call(SegmentReduce("sum"), _rows, lambda n, device: (offsets(n, device),)),
        "prod": _call("prod", values=_factors),
        "logsumexp of rows": _call("logsumexp", full, _rows),
        "Segments": _call("sum", lambda n, device: Segments(offsets(n, device, torch.int32)), _rows),
    },
    empties=_empties,
    errors=[
        *_errors("segment_reduce", 0),
        (
            "segment_reduce: op must be a code from 0 to 5, got 6",
            lambda device: (_zeros(device, 5), _at(device), 6),
        ),
        (
            "segment_reduce: mean needs a floating dtype, got int32",
            lambda device: (_zeros(device, 5, dtype=torch.int32), _at(device), 1),
        ),
        (
            "segment_reduce: logsumexp needs a floating dtype, got bool",
            lambda device: (_zeros(device, 5, dtype=torch.bool), _at(device), 5),
        ),
    ],
    huge=_huge,
    lacks={"zero_dim": "segments cut a dimension"},
)


def _expand_values(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor]:
    return (distinct(len(offsets(n, "cpu")) - 1, device=device, dtype=dtype),)


def _expand_rows(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor]:
    return (distinct(len(offsets(n, "cpu")) - 1, 3, device=device, dtype=dtype),)


def _expand_samples(device: Device) -> list[tuple[Any, ...]]:
    (x,) = _expand_values(20, device, torch.float32)
    indptr = offsets(20, device)
    return [
        (x, indptr, 20),
        (x.clone().requires_grad_(), indptr.int(), 20),
        (x[:, None].expand(-1, 3).contiguous().requires_grad_(), indptr, 20),
        ((10 * x).to(torch.int8), indptr, 20),
        (x[:0], indptr[:1], 0),
        ((10 * x).to(torch.int16), indptr, 21),  # bad: filled
    ]


def _expand_empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    return [
        (lambda: segment_expand(_zeros(device, 0), _at(device, 0), 0), (0,)),
        (lambda: segment_expand(_zeros(device, 2), _at(device, 0, 0, 0), 0), (0,)),
        (lambda: segment_expand(_zeros(device, 2, 0), _at(device), 5), (5, 0)),
        (lambda: segment_expand(_zeros(device, 2, 1, 3), _at(device), 5), (5, 1, 3)),
    ]


def _expand_huge(device: Device, dtype: torch.dtype) -> None:
    n = 2**31 + 64
    x = torch.tensor([3, 4, 5], dtype=dtype, device=device)
    out = segment_expand(x, torch.tensor([0, 2**31 - 1, 2**31, n], device=device), n)
    where = torch.tensor([0, 2**31 - 2, 2**31 - 1, 2**31, n - 1], device=device)
    assert out[where].tolist() == [3, 3, 4, 5, 5]


SEGMENT_EXPAND = Op(
    word="reduce",
    samples=_expand_samples,
    calls={
        "values": Call(
            lambda x, indptr, n: segment_expand(x, indptr, n),
            _expand_values,
            lambda n, device: (offsets(n, device), n),
            lacks={"export": "n, an int, is part of the program, and so the number of elements is fixed"},
        ),
        "rows": Call(
            lambda x, y, indptr: x + segment_expand(y, indptr, x.shape[0]),
            lambda n, device, dtype: (*_rows(n, device, dtype), *_expand_rows(n, device, dtype)),
            lambda n, device: (offsets(n, device, torch.int32),),
        ),
    },
    empties=_expand_empties,
    errors=[
        *_errors("segment_expand", 5),
        (
            "segment_expand: values must have 2 rows (the number of segments), got 3",
            lambda device: (_zeros(device, 3), _at(device), 5),
        ),
        (
            "segment_expand: n must not be negative, got -1",
            lambda device: (_zeros(device, 2), _at(device), -1),
        ),
    ],
    huge=_expand_huge,
    lacks={"zero_dim": "segments cut a dimension"},
)
