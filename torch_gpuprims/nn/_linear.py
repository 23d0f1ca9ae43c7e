"""Linear layers initialised as PyTorch Geometric's."""

from typing import Any

import torch
from torch.nn import functional

from .._dispatch import light_autograd


class _GlorotLinear(torch.nn.Linear):
    """torch.nn.Linear with a Glorot uniform weight; its bias as ever."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        torch.nn.init.xavier_uniform_(self.weight)


def glorot_linear(in_channels: int, out_channels: int, bias: bool) -> torch.nn.Linear:
    return _GlorotLinear(in_channels, out_channels, bias)


def set_lazy_error(layer: torch.nn.Module, channels: Any) -> None:
    """PyG takes -1 for sizes to be seen at the first call; here they are given."""
    sizes = channels if isinstance(channels, (tuple, list)) else (channels,)
    if any(size < 0 for size in sizes):
        name = type(layer).__name__
        raise ValueError(
            f"{name}: in_channels must be given, got {channels} (sizes are not taken from inputs)"
        )


def _alone(*tensors: torch.Tensor) -> bool:
    """True for eager matrices of one dtype and device: what is then written in place, or has an
    autograd.Function around it, is seen by nobody else."""
    first = tensors[0]
    return (
        light_autograd(*tensors)
        and torch._C._functorch.maybe_current_level() is None
        and not torch.is_autocast_enabled(first.device.type)
        and all(t.dim() == 2 and t.dtype == first.dtype and t.device == first.device for t in tensors)
    )


def add_linear(out: torch.Tensor, x: torch.Tensor, linear: torch.nn.Linear) -> torch.Tensor:
    """out + linear(x) for a linear layer without bias; `out` is lost. Where that is all that happens, the
    product is added to out in place, which saves reading and writing it once more."""
    if _alone(out, x, linear.weight):
        return out.addmm_(x, linear.weight.t())
    return out + linear(x)


def _bias_gradient(grad: torch.Tensor) -> torch.Tensor:
    if grad.is_cuda and grad.dtype == torch.float32:
        return grad.t() @ grad.new_ones(grad.shape[0])  # at 2.4 times the rate of torch.sum(0)
    return grad.sum(0)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            grad @ weight if wants[0] else None,
            grad.t() @ x if wants[1] else None,
            _bias_gradient(grad) if wants[2] else None,
        )


def apply_linear(linear: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """linear(x); the gradient in the bias is a product with ones."""
    if linear.bias is not None and x.is_cuda and x.dtype == torch.float32 and _alone(x, linear.weight):
        return _Linear.apply(x, linear.weight, linear.bias)  # type: ignore[no-any-return]
    return linear(x)  # type: ignore[no-any-return]


class _Fork(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        return x.view_as(x), functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad_x: torch.Tensor | None, grad: torch.Tensor | None) -> Any:  # type: ignore[override]
        if grad is None:
            return grad_x, None, None
        x, weight = ctx.saved_tensors
        wants = ctx.needs_input_grad
        if grad_x is None:
            grad_x = grad @ weight if wants[0] else None
        elif torch.is_grad_enabled():
            grad_x = torch.addmm(grad_x, grad, weight)
        else:
            grad_x.addmm_(grad, weight)
        return (
            grad_x,
            grad.t() @ x if wants[1] else None,
            _bias_gradient(grad) if wants[2] else None,
        )


def fork_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(x, x @ weight.T + bias), or None where tensors are not alone. The product's gradient in x is added in
    place to that of the first result, where autograd would make both and a sum: so the first result is for
    functions alone whose gradients are tensors of their own, as those of neighbor_aggregate are."""
    if not _alone(x, weight) or (bias is not None and not _alone(bias[None], x)):
        return None
    return _Fork.apply(x, weight, bias)  # type: ignore[no-any-return]


class _TwoProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> Any:
        ctx.save_for_backward(x, left, right)
        return x @ left.t(), x @ right.t()

    @staticmethod
    def backward(ctx: Any, grad_left: torch.Tensor, grad_right: torch.Tensor) -> Any:  # type: ignore[override]
        x, left, right = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            (grad_left @ left).addmm_(grad_right, right) if wants[0] else None,
            grad_left.t() @ x if wants[1] else None,
            grad_right.t() @ x if wants[2] else None,
        )


def two_products(
    x: torch.Tensor, left: torch.Tensor, right: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x @ left.T, x @ right.T). The second one's gradient in x is added to the first one's in place, where
    autograd would make both and a sum."""
    if _alone(x, left, right):
        return _TwoProducts.apply(x, left, right)  # type: ignore[no-any-return]
    return functional.linear(x, left), functional.linear(x, right)
