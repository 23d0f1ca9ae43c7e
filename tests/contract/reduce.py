"""The reductions in the contract table."""

from collections.abc import Callable
from typing import Any

import torch

from torch_gpuprims import dot, reduce, stats
from torch_gpuprims import reduce_fake as codes

from .spec import Call, Device, Op, distinct

_NO_GRADIENT = {
    **dict.fromkeys(("gradcheck", "gradgradcheck", "func_grad"), "indices have no gradient"),
    "compile": "without a float output there is no gradient to compile",
}


def _rows(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor]:
    return (distinct(3, n, device=device, dtype=dtype),)


def _columns(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor]:
    """Reduced in dim 0, which has a stride however the others are laid out: sums have bits
    for each class of strides."""
    return (distinct(n, 3, 2, device=device, dtype=dtype),)


def _zeros(device: Device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, device=device, dtype=dtype)


def _samples(device: Device) -> list[tuple[Any, ...]]:
    x = distinct(3, 5, 7, device=device, dtype=torch.float32)
    samples: list[tuple[Any, ...]] = [
        (x, op, [1], False) for op in range(len(codes.NAMES)) if op != codes.PROD
    ]
    return [
        *samples,
        (x, codes.SUM),
        (x, codes.MEAN, [0, 2], True),
        (x.mT, codes.MAX, [-1]),
        (x[0, 0, 0], codes.SUM, [0]),
        (x[:0], codes.SUM, [0]),
        ((10 * x).to(torch.int8), codes.SUM, None, False, codes.DTYPES.index(torch.float64)),
        (x.clone().requires_grad_(), codes.NORM2, [0, 1]),
        (x.clone().requires_grad_(), codes.STD, [2]),
        (x.clone().requires_grad_(), codes.LOGSUMEXP, [0]),
        (x.clone().requires_grad_(), codes.MIN, None),
    ]


def _empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    cases = (((0,), None, ()), ((4, 0), 1, (4,)), ((0, 5), 1, (0,)), ((3, 1), 1, (3,)), ((), None, ()))
    return [
        (lambda shape=shape, dim=dim: reduce(_zeros(device, *shape), "sum", dim), out)
        for shape, dim, out in cases
    ]


_HUGE = 2**31 + 1000


def _huge(device: Device, dtype: torch.dtype) -> None:
    x = torch.zeros(_HUGE, dtype=dtype, device=device)
    at = [5, 2**31 - 1, 2**31 + 3, _HUGE - 1]
    x[torch.tensor(at, device=device)] = 3
    x[at[2]] = 4
    assert reduce(x, "sum").item() == 13 and reduce(x, "max").item() == 4
    assert reduce(x, "argmax").item() == at[2]
    column = x[:-1].view(-1, 3) if (_HUGE - 1) % 3 == 0 else x[: _HUGE // 3 * 3].view(-1, 3)
    assert reduce(column, "sum", 0).sum().item() == 13 - (3 if at[3] >= column.numel() else 0)
    assert reduce(column, "argmax", 0)[at[2] % 3].item() == at[2] // 3


REDUCE = Op(
    word="reduce",
    samples=_samples,
    calls={
        "sum of columns": Call(lambda x: reduce(x, "sum", 0), _columns),
        "max of rows": Call(lambda x: reduce(x, "max", -1), _rows),
        "max of columns": Call(lambda x: reduce(x, "max", 0, True), _columns),
        "min of all": Call(lambda x: reduce(x, "min"), _rows),
        "mean of two dims": Call(lambda x: reduce(x, "mean", (0, 1)), _columns),
        "prod of columns": Call(
            lambda x: reduce(x, "prod", 0),
            lambda n, device, dtype: (1 + distinct(n, 3, 2, device=device, dtype=dtype) / 100,),
        ),
        "norm of columns": Call(lambda x: reduce(x, "norm", 0), _columns),
        "var of columns": Call(lambda x: reduce(x, "var", 0, correction=0.5), _columns),
        "std of columns": Call(lambda x: reduce(x, "std", 0), _columns),
        "logsumexp of columns": Call(lambda x: reduce(x, "logsumexp", 0), _columns),
        "argmax of rows": Call(lambda x: reduce(x, "argmax", -1), _rows, lacks=_NO_GRADIENT),
        "argmin of all": Call(lambda x: reduce(x, "argmin"), _columns, lacks=_NO_GRADIENT),
    },
    empties=_empties,
    errors=[
        ("reduce: op must be a code between 0 and 14, got 15", lambda device: (_zeros(device, 3, 4), 15)),
        ("reduce: dim must be between -2 and 1, got 2", lambda device: (_zeros(device, 3, 4), 0, [2])),
        ("reduce: dim 1 appears twice", lambda device: (_zeros(device, 3, 4), 0, [1, -1])),
        (
            "reduce: argmax takes one dim or None, got 2 dims",
            lambda device: (_zeros(device, 3, 4), codes.ARGMAX, [0, 1]),
        ),
        (
            "reduce: dtype complex64 is not supported",
            lambda device: (_zeros(device, 3, 4, dtype=torch.complex64), 0),
        ),
        (
            "reduce: logsumexp is not defined for int32",
            lambda device: (_zeros(device, 3, dtype=torch.int32), codes.LOGSUMEXP),
        ),
        (
            "reduce: mean is not defined for bool without a floating dtype",
            lambda device: (_zeros(device, 3, dtype=torch.bool), codes.MEAN),
        ),
        ("reduce: min takes no dtype", lambda device: (_zeros(device, 3), codes.MIN, None, False, 10)),
        ("reduce: no dtype has the code 13", lambda device: (_zeros(device, 3), codes.SUM, None, False, 13)),
        (
            "reduce: sum of float32 cannot have dtype int64",
            lambda device: (_zeros(device, 3), codes.SUM, None, False, 7),
        ),
        (
            "reduce: argmin of no elements is not defined: a reduced dimension has size 0",
            lambda device: (_zeros(device, 3, 0), codes.ARGMIN, [1]),
        ),
    ],
    huge=_huge,
)


def _stats_huge(device: Device, dtype: torch.dtype) -> None:
    x = torch.zeros(_HUGE, dtype=dtype, device=device)
    x[5], x[2**31 + 3] = -1, 2
    s = stats(x, indices=True)
    assert (s.min.item(), s.max.item(), s.nan_count.item()) == (-1, 2, 0)
    assert (s.argmin.item(), s.argmax.item()) == (5, 2**31 + 3)  # type: ignore[union-attr]


STATS = Op(
    word="reduce",
    samples=lambda device: [
        (distinct(3, 5, device=device, dtype=torch.float32),),
        (distinct(3, 5, 4, device=device, dtype=torch.float64), [2, 0], True, 0.0),
        (distinct(3, 5, device=device, dtype=torch.float32).requires_grad_(), [1], False, 1.0, True),
        (distinct(1, device=device, dtype=torch.float32)[0], None, True, 0.0),
    ],
    calls={
        "columns": Call(lambda x: tuple(stats(x, 0)[:5]), _columns),
        "with indices": Call(lambda x: tuple(stats(x, 0, True, correction=0, indices=True)), _columns),
    },
    empties=lambda device: [
        (lambda: tuple(stats(_zeros(device, 0, 5), 1)[:5]), (0,)),
        (lambda: tuple(stats(_zeros(device, 3, 1), 1)[:5]), (3,)),
        (lambda: tuple(stats(_zeros(device))[:5]), ()),
    ],
    errors=[
        ("stats: dim must be between -2 and 1, got -3", lambda device: (_zeros(device, 3, 4), [-3])),
        ("stats: input must be floating, got int64", lambda device: (_zeros(device, 3, dtype=torch.int64),)),
        (
            "stats: indices take one dim or None, got 2 dims",
            lambda device: (_zeros(device, 3, 4), [0, 1], False, 1.0, True),
        ),
        (
            "stats: min of no elements is not defined: a reduced dimension has size 0",
            lambda device: (_zeros(device, 3, 0), [1]),
        ),
    ],
    huge=_stats_huge,
    one_byte=torch.float16,
)


def _vectors(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return distinct(n, device=device, dtype=dtype), distinct(n, device=device, dtype=dtype, seed=1)


def _dot_huge(device: Device, dtype: torch.dtype) -> None:
    x = torch.zeros(_HUGE, dtype=dtype, device=device)
    x[5], x[2**31 + 3] = 2, 3
    assert dot(x, x).item() == 13


DOT = Op(
    word="reduce",
    samples=lambda device: [
        _vectors(9, device, torch.float32),
        tuple(t.requires_grad_() for t in _vectors(5000, device, torch.float64)),
        _vectors(0, device, torch.float32),
    ],
    calls={"of vectors": Call(lambda x, y: dot(x, y), _vectors)},
    empties=lambda device: [(lambda: dot(_zeros(device, 0), _zeros(device, 0)), ())],
    errors=[
        (
            "dot: input and other must be vectors of one length, got shapes [3] and [4]",
            lambda device: (_zeros(device, 3), _zeros(device, 4)),
        ),
        (
            "dot: other must have the dtype of input (float32), got float64",
            lambda device: (_zeros(device, 3), _zeros(device, 3, dtype=torch.float64)),
        ),
        (
            "dot: input must be floating, got int32",
            lambda device: (_zeros(device, 3, dtype=torch.int32),) * 2,
        ),
    ],
    huge=_dot_huge,
    one_byte=torch.float16,
)  # fmt: skip
