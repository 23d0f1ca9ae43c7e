"""Making the calls of the table, and comparing what they return."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .spec import Call, Op


def holds(op: Op, call: Call | None, prop: str) -> None:
    """Skip, with the table's reason, a property that does not hold."""
    reason = {**op.lacks, **(call.lacks if call else {})}.get(prop)
    if reason:
        pytest.skip(reason)


def outputs(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def floats(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(out for out in outputs(result) if out.is_floating_point())


def arguments(call: Call, n: int, device: str, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    return (*call.tensors(n, device, dtype), *call.rest(n, device))


def bound(call: Call, n: int, device: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The call as a function of its differentiable tensors alone, giving its differentiable outputs."""
    rest = call.rest(n, device)
    return lambda *tensors: floats(call.run(*tensors, *rest))


def same(actual: Any, expected: Any) -> None:
    for a, e in zip(outputs(actual), outputs(expected), strict=True):
        assert a.dtype == e.dtype
        assert a.shape == e.shape
        assert torch.equal(a.cpu(), e.cpu())


def gradients(run: Callable[..., Any], tensors: tuple[torch.Tensor, ...], rest: tuple[Any, ...]) -> Any:
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    out = floats(run(*leaves, *rest))
    return torch.autograd.grad([o.sin().sum() for o in out], leaves)
