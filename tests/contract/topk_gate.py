"""topk_gate in the contract table."""

from collections.abc import Callable
from typing import Any

import torch

from torch_gpuprims import topk_gate

from .spec import Call, Device, Op, distinct


def _logits(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """n tokens of 12 experts."""
    return (distinct(n, 12, device=device, dtype=dtype),)


def _bias(n: int, device: Device) -> tuple[torch.Tensor]:
    """Steps that scores, at most 0.77 apart, do not straddle; no two are so close that rounding decides."""
    return (torch.tensor([0.0, -0.8, -1.6] * 4, device=device),)


def _samples(device: Device) -> list[tuple[Any, ...]]:
    x = distinct(3, 5, 12, device=device, dtype=torch.float32)
    (bias,) = _bias(0, device)
    leaf = x.clone().requires_grad_
    return [
        (x, 2),
        (leaf(), 4, None, 0, False),
        (leaf(), 3, bias, 1, True, 4, 2, 2.5),
        (leaf(), 3, None, 1, False, 1, 1, 0.5, 32),
        (x.mT.contiguous().mT, 2, bias.double().float(), 0, True, 3, 3),
        (x.bfloat16(), 12, bias.bfloat16()),
        (x[0, 0], 1),
        (x, 0),
    ]


def _empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=device)

    return [
        (lambda: topk_gate(zeros(4, 0), 0), (4, 0)),
        (lambda: topk_gate(zeros(0, 5), 2), (0, 2)),
        (lambda: topk_gate(zeros(3, 0, 6), 2, num_groups=3, topk_groups=2), (3, 0, 2)),
        (lambda: topk_gate(zeros(3, 5), 0), (3, 0)),
        (lambda: topk_gate(zeros(1), 1), (1,)),
    ]


def _huge(device: Device, dtype: torch.dtype) -> None:
    rows = 2**25 + 1  # of 64 experts
    x = torch.zeros(rows, 64, dtype=dtype, device=device)
    x[[0, rows - 1], [5, 63]] = 30.0
    weights, indices = topk_gate(x, 1, index_dtype=torch.int32)
    assert indices[[0, 1, rows - 1], 0].tolist() == [5, 0, 63]
    assert weights[[0, 1, rows - 1], 0].tolist() == [1, 1, 1]


def _call(sigmoid: bool, biased: bool = False, **options: Any) -> Call:
    scoring = "sigmoid" if sigmoid else "softmax"
    if not biased:
        return Call(lambda x: topk_gate(x, 3, scoring=scoring, **options), _logits)
    return Call(lambda x, bias: topk_gate(x, 3, scoring=scoring, bias=bias, **options), _logits, _bias)


def _error(words: str, *rest: Any, dtype: torch.dtype = torch.float32, experts: int = 12) -> Any:
    def make(device: Device) -> tuple[Any, ...]:
        return torch.zeros(3, experts, device=device, dtype=dtype), *rest

    return f"topk_gate: {words}", make


TOPK_GATE = Op(
    word="topk",
    samples=_samples,
    calls={
        "softmax": _call(False),
        "softmax with its denominator": _call(False, renormalize=False, scale=2.0),
        "sigmoid": _call(True, scale=2.5),
        "sigmoid, not renormalised": _call(True, renormalize=False, index_dtype=torch.int32),
        "softmax, biased": _call(False, True, renormalize=False),
        "sigmoid, biased": _call(True, True),
        "softmax in groups": _call(False, num_groups=4, topk_groups=2),
        "sigmoid, biased, in groups": _call(True, True, num_groups=4, topk_groups=2),
    },
    empties=_empties,
    errors=[
        _error("logits must be float32, bfloat16, float16 or float64, got int64", 1, dtype=torch.int64),
        _error("at most 2048 experts are supported, got 2049", 1, experts=2049),
        _error("scoring must be 0 (softmax) or 1 (sigmoid), got 2", 1, None, 2),
        _error("num_groups must divide the 12 experts, got 5", 1, None, 0, True, 5),
        _error("topk_groups must be between 1 and 4 (num_groups), got 5", 1, None, 0, True, 4, 5),
        _error("k must be between 0 and 6 (the experts of the kept groups), got 7", 7, None, 0, True, 4, 2),
        _error("k must be at most 64, got 65", 65, experts=100),
        _error("index_dtype must be int64 or int32", 1, None, 0, True, 1, 1, 1.0, 16),
    ],
    huge=_huge,
    one_byte=torch.float16,  # logits are floats
    lacks={"zero_dim": "logits have a dimension of experts"},
)  # fmt: skip
