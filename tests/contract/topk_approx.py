"""approx_topk in the contract table; its two stages (4,096 elements and more) are in test_topk_approx.py."""

from collections.abc import Callable
from typing import Any

import torch

from torch_gpuprims import approx_topk

from .spec import Call, Device, Op, distinct


def _samples(device: Device) -> list[tuple[Any, ...]]:
    x = distinct(3, 5, 7, device=device, dtype=torch.float32)
    long = distinct(2, 8192, device=device, dtype=torch.float32)
    return [
        (x, 2),
        (x.clone().requires_grad_(), 3, 0.9, False),
        (x.mT, 0, 1.0),
        (long, 64, 0.9),
        (long.clone().requires_grad_(), 64),
    ]


def _empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=device)

    return [
        (lambda: approx_topk(zeros(4, 0), 0), (4, 0)),
        (lambda: approx_topk(zeros(0, 8192), 64), (0, 64)),
        (lambda: approx_topk(zeros(3, 5), 0, dim=0), (0, 5)),
        (lambda: approx_topk(zeros(), 1), ()),
        (lambda: approx_topk(zeros(1), 1), (1,)),
    ]


APPROX_TOPK = Op(
    word="topk",
    samples=_samples,
    calls={
        "largest": Call(
            # A literal: Dynamo tries a float default as a symbol first and compiles twice.
            lambda x, k: approx_topk(x, k, 0.95),
            lambda n, device, dtype: (distinct(3, n, device=device, dtype=dtype),),
            lambda n, device: (min(n, 2 + n // 8, 16),),
        ),
        "smallest of dim 0": Call(
            lambda x: approx_topk(x, 2, 0.9, dim=0, largest=False),
            lambda n, device, dtype: (distinct(n, 3, device=device, dtype=dtype),),
        ),
    },
    empties=_empties,
    errors=[
        (
            "topk: k must be between 0 and 4 (the size of dimension 1), got 5",
            lambda device: (torch.zeros(3, 4, device=device), 5),
        ),
        (
            "approx_topk: recall_target must be above 0 and at most 1, got 1.5",
            lambda device: (torch.zeros(3, 4, device=device), 1, 1.5),
        ),
        (
            "topk: dtype complex64 is not supported",
            lambda device: (torch.zeros(3, 4, device=device, dtype=torch.complex64), 1),
        ),
    ],
    lacks={"huge": "rows of more than 2^18 elements are topk's, which is tested"},
)
