"""When a call may skip autograd's dispatch, and the errors that wrappers re-raise."""

from contextlib import nullcontext
from typing import NoReturn

import torch
from torch.autograd import forward_ad

#: Enters the dispatcher below autograd: 9 us cheaper a call. A private guard, so there is a fallback.
below_autograd = getattr(torch._C, "_AutoDispatchBelowAutograd", nullcontext)

_functorch_level = torch._C._functorch.maybe_current_level
_grad_enabled = torch.is_grad_enabled
_compiling = torch.compiler.is_compiling


def plain(*tensors: torch.Tensor | None) -> bool:
    """True where no gradient, transform, subclass or tracer can see the call (exact tensors, eager)."""
    if _compiling() or _functorch_level() is not None or forward_ad._current_level >= 0:
        return False
    grad = _grad_enabled()
    for tensor in tensors:
        if tensor is not None and (type(tensor) is not torch.Tensor or (grad and tensor.requires_grad)):
            return False
    return True


def light_autograd() -> bool:
    """True where a torch.autograd.Function may serve a gradient: eager. Compilers see the registered op."""
    return not _compiling()


def reraise(error: RuntimeError) -> NoReturn:
    """Re-raise a native error: out of memory under PyTorch's own class, anything else as it is."""
    if ": out of memory allocating " in str(error):
        raise torch.OutOfMemoryError(str(error)) from None
    raise error
