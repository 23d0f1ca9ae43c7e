"""Gradients of reduce, stats and dot, and their gradients."""

import math

import pytest
import torch

import torch_gpuprims as gp


def test_gradients_of_extremes_go_to_the_first(device: str) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]], device=device, requires_grad=True)
    gp.reduce(x, "max", 1).sum().backward()
    assert x.grad.tolist() == [[0, 1, 0], [1, 0, 0]]
    x.grad = None
    gp.reduce(x, "min").backward()
    assert x.grad.tolist() == [[0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "max", "min", "norm", "var", "std", "logsumexp"])
@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2), (2, 1)])
def test_gradients(op: str, dim: object, device: str) -> None:
    g = torch.Generator().manual_seed(3)
    x = (torch.randperm(24, generator=g).double() / 6 - 2.03).reshape(2, 3, 4).to(device).requires_grad_()
    for keepdim in (False, True):
        assert torch.autograd.gradcheck(lambda t: gp.reduce(t, op, dim, keepdim), x)  # noqa: B023
    assert torch.autograd.gradgradcheck(lambda t: gp.reduce(t, op, dim), x)
    assert torch.autograd.gradgradcheck(lambda t: torch.ops.gpuprims.reduce(t, 6 + 4, [1]), x)


@pytest.mark.parametrize("ord", [1, 2, math.inf])
def test_gradients_of_norms(ord: float, device: str) -> None:
    x = (torch.arange(12).double().reshape(3, 4) / 3 - 1.1).to(device).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: gp.reduce(t, "norm", 1, ord=ord), x)
    zero = torch.zeros(3, device=device, requires_grad=True)
    gp.reduce(zero, "norm", ord=ord).backward()
    assert zero.grad.tolist() == [0, 0, 0]


def test_gradient_of_a_product_with_zeros(device: str) -> None:
    for values in ([2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [2.0, 4.0, 3.0]):
        x = torch.tensor(values, dtype=torch.float64, device=device, requires_grad=True)
        assert torch.autograd.gradcheck(lambda t: gp.reduce(t, "prod"), x)
        assert torch.autograd.gradgradcheck(lambda t: gp.reduce(t, "prod"), x)


def test_gradients_of_stats_and_dot(device: str) -> None:
    x = (torch.arange(12).double().reshape(3, 4) * 7 % 12 / 3 - 1.1).to(device).requires_grad_()
    for dim in (None, 0, 1, (0, 1)):
        assert torch.autograd.gradcheck(lambda t: gp.stats(t, dim)[:4], x)  # noqa: B023
        assert torch.autograd.gradgradcheck(lambda t: gp.stats(t, dim)[:4], x)  # noqa: B023
    y = x.detach()[0].clone().requires_grad_()
    assert torch.autograd.gradcheck(gp.dot, (x[0], y))
    assert torch.autograd.gradgradcheck(gp.dot, (x[0], y))
