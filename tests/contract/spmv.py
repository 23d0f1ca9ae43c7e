"""spmv and spmv_csr in the contract table."""

from collections.abc import Callable
from typing import Any

import torch

from torch_gpuprims import (
    PackedRows,
    pack_rows,
    spmv,
    spmv_csr,
)

from .reorder import _LAYOUTS, _NO_ZERO_DIM, Make, _at, _csr, _entries, _packed, _x, _zeros
from .spec import Call, Device, Op, distinct


def _spmv_samples(device: Device) -> list[tuple[Any, ...]]:
    samples: list[tuple[Any, ...]] = []
    for how in _LAYOUTS.values():
        packed = _packed(70, device, **how)
        x = _x(70, device, torch.float32)
        transpose = (packed.t_indptr, packed.t_indices, packed.t_ids)
        leaf = packed.values.detach().requires_grad_()
        samples += [
            (packed.values, packed.indices, *packed._packing, x),
            (leaf, packed.indices, *packed._packing, x.clone().requires_grad_(), None, *transpose),
        ]
    columns = x.detach()[:, None].expand(-1, 2).contiguous().requires_grad_()
    start = torch.zeros(70, 2, device=device).requires_grad_()
    return [*samples, (leaf, packed.indices, *packed._packing, columns, start, *transpose, 1)]


def _spmv_call(how: dict[str, Any]) -> Call:
    return Call(
        lambda values, x, packed: spmv(packed.repack(values), x),
        lambda n, device, dtype: (_entries(n, device, dtype), _x(n, device, dtype)),
        lambda n, device: (_packed(n, device, **how),),
    )


def _spmv_empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    def matrix(rows: int, **how: Any) -> PackedRows:
        none = torch.zeros(0, dtype=torch.int32, device=device)
        return pack_rows(_zeros(device, 0), _at(device, *[0] * (rows + 1)), indices=none, **how)

    return [
        (lambda: spmv(matrix(0), _zeros(device, 4)), (0,)),
        (lambda: spmv(matrix(3), _zeros(device, 0)), (3,)),
        (lambda: spmv(matrix(3, layout="sliced"), _zeros(device, 4, 2)), (3, 2)),
        (lambda: spmv(matrix(3), _zeros(device, 4, 0)), (3, 0)),
    ]


def _spmv_huge(device: Device, dtype: torch.dtype) -> None:
    rows, longest = 2**16, 2**15 + 1
    indptr = torch.arange(rows + 1, device=device) * longest
    values = torch.ones(1, dtype=dtype, device=device).expand(rows * longest)
    indices = torch.zeros(rows * longest, dtype=torch.int32, device=device)
    indices[-1] = 1
    x = torch.tensor([0, 2], dtype=dtype, device=device)
    assert spmv_csr(indptr, indices, values, x)[[0, rows - 1]].tolist() == [0, 2]


def _product_errors(op: str, make: Callable[..., tuple[Any, ...]]) -> list[tuple[str, Make]]:
    return [
        (f"{op}: values must be float16, bfloat16, float32 or float64, got int64",
         lambda d: make(d, values=_at(d, 1, 2, 3, 4, 5, 6))),
        (f"{op}: values must have 1 dimension, got 2", lambda d: make(d, values=_zeros(d, 6, 1))),
        (f"{op}: indices must have 6 elements (as values has), got 3", lambda d: make(d, indices=_at(d))),
        (f"{op}: x must have the dtype of values (float32), got float64",
         lambda d: make(d, x=_zeros(d, 4, dtype=torch.float64))),
        (f"{op}: x must have 1 or 2 dimensions, got 3", lambda d: make(d, x=_zeros(d, 4, 1, 1))),
        (f"{op}: indptr must have at least 1 element, got 0", lambda d: make(d, indptr=_at(d)[:0])),
    ]  # fmt: skip


def _packed_args(d: Device, **given: Any) -> tuple[Any, ...]:
    parts = {"values": _zeros(d, 6), "indices": _at(d, 0, 0, 0, 0, 0, 0), "indptr": _at(d), "x": _zeros(d, 4)}
    parts |= given
    rest = (parts["start"],) if "start" in parts else ()
    return (parts["values"], parts["indices"], parts["indptr"], None, None, None, parts["x"], *rest)


def _csr_args(d: Device, **given: Any) -> tuple[Any, ...]:
    parts = {"values": _zeros(d, 6), "indices": _at(d, 0, 0, 0, 0, 0, 0), "indptr": _at(d), "x": _zeros(d, 4)}
    parts |= given
    return parts["indptr"], parts["indices"], parts["values"], parts["x"]


SPMV = Op(
    word="reorder",
    samples=_spmv_samples,
    calls={name: _spmv_call(how) for name, how in _LAYOUTS.items()},
    empties=_spmv_empties,
    errors=[
        *_product_errors("spmv", _packed_args),
        (
            "spmv: start must have the shape of the result, got [3]",
            lambda d: _packed_args(d, start=_zeros(d, 3)),
        ),
    ],
    lacks={**_NO_ZERO_DIM, "huge": "spmv_csr's call has the same sums; packed slots are pack_rows'"},
)


def _csr_samples(device: Device) -> list[tuple[Any, ...]]:
    indptr, indices = _csr(70, device)
    values, x = _entries(70, device, torch.float32), _x(70, device, torch.float32)
    columns = x[:, None].expand(-1, 3).contiguous().requires_grad_()
    return [
        (indptr, indices, values, x),
        (indptr.int(), indices.int(), values.clone().requires_grad_(), x.clone().requires_grad_()),
        (indptr, indices, values.clone().requires_grad_(), columns, 1),
    ]


SPMV_CSR = Op(
    word="reorder",
    samples=_csr_samples,
    calls={
        "vector": Call(
            lambda values, x, indptr, indices: spmv_csr(indptr, indices, values, x),
            lambda n, device, dtype: (_entries(n, device, dtype), _x(n, device, dtype)),
            _csr,
        ),
        "columns": Call(
            lambda values, x, indptr, indices: spmv_csr(indptr, indices, values, x),
            lambda n, device, dtype: (
                _entries(n, device, dtype),
                distinct(n + 5, 2, device=device, dtype=dtype),
            ),
            _csr,
        ),
    },
    empties=lambda device: [
        (lambda: spmv_csr(_at(device, 0), _at(device)[:0], _zeros(device, 0), _zeros(device, 4)), (0,)),
        (lambda: spmv_csr(_at(device, 0, 0), _at(device)[:0], _zeros(device, 0), _zeros(device, 0)), (1,)),
        (
            lambda: spmv_csr(_at(device, 0, 0), _at(device)[:0], _zeros(device, 0), _zeros(device, 4, 0)),
            (1, 0),
        ),
    ],
    errors=_product_errors("spmv_csr", _csr_args),
    huge=_spmv_huge,
    one_byte=torch.float16,
    lacks=_NO_ZERO_DIM,
)
