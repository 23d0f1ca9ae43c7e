"""histogram and bincount in the contract table."""

from collections.abc import Callable
from typing import Any

import torch

from torch_gpuprims import bincount, histogram

from .spec import Call, Device, Op, distinct

_INTEGERS = "counts are integers"


def _values(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor]:
    return (distinct(n, 3, device=device, dtype=dtype),)


def _zeros(device: Device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, device=device, dtype=dtype)


def _samples(device: Device) -> list[tuple[Any, ...]]:
    (x,) = _values(20, device, torch.float32)
    ends = torch.tensor([-1.0, 1.5], dtype=torch.float64, device=device)
    return [
        (x, None, 7, -2.0, 2.0),
        (x, ends, 5, 0.0, 0.0),
        (x[::2, 1:], None, 9, -1.0, 1.0, False),
        ((10 * x).to(torch.int8), None, 20, -20.0, 20.0),
        (x[:0], None, 3, 0.0, 1.0),
    ]


def _empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    return [
        (lambda: histogram(_zeros(device, 0), 4), (4,)),
        (lambda: histogram(_zeros(device, 3, 0), 4, 0, 1), (4,)),
        (lambda: bincount(_zeros(device, 0, dtype=torch.int64), 2), (2,)),
        (lambda: histogram(_zeros(device), 1).reshape(()), ()),
    ]


def _huge(device: Device, dtype: torch.dtype) -> None:
    n = 2**31 + 64
    x = torch.zeros(n, dtype=dtype, device=device)
    x[torch.tensor([5, 2**31, n - 1], device=device)] = torch.tensor([2, 3, 3], dtype=dtype, device=device)
    assert histogram(x, 4, 0, 4).tolist() == [n - 3, 0, 1, 2]


HISTOGRAM = Op(
    word="reduce",
    samples=_samples,
    calls={
        "range given": Call(lambda x: histogram(x, 11, -1.5, 2), _values),
        "range of the data": Call(lambda x: histogram(x, 6), _values),
        "bincount": Call(lambda x: bincount((4 * x).to(torch.int32), 7), _values),
    },
    empties=_empties,
    errors=[
        (
            "histogram: dtype complex64 is not supported",
            lambda device: (_zeros(device, 5, dtype=torch.complex64), None, 5, 0.0, 1.0),
        ),
        (
            "histogram: bins must be from 1 to 2147483648, got 0",
            lambda device: (_zeros(device, 5), None, 0, 0.0, 1.0),
        ),
        (
            "histogram: max must not be below min",
            lambda device: (_zeros(device, 5), None, 5, 1.0, 0.0),
        ),
        (
            "histogram: range must be float64, got float32",
            lambda device: (_zeros(device, 5), _zeros(device, 2), 5, 0.0, 1.0),
        ),
        (
            "histogram: range must have the shape [2]",
            lambda device: (_zeros(device, 5), _zeros(device, 3, dtype=torch.float64), 5, 0.0, 1.0),
        ),
    ],
    huge=_huge,
    lacks={
        **dict.fromkeys(("gradcheck", "gradgradcheck", "func_grad"), _INTEGERS),
        "compile": "without a float output there is no gradient to compile",
    },
)
