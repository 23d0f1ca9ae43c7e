"""The sorts in the contract table."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_gpuprims import Segments, argsort, segment_sort, sort, sort_by_key, sort_keys

from .spec import Call, Device, Op, distinct

_NO_GRADIENT = dict.fromkeys(("gradcheck", "gradgradcheck", "func_grad"), "indices have no gradient")
_IN_PLACE = {
    **dict.fromkeys(("gradcheck", "gradgradcheck", "func_grad"), "refuses what needs a gradient"),
    "compile": "compiled with gradients it would refuse them: tests/test_sort_in_place.py",
}
_ORDER = {"compile": "without a float output there is no gradient to compile"}


def _x(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor]:
    return (distinct(3, n, device=device, dtype=dtype),)


def _zeros(device: Device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, device=device, dtype=dtype)


def _samples(device: Device) -> list[tuple[Any, ...]]:
    x = distinct(3, 5, 7, device=device, dtype=torch.float32)
    return [
        (x,),
        (x, 1, True),
        (x.mT, 0),
        (x[0, 0, 0],),
        (x[:0],),
        ((10 * x).to(torch.int8), -1, True),
    ]


def _grad_samples(device: Device) -> list[tuple[Any, ...]]:
    x = distinct(3, 5, 7, device=device, dtype=torch.float32)
    return [*_samples(device), (x.requires_grad_(), 0)]


def _empties(op: Callable[..., Any]) -> Callable[[Device], list[tuple[Callable[[], Any], tuple[int, ...]]]]:
    def cases(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
        shapes = ((0,), (4, 0), (0, 5), (3, 1), (), (1,))
        return [(lambda shape=shape: op(_zeros(device, *shape)), shape) for shape in shapes]

    return cases


def _errors(op: str) -> list[tuple[str, Callable[[Device], tuple[Any, ...]]]]:
    return [
        (f"{op}: dim must be between -2 and 1, got 2", lambda device: (_zeros(device, 3, 4), 2)),
        (
            f"{op}: dtype complex64 is not supported",
            lambda device: (_zeros(device, 3, 4, dtype=torch.complex64),),
        ),
    ]


def _index_error(op: str) -> tuple[str, Callable[[Device], tuple[Any, ...]]]:
    return (
        f"{op}: index_dtype must be int64 or int32",
        lambda device: (_zeros(device, 3, 4), 1, False, 16),
    )


_HUGE = 2**31 + 1000


def _huge_input(device: Device, dtype: torch.dtype) -> tuple[torch.Tensor, list[int], list[int]]:
    """Ones but for a few zeros far apart, at the positions that are returned, and a few twos."""
    if torch.device(device).type == "cpu":
        pytest.skip("tens of gigabytes of indices and records: on the GPU alone")
    low, high = [5, 2**31 - 1, 2**31, _HUGE - 2], [0, 7, _HUGE - 1]
    x = torch.ones(_HUGE, dtype=dtype, device=device)
    x[torch.tensor(low, device=device)] = 0
    x[torch.tensor(high, device=device)] = 2
    return x, low, high


def _sort_huge(device: Device, dtype: torch.dtype) -> None:
    x, low, high = _huge_input(device, dtype)
    values, indices = sort(x)
    assert values[[0, 3, 4, -4, -3, -1]].tolist() == [0, 0, 1, 1, 2, 2]
    assert indices[:4].tolist() == low and indices[-3:].tolist() == high
    middle = indices[4:-3]
    assert bool((middle[1:] > middle[:-1]).all())


def _argsort_huge(device: Device, dtype: torch.dtype) -> None:
    x, low, high = _huge_input(device, dtype)
    indices = argsort(x, descending=True)
    assert indices[:3].tolist() == high and indices[-4:].tolist() == low


def _keys_huge(device: Device, dtype: torch.dtype) -> None:
    x, _, _ = _huge_input(device, dtype)
    values = sort_keys(x)
    assert values[[0, 3, 4, -4, -3, -1]].tolist() == [0, 0, 1, 1, 2, 2]


def _segments_huge(device: Device, dtype: torch.dtype) -> None:
    x, low, _ = _huge_input(device, dtype)
    keys, indices, _ = segment_sort(x, torch.tensor([0, 6, 6, _HUGE], device=device))
    assert keys[[0, 1, 5, 6, 8, 9, -3, -1]].tolist() == [0, 1, 2, 0, 0, 1, 1, 2]
    assert indices[[0, 5]].tolist() == [5, 0] and indices[6:9].tolist() == low[1:]


SORT = Op(
    word="sort",
    samples=_grad_samples,
    calls={
        "ascending": Call(lambda x: sort(x), _x),
        "descending in dim 0": Call(
            lambda x: sort(x, 0, True, index_dtype=torch.int32),
            lambda n, device, dtype: (distinct(n, 3, device=device, dtype=dtype),),
        ),
        "by key": Call(
            lambda keys, payload: sort_by_key(keys, payload, descending=True),
            lambda n, device, dtype: (
                distinct(n, device=device, dtype=dtype), distinct(n, 2, device=device, dtype=dtype, seed=1)
            ),
        ),
    },
    empties=_empties(sort),
    errors=[*_errors("sort"), _index_error("sort")],
    huge=_sort_huge,
)  # fmt: skip

ARGSORT = Op(
    word="sort",
    samples=lambda device: [*_samples(device), (*_samples(device)[-1], 32, 2, 6)],
    calls={"ascending": Call(lambda x: argsort(x), _x, lacks={**_NO_GRADIENT, **_ORDER})},
    empties=_empties(argsort),
    errors=[
        *_errors("argsort"),
        _index_error("argsort"),
        (
            "argsort: begin_bit and end_bit must satisfy 0 <= begin_bit <= end_bit <= 32, got 5 and 33",
            lambda device: (_zeros(device, 3, 4), 1, False, 64, 5, 33),
        ),
    ],
    huge=_argsort_huge,
)

SORT_KEYS = Op(
    word="sort",
    samples=_grad_samples,
    calls={
        "ascending": Call(lambda x: sort_keys(x), _x),
        "in place": Call(lambda x: sort_keys(x.clone(), inplace=True), _x, lacks=_IN_PLACE),
    },
    empties=_empties(sort_keys),
    errors=_errors("sort_keys"),
    huge=_keys_huge,
)


def _indptr(n: int, device: Device) -> torch.Tensor:
    return torch.tensor([0, 0, n // 3, n // 3, n], device=device)


def _segment_samples(device: Device) -> list[tuple[Any, ...]]:
    x = distinct(9, device=device, dtype=torch.float32)
    return [
        (x, _indptr(9, device)),
        (x, _indptr(9, device).int(), True, 32),
        (x.clone().requires_grad_(), _indptr(9, device)),
        (x[:0], torch.zeros(1, dtype=torch.int64, device=device)),
    ]


def _segments(keys: torch.Tensor, indptr: torch.Tensor | Segments) -> tuple[torch.Tensor, ...]:
    return tuple(segment_sort(keys, indptr)[:2])


SEGMENT_SORT = Op(
    word="sort",
    samples=_segment_samples,
    calls={
        "ascending": Call(
            _segments,
            lambda n, device, dtype: (distinct(n, device=device, dtype=dtype),),
            lambda n, device: (_indptr(n, device),),
        ),
        "descending, with a payload": Call(
            lambda keys, payload, indptr: tuple(
                segment_sort(keys, indptr, payload, descending=True, index_dtype=torch.int32)
            ),
            lambda n, device, dtype: (
                distinct(n, device=device, dtype=dtype), distinct(n, 2, device=device, dtype=dtype, seed=1)
            ),
            lambda n, device: (_indptr(n, device),),
        ),
        "Segments": Call(
            _segments,
            lambda n, device, dtype: (distinct(n, device=device, dtype=dtype),),
            lambda n, device: (Segments(_indptr(n, device)),),
        ),
    },
    empties=lambda device: [
        (lambda: _segments(_zeros(device, 0), torch.zeros(4, dtype=torch.int64, device=device)), (0,)),
        (lambda: _segments(_zeros(device, 1), torch.tensor([0, 0, 1, 1], device=device)), (1,)),
    ],
    errors=[
        (
            "segment_sort: keys must have 1 dimension, got 2",
            lambda device: (_zeros(device, 3, 4), _indptr(4, device)),
        ),
        (
            "segment_sort: indptr must be int32 or int64, got float32",
            lambda device: (_zeros(device, 4), _zeros(device, 4)),
        ),
        (
            "segment_sort: indptr must have shape [segments + 1], got [0]",
            lambda device: (_zeros(device, 4), _indptr(4, device)[:0]),
        ),
        (
            "segment_sort: dtype complex64 is not supported",
            lambda device: (_zeros(device, 4, dtype=torch.complex64), _indptr(4, device)),
        ),
    ],
    huge=_segments_huge,
    lacks={"zero_dim": "segments cut a vector"},
)  # fmt: skip
