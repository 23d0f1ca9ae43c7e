"""What an op's row of the contract table says."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Device = str | torch.device


@dataclass(frozen=True)
class Call:
    """A way to call an op: run(*tensors(n, ...), *rest(n, ...)), differentiable in the tensors."""

    run: Callable[..., Any]
    tensors: Callable[[int, Device, torch.dtype], tuple[torch.Tensor, ...]]
    rest: Callable[[int, Device], tuple[Any, ...]] = lambda n, device: ()
    lacks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Op:
    """A registered op. Arguments are made anew on each call, on the device asked for."""

    word: str  # the slice it belongs to, as in csrc/<word>
    samples: Callable[[Device], list[tuple[Any, ...]]]  # arguments of the raw op, for opcheck
    calls: dict[str, Call]
    empties: Callable[
        [Device], list[tuple[Callable[[], Any], tuple[int, ...]]]
    ]  # call -> shape of the output
    errors: list[tuple[str, Callable[[Device], tuple[Any, ...]]]]  # message, arguments of the raw op
    huge: Callable[[Device, torch.dtype], None] | None = None  # more than 2^31 elements; asserts
    one_byte: torch.dtype = torch.uint8  # the smallest element that `huge` can have
    lacks: dict[str, str] = field(default_factory=dict)


def distinct(*shape: int, device: Device, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Values in [-2, 2) without ties, far enough apart for finite differences."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel()
    values = torch.randperm(count, generator=generator).double() / max(count, 1) * 4 - 2
    return values.reshape(shape).to(device, dtype)
