"""Linear layers initialised as PyTorch Geometric's."""

from typing import Any

import torch


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


def add_linear(out: torch.Tensor, x: torch.Tensor, linear: torch.nn.Linear) -> torch.Tensor:
    """out + linear(x) for a linear layer without bias; `out` is lost. Where that is all that happens, the
    product is added to out in place, which saves reading and writing it once more."""
    weight = linear.weight
    alone = not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is None
    if (
        alone
        and out.dtype == x.dtype == weight.dtype
        and out.dim() == x.dim() == 2
        and out.device == x.device
    ):
        return out.addmm_(x, weight.t())
    return out + linear(x)
