"""segment_topk and merge_topk in the contract table."""

from collections.abc import Callable
from typing import Any

import torch

from torch_gpuprims import Segments, merge_topk, segment_topk

from .spec import Call, Device, Op, distinct


def finite(result: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Infinities of missing slots have no finite differences: 0 in their place."""
    values, indices = result
    return torch.where(indices < 0, 0, values), indices


def offsets(n: int, device: Device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Of n elements: segments of 0, 1, 2, ... elements, the rest in the last one but an empty one."""
    ends = [0]
    while ends[-1] + len(ends) - 1 <= n and len(ends) < 50:
        ends.append(ends[-1] + len(ends) - 1)
    return torch.tensor([*ends, n, n], device=device, dtype=dtype)


def _values(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor]:
    return (distinct(n, device=device, dtype=dtype),)


def _counts(n: int, device: Device) -> torch.Tensor:
    return torch.arange(len(offsets(n, "cpu")) - 1, device=device) % 4


def _segment_samples(device: Device) -> list[tuple[Any, ...]]:
    (x,) = _values(20, device, torch.float32)
    indptr = offsets(20, device)
    return [
        (x, indptr, 3),
        (x, indptr.int(), 2, None, False, 32),
        (x.clone().requires_grad_(), indptr, 3, _counts(20, device)),
        (x[::2], torch.tensor([0, 4, 10], device=device), 12),
        ((10 * x).to(torch.int8), indptr, 2, _counts(20, device).int()),
        (x, indptr, 0),
        (x[:0], indptr[:1], 2),
        ((10 * x).to(torch.int16), indptr + 1, 2),  # bad: filled
    ]


def _segment_empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    def zeros(n: int) -> torch.Tensor:
        return torch.zeros(n, device=device)

    def at(*ends: int) -> torch.Tensor:
        return torch.tensor(ends, device=device)

    return [
        (lambda: segment_topk(zeros(0), at(0), 2), (0, 2)),
        (lambda: segment_topk(zeros(0), at(0, 0, 0), 2), (2, 2)),
        (lambda: segment_topk(zeros(5), at(0, 5), 0), (1, 0)),
        (lambda: segment_topk(zeros(1), at(0, 1), 1), (1, 1)),
        (lambda: segment_topk(zeros(5), Segments(at(0, 5)), at(2), max_k=3), (1, 3)),
    ]


def _segment_huge(device: Device, dtype: torch.dtype) -> None:
    n = 2**31 + 64
    x = torch.zeros(n, dtype=dtype, device=device)
    where = torch.tensor([5, 2**31 - 1, 2**31, n - 1], device=device)
    x[where] = torch.tensor([4, 7, 7, 9], dtype=dtype, device=device)
    indptr = torch.tensor([0, 7, 7, n - 20, n], device=device)
    values, indices = segment_topk(x, indptr, 2)
    assert values.tolist()[0] == [4, 0] and values.tolist()[2:] == [[7, 7], [9, 0]]
    assert indices.tolist() == [[5, 0], [-1, -1], [2**31 - 1, 2**31], [n - 1, n - 20]]


def _zeros(device: Device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, device=device, dtype=dtype)


def _at(device: Device) -> torch.Tensor:
    return torch.tensor([0, 2, 5], device=device)


SEGMENT_TOPK = Op(
    word="topk",
    samples=_segment_samples,
    calls={
        "segments": Call(
            lambda x, indptr: finite(segment_topk(x, indptr, 3)),
            _values,
            lambda n, device: (offsets(n, device),),
        ),
        "smallest, counted": Call(
            lambda x, indptr, k: finite(
                segment_topk(x, indptr, k, max_k=2, largest=False, index_dtype=torch.int32)
            ),
            _values,
            lambda n, device: (offsets(n, device, torch.int32), _counts(n, device)),
        ),
        "Segments": Call(
            lambda x, segments: finite(segment_topk(x, segments, 2)),
            _values,
            lambda n, device: (Segments(offsets(n, device)),),
        ),
    },
    empties=_segment_empties,
    errors=[
        (
            "segment_topk: values must have 1 dimension, got 2",
            lambda device: (_zeros(device, 5, 1), _at(device), 2),
        ),
        (
            "segment_topk: dtype complex64 is not supported",
            lambda device: (_zeros(device, 5, dtype=torch.complex64), _at(device), 2),
        ),
        (
            "segment_topk: indptr must have 1 dimension, got 2",
            lambda device: (_zeros(device, 5), _at(device)[None], 2),
        ),
        (
            "segment_topk: indptr must be int32 or int64, got float32",
            lambda device: (_zeros(device, 5), _at(device).float(), 2),
        ),
        (
            "segment_topk: indptr must have at least 1 element, got 0",
            lambda device: (_zeros(device, 5), _at(device)[:0], 2),
        ),
        (
            "segment_topk: k must not be negative, got -1",
            lambda device: (_zeros(device, 5), _at(device), -1),
        ),
        (
            "segment_topk: k must have 2 elements (the number of segments), got 3",
            lambda device: (_zeros(device, 5), _at(device), 2, _at(device)),
        ),
        (
            "segment_topk: k must be int32 or int64, got int16",
            lambda device: (_zeros(device, 5), _at(device), 2, _at(device)[:2].short()),
        ),
        (
            "segment_topk: index_dtype must be int64 or int32",
            lambda device: (_zeros(device, 5), _at(device), 2, None, True, 16),
        ),
    ],
    huge=_segment_huge,
    lacks={"zero_dim": "segments cut a dimension"},
)


def _ids(n: int, device: Device) -> torch.Tensor:
    """[3, n] of distinct indices in no order, some missing."""
    generator = torch.Generator().manual_seed(n)
    rows = [torch.randperm(2 * n, generator=generator)[:n] for _ in range(3)]
    ids = torch.stack(rows)
    ids[:, ::5] = -1
    return ids.to(device)


def _merge_samples(device: Device) -> list[tuple[Any, ...]]:
    x = distinct(3, 7, device=device, dtype=torch.float32)
    ids = _ids(7, device)
    return [
        (x, ids, 3),
        (x, ids.int(), 9, False),
        (x.clone().requires_grad_(), ids, 4),
        (x.mT.contiguous().mT, ids, 2),
        (x[0], ids[0], 1),
        (x, ids, 0),
        (x[:, :0], ids[:, :0], 2),
        ((10 * x).to(torch.int8), ids, 3),
    ]


def _merge_empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    def call(shape: tuple[int, ...], k: int, dim: int = -1) -> Callable[[], Any]:
        x = torch.zeros(shape, device=device)
        return lambda: merge_topk(x, x.long(), k, dim)

    return [
        (call((4, 0), 0), (4, 0)),
        (call((4, 0), 3), (4, 3)),
        (call((0, 5), 2), (0, 2)),
        (call((3, 5), 0, 0), (0, 5)),
        (call((1,), 1), (1,)),
    ]


def _merge_huge(device: Device, dtype: torch.dtype) -> None:
    rows = 2**25 + 1  # of 64
    x = torch.zeros(rows, 64, dtype=dtype, device=device)
    x[[0, rows - 1], [3, 9]] = torch.tensor([5, 6], dtype=dtype, device=device)
    ids = torch.arange(63, -1, -1, device=device, dtype=torch.int32).expand(rows, 64)
    values, indices = merge_topk(x, ids, 2)
    assert values[[0, 1, rows - 1]].tolist() == [[5, 0], [0, 0], [6, 0]]
    assert indices[[0, 1, rows - 1]].tolist() == [[60, 0], [0, 1], [54, 0]]


MERGE_TOPK = Op(
    word="topk",
    samples=_merge_samples,
    calls={
        "last dim": Call(
            lambda x, ids, k: finite(merge_topk(x, ids, k)),
            lambda n, device, dtype: (distinct(3, n, device=device, dtype=dtype),),
            lambda n, device: (_ids(n, device), min(n, 2 + n // 8)),
        ),
        "smallest of dim 0": Call(
            lambda x, ids: merge_topk(x, ids, 2, dim=0, largest=False),
            lambda n, device, dtype: (distinct(n, 3, device=device, dtype=dtype),),
            lambda n, device: (_ids(n, device).abs().mT.contiguous(),),
        ),
    },
    empties=_merge_empties,
    errors=[
        (
            "merge_topk: values must have at least 1 dimension, got 0",
            lambda device: (_zeros(device), _zeros(device).long(), 1),
        ),
        (
            "merge_topk: dtype complex64 is not supported",
            lambda device: (_zeros(device, 5, dtype=torch.complex64), _zeros(device, 5).long(), 2),
        ),
        (
            "merge_topk: indices must be int64 or int32, got float32",
            lambda device: (_zeros(device, 5), _zeros(device, 5), 2),
        ),
        (
            "merge_topk: indices must have the shape of values [2, 5], got [5]",
            lambda device: (_zeros(device, 2, 5), _zeros(device, 5).long(), 2),
        ),
        (
            "merge_topk: indices must have the shape of values [5], got [4]",
            lambda device: (_zeros(device, 5), _zeros(device, 4).long(), 2),
        ),
        (
            "merge_topk: k must not be negative, got -1",
            lambda device: (_zeros(device, 5), _zeros(device, 5).long(), -1),
        ),
    ],
    huge=_merge_huge,
    lacks={"zero_dim": "candidates lie along a dimension"},
)
