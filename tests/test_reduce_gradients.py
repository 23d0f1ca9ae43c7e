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


def gradient(function, x):
    x = x.clone().requires_grad_()
    function(x).backward()
    return x.grad


def test_gradient_of_a_product_that_is_finite_is_finite(device: str) -> None:
    for values in ([2.0] * 200 + [0.5] * 200, [1e-20, 1e-20, 1e30, 1e10]):
        for x in (torch.tensor(values, device=device), torch.tensor([values, values], device=device).t()):
            got = gradient(lambda t: gp.reduce(t, "prod", 0).sum(), x)
            want = gradient(lambda t: t.prod(0).sum(), x.double()).float()
            torch.testing.assert_close(got, want, rtol=1e-4, atol=0)  # 1e-40 has few digits
    half = torch.tensor([200.0, 400.0, 0.001], dtype=torch.float16, device=device)  # the first two: 80,000
    want = gradient(lambda t: t.prod(), half.double()).half()
    torch.testing.assert_close(gradient(lambda t: gp.reduce(t, "prod"), half), want)


def test_gradient_of_no_dimensions(device: str) -> None:
    for op in ("sum", "mean", "prod", "max", "min", "norm", "logsumexp"):
        x = torch.tensor(-3.0, dtype=torch.float64, device=device, requires_grad=True)
        for dim in (None, 0, -1):
            assert torch.autograd.gradcheck(lambda t: gp.reduce(t, op, dim), x)  # noqa: B023
    zero = torch.zeros((), device=device)
    assert gradient(lambda t: gp.reduce(t, "prod"), zero).item() == 1


def test_gradient_of_logsumexp_of_infinities(device: str) -> None:
    inf = math.inf
    for values in ([1.0, 5.0, inf], [-inf, 1.0], [inf, inf, 0.0], [-inf, inf], [1.0, math.nan]):
        x = torch.tensor(values, device=device)
        want = gradient(lambda t: t.logsumexp(0), x)
        torch.testing.assert_close(gradient(lambda t: gp.reduce(t, "logsumexp"), x), want, equal_nan=True)
    assert (
        gradient(lambda t: gp.reduce(t, "logsumexp"), torch.full((3,), -inf, device=device)).tolist()
        == [0] * 3
    )


def test_gradients_of_scaled_losses_in_float16(device: str) -> None:
    """2 / n alone is hardly a float16."""
    n, scale = 2**22, 4096.0
    x = torch.randn(n, generator=torch.Generator().manual_seed(0)).half().to(device)
    wide = x.double()
    for name, function, theirs in (
        ("var", lambda t: gp.reduce(t, "var"), torch.var),
        ("std", lambda t: gp.reduce(t, "std"), torch.std),
        ("stats", lambda t: gp.stats(t).var, torch.var),
    ):
        got = gradient(lambda t: scale * function(t), x).double()  # noqa: B023
        want = gradient(lambda t: scale * theirs(t), wide)  # noqa: B023
        assert (got - want).norm() <= 0.01 * want.norm(), name
