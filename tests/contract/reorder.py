"""The reordering ops in the contract table."""

from collections.abc import Callable
from typing import Any

import torch

from torch_gpuprims import (
    PackedRows,
    Redirect,
    gather_packed,
    pack_rows,
    redirect,
    reorder_grad,
    unpack_rows,
)

from .spec import Call, Device, Op, distinct

_LAYOUTS: dict[str, dict[str, Any]] = {
    "padded": {},
    "sliced": {"layout": "sliced"},
    "sliced in windows": {"layout": "sliced", "window": 64},
}


def _lengths(n: int) -> torch.Tensor:
    lengths = torch.arange(n) % 4
    if n:
        lengths[-1] += 1
    return lengths


def _csr(n: int, device: Device) -> tuple[torch.Tensor, torch.Tensor]:
    """n rows of 0 to 3 entries (the last of one more), and the columns of these, among n + 5."""
    indptr = torch.nn.functional.pad(_lengths(n).cumsum(0), (1, 0))
    indices = torch.arange(int(indptr[-1])) * 7 % (n + 5)
    return indptr.to(device), indices.to(device)


def _entries(n: int, device: Device, dtype: torch.dtype, *more: int) -> torch.Tensor:
    return distinct(int(_lengths(n).sum()), *more, device=device, dtype=dtype, seed=9)


def _x(n: int, device: Device, dtype: torch.dtype) -> torch.Tensor:
    return distinct(n + 5, device=device, dtype=dtype, seed=3)


def _packed(n: int, device: Device, dtype: torch.dtype = torch.float32, *more: int, **how: Any) -> PackedRows:
    indptr, indices = _csr(n, device)
    packed = pack_rows(_entries(n, device, dtype, *more), indptr, indices=indices, **how)
    return packed.prepare(n + 5)


def _zeros(device: Device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, device=device, dtype=dtype)


def _at(device: Device, *ends: int) -> torch.Tensor:
    return torch.tensor(ends or (0, 2, 5), device=device)


Make = Callable[[Device], tuple[Any, ...]]
_NO_ZERO_DIM = {"zero_dim": "offsets cut a dimension"}

# pack_rows --------------------------------------------------------------------------------------------------


def _pack_samples(device: Device) -> list[tuple[Any, ...]]:
    samples: list[tuple[Any, ...]] = []
    for how in _LAYOUTS.values():
        packed = _packed(70, device, **how)
        values = _entries(70, device, torch.float32)
        samples += [
            (values.requires_grad_(), *packed._packing, packed.num_slots),
            (_entries(70, device, torch.float32, 3).requires_grad_(), *packed._packing, packed.num_slots),
            (_entries(70, device, torch.float32).int(), *packed._packing, packed.num_slots),
        ]
    indptr, slots = packed.indptr, packed.num_slots
    fill = torch.full((1,), 7.0, device=device)
    return [
        *samples,
        (values, *packed._packing, slots, fill, 1),
        (values.detach().int(), indptr + 1, None, None, None, 70 * 4),  # bad: filled
        (values[:0], indptr[:1], None, None, None, 0),
    ]


def _pack_call(how: dict[str, Any], *more: int) -> Call:
    return Call(
        lambda values, packed: packed.repack(values).values,
        lambda n, device, dtype: (_entries(n, device, dtype, *more),),
        lambda n, device: (_packed(n, device, torch.float32, *more, **how),),
    )


def _pack_empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    return [
        (lambda: pack_rows(_zeros(device, 0), _at(device, 0)).values, (0,)),
        (lambda: pack_rows(_zeros(device, 0), _at(device, 0, 0, 0), layout="sliced").values, (0,)),
        (lambda: pack_rows(_zeros(device, 5, 0), _at(device)).values, (6, 0)),
        (lambda: pack_rows(_zeros(device, 5, 2), _at(device), layout="sliced").values, (96, 2)),
        (lambda: pack_rows(_zeros(device, 1), _at(device, 0, 1)).values, (1,)),
    ]


def _pack_huge(device: Device, dtype: torch.dtype) -> None:
    count = 2**31 + 64
    x = torch.zeros(count, dtype=dtype, device=device)
    where = torch.tensor([0, 2**31 - 1, 2**31, count - 1], device=device)
    x[where] = torch.tensor([4, 7, 8, 9], dtype=dtype, device=device)
    indptr = torch.tensor([0, 2**30, 2**31, count - 32, count], device=device)
    packed = pack_rows(x, indptr, layout="padded", budget_bytes=1 << 40)
    assert packed.num_slots == 2**32
    assert packed.values[[0, (2**30 - 1) * 4 + 1, 2, 31 * 4 + 3]].tolist() == [4, 7, 8, 9]
    assert packed.unpack()[where].tolist() == [4, 7, 8, 9]


_PACKING_ERRORS: list[tuple[str, Make]] = [
    ("indptr must have 1 dimension, got 2", lambda d: (_zeros(d, 5), _at(d)[None], None, None, None, 6)),
    (
        "indptr must be int32 or int64, got float32",
        lambda d: (_zeros(d, 5), _at(d).float(), None, None, None, 6),
    ),
    (
        "indptr must have at least 1 element, got 0",
        lambda d: (_zeros(d, 5), _at(d)[:0], None, None, None, 6),
    ),
    (
        "slices must have 2 elements, got 3",
        lambda d: (_zeros(d, 5), _at(d), _at(d), None, None, 6),
    ),
    (
        "slices must be int64, got int32",
        lambda d: (_zeros(d, 5), _at(d), _at(d, 0, 96).int(), None, None, 96),
    ),
    (
        "order must have 2 elements, got 3",
        lambda d: (_zeros(d, 5), _at(d), None, _at(d), None, 6),
    ),
    (
        "order must have the dtype of indptr (int64), got int32",
        lambda d: (_zeros(d, 5), _at(d), None, _at(d, 0, 1).int(), None, 6),
    ),
    (
        "units must have shape [2, units], got [1, 3]",
        lambda d: (_zeros(d, 5), _at(d), None, None, _at(d)[None].int(), 6),
    ),
]

PACK_ROWS = Op(
    word="reorder",
    samples=_pack_samples,
    calls={**{name: _pack_call(how) for name, how in _LAYOUTS.items()}, "features": _pack_call({}, 3)},
    empties=_pack_empties,
    errors=[
        *((f"pack_rows: {words}", make) for words, make in _PACKING_ERRORS),
        (
            "pack_rows: slots must be a multiple of the number of rows (2), got 5",
            lambda d: (_zeros(d, 5), _at(d), None, None, None, 5),
        ),
        (
            "pack_rows: fill must have the dtype of values (float32), got int64",
            lambda d: (_zeros(d, 5), _at(d), None, None, None, 6, _at(d, 1)),
        ),
        (
            "pack_rows: values must have at least 1 dimension, got 0",
            lambda d: (_zeros(d), _at(d), None, None, None, 6),
        ),
    ],
    huge=_pack_huge,
    lacks=_NO_ZERO_DIM,
)

# unpack_rows ------------------------------------------------------------------------------------------------


def _unpack_samples(device: Device) -> list[tuple[Any, ...]]:
    samples: list[tuple[Any, ...]] = []
    for how in _LAYOUTS.values():
        for more in ((), (3,)):
            packed = _packed(70, device, torch.float32, *more, **how)
            leaf = packed.values.detach().requires_grad_()
            samples.append((leaf, *packed._packing, packed.num_entries))
    indptr = packed.indptr
    return [*samples, (packed.values.int(), indptr, *packed._packing[1:], 3)]  # bad: filled


def _unpack_call(how: dict[str, Any], *more: int) -> Call:
    def run(slots: torch.Tensor, packed: PackedRows) -> torch.Tensor:
        return reorder_grad.unpack(slots, *packed._packing, packed.t_indices.shape[0], 0)

    def slots(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor]:
        count = _packed(n, device, torch.float32, **how).num_slots
        return (distinct(count, *more, device=device, dtype=dtype),)

    return Call(run, slots, lambda n, device: (_packed(n, device, torch.float32, *more, **how),))


def _unpack_empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    return [
        (lambda: unpack_rows(pack_rows(_zeros(device, 0), _at(device, 0))), (0,)),
        (lambda: unpack_rows(pack_rows(_zeros(device, 5, 0), _at(device))), (5, 0)),
        (lambda: unpack_rows(pack_rows(_zeros(device, 1), _at(device, 0, 1), layout="sliced")), (1,)),
    ]


UNPACK_ROWS = Op(
    word="reorder",
    samples=_unpack_samples,
    calls={**{name: _unpack_call(how) for name, how in _LAYOUTS.items()}, "features": _unpack_call({}, 3)},
    empties=_unpack_empties,
    errors=[
        *((f"unpack_rows: {words}", make) for words, make in _PACKING_ERRORS if "slices must have" in words),
        (
            "unpack_rows: slots must be a multiple of the number of rows (2), got 5",
            lambda d: (_zeros(d, 5), _at(d), None, None, None, 5),
        ),
        (
            "unpack_rows: entries must not be negative, got -1",
            lambda d: (_zeros(d, 6), _at(d), None, None, None, -1),
        ),
    ],
    huge=_pack_huge,  # which unpacks
    lacks=_NO_ZERO_DIM,
)

# gather_packed ----------------------------------------------------------------------------------------------


def _index(n: int, device: Device) -> torch.Tensor:
    return (torch.arange(3 * n + 2) * 5 % (n + 1) - 1).to(device)


def _gather_samples(device: Device) -> list[tuple[Any, ...]]:
    a = distinct(9, device=device, dtype=torch.float32)
    index = _index(9, device)
    plan = redirect(index)
    fill = torch.full((1,), 2.5, device=device)
    return [
        (a.clone().requires_grad_(), index),
        (a[:, None].expand(9, 3).contiguous().requires_grad_(), index.int(), fill),
        (a.clone().requires_grad_(), index, None, *plan.inverse(9)),
        ((10 * a).to(torch.int8), index),
        ((10 * a).int(), index + 3),  # some are outside: 0
        (a[:0].int(), index[:0]),
    ]


def _pattern(n: int, device: Device) -> tuple[Redirect]:
    return (redirect(_index(n, device), num_rows=n),)


def _gather_empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return [
        (lambda: gather_packed(_zeros(device, 0), none).values, (0,)),
        (lambda: gather_packed(_zeros(device, 3, 0), _at(device, 0, 2)).values, (2, 0)),
        (lambda: gather_packed(_zeros(device, 0, 2), _at(device, -1)).values, (1, 2)),
        (lambda: gather_packed(_zeros(device, 1), _at(device, 0)).values, (1,)),
    ]


def _gather_huge(device: Device, dtype: torch.dtype) -> None:
    rows = 2**31 + 64
    a = torch.zeros(rows, dtype=dtype, device=device)
    index = torch.tensor([0, 2**31, rows - 1, -1], device=device)
    a[index[:3]] = torch.tensor([3, 4, 5], dtype=dtype, device=device)
    assert gather_packed(a, index).values.tolist() == [3, 4, 5, 0]


def _gather_call(*more: int) -> Call:
    return Call(
        lambda a, index: reorder_grad.gather(a, index, None, None, None),
        lambda n, device, dtype: (distinct(n, *more, device=device, dtype=dtype),),
        lambda n, device: (_index(n, device),),
    )


GATHER_PACKED = Op(
    word="reorder",
    samples=_gather_samples,
    calls={
        "values": _gather_call(),
        "rows": _gather_call(3),
        "Redirect": Call(
            lambda a, plan: gather_packed(a, plan).values,
            lambda n, device, dtype: (distinct(n, 2, device=device, dtype=dtype),),
            _pattern,
            lacks={
                "compile": "a Redirect is made of data; raw indices compile",
                "export": "a Redirect is no pytree",
            },
        ),
    },
    empties=_gather_empties,
    errors=[
        (
            "gather_packed: values must have at least 1 dimension, got 0",
            lambda d: (_zeros(d), _at(d)),
        ),
        ("gather_packed: index must have 1 dimension, got 2", lambda d: (_zeros(d, 9), _at(d)[None])),
        (
            "gather_packed: index must be int32 or int64, got float32",
            lambda d: (_zeros(d, 9), _at(d).float()),
        ),
    ],
    huge=_gather_huge,
    lacks=_NO_ZERO_DIM,
)
