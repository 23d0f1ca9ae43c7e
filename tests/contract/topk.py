"""topk in the contract table."""

from collections.abc import Callable
from typing import Any

import torch

from torch_gpuprims import topk

from .spec import Call, Device, Op, distinct


def _half_mask(n: int, device: Device) -> torch.Tensor:
    return torch.arange(n, device=device) % 3 != 0


def _topk_samples(device: Device) -> list[tuple[Any, ...]]:
    x = distinct(3, 5, 7, device=device, dtype=torch.float32)
    mask = _half_mask(7, device)
    return [
        (x, 2),
        (x, 4, 1, False),
        (x.clone().requires_grad_(), 3, 0),
        (x.mT, 2, -1, True, False),
        (x.clone().requires_grad_(), 6, -1, True, True, mask),
        (x[0], 2, 0, True, True, None, 32),
        (x[0, 0, 0], 1),
        (x, 0),
        ((10 * x).to(torch.int8), 3),
    ]


def _topk_empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=device)

    return [
        (lambda: topk(zeros(4, 0), 0), (4, 0)),
        (lambda: topk(zeros(0, 5), 2), (0, 2)),
        (lambda: topk(zeros(3, 0, 5), 2), (3, 0, 2)),
        (lambda: topk(zeros(3, 5), 0, dim=0), (0, 5)),
        (lambda: topk(zeros(), 1), ()),
        (lambda: topk(zeros(1), 1), (1,)),
    ]


def _topk_huge(device: Device, dtype: torch.dtype) -> None:
    n = 2**31 + 64
    x = torch.zeros(n, dtype=dtype, device=device)
    where = torch.tensor([5, 2**31 - 1, 2**31, n - 1], device=device)
    x[where] = torch.tensor([4, 7, 7, 9], dtype=dtype, device=device)
    values, indices = topk(x, 4)
    assert values.tolist() == [9, 7, 7, 4]
    assert indices.tolist() == [n - 1, 2**31 - 1, 2**31, 5]
    rows = x.view(-1, 64)  # [2^25 + 1, 64]
    indices = topk(rows, 1).indices
    assert indices[[0, 2**25 - 1, 2**25], 0].tolist() == [5, 63, 63]


TOPK = Op(
    word="topk",
    samples=_topk_samples,
    calls={
        "largest": Call(
            lambda x, k: topk(x, k),
            lambda n, device, dtype: (distinct(3, n, device=device, dtype=dtype),),
            lambda n, device: (min(n, 2 + n // 8),),
        ),
        "smallest of dim 0": Call(
            lambda x: topk(x, 2, dim=0, largest=False),
            lambda n, device, dtype: (distinct(n, 3, device=device, dtype=dtype),),
        ),
        "masked": Call(
            lambda x, mask: topk(x, 2, mask=mask, index_dtype=torch.int32),
            lambda n, device, dtype: (distinct(3, n, device=device, dtype=dtype),),
            lambda n, device: (torch.arange(n, device=device) % 3 != 2,),
        ),
    },
    empties=_topk_empties,
    errors=[
        (
            "topk: k must be between 0 and 4 (the size of dimension 1), got 5",
            lambda device: (torch.zeros(3, 4, device=device), 5),
        ),
        (
            "topk: k must be between 0 and 3 (the size of dimension 0), got -1",
            lambda device: (torch.zeros(3, 4, device=device), -1, 0),
        ),
        (
            "topk: dim must be between -2 and 1, got 2",
            lambda device: (torch.zeros(3, 4, device=device), 1, 2),
        ),
        (
            "topk: dtype complex64 is not supported",
            lambda device: (torch.zeros(3, 4, device=device, dtype=torch.complex64), 1),
        ),
        (
            "topk: mask must be bool, got float32",
            lambda device: (
                torch.zeros(3, 4, device=device), 1, -1, True, True, torch.zeros(4, device=device)
            ),
        ),
        (
            "topk: mask of shape [3] does not broadcast to input of shape [3, 4]",
            lambda device: (
                torch.zeros(3, 4, device=device), 1, -1, True, True, _half_mask(3, device)
            ),
        ),
        (
            "topk: index_dtype must be int64 or int32",
            lambda device: (torch.zeros(3, 4, device=device), 1, -1, True, True, None, 16),
        ),
    ],
    huge=_topk_huge,
)  # fmt: skip
