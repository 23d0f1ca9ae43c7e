"""When a call may skip autograd's dispatch, and the errors that wrappers re-raise."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

#: Enters the dispatcher below autograd: 9 us cheaper a call. A private guard, so there is a fallback.
below_autograd = getattr(torch._C, "_AutoDispatchBelowAutograd", nullcontext)

_Tensor = torch.Tensor
_functorch_level = torch._C._functorch.maybe_current_level
_function_modes = torch._C._len_torch_function_stack
_grad_enabled = torch.is_grad_enabled
# True under Dynamo alone, at half the cost of is_compiling: other tracers pass subclasses of Tensor.
_tracing = torch.compiler.is_dynamo_compiling


def plain(first: torch.Tensor | None, *others: torch.Tensor | None) -> bool:
    """True where no gradient, transform, subclass or tracer can see the call (exact tensors, eager)."""
    if _tracing() or _functorch_level() is not None or _function_modes() or forward_ad._current_level >= 0:
        return False
    if first is not None and (type(first) is not _Tensor or (first.requires_grad and _grad_enabled())):
        return False
    for tensor in others:
        if tensor is not None and (type(tensor) is not _Tensor or (tensor.requires_grad and _grad_enabled())):
            return False
    return True


_exact = frozenset({_Tensor, torch.nn.Parameter})


def eager(first: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """True where autograd is all that can see the call: no transform, subclass or tracer."""
    if _tracing() or _functorch_level() is not None or _function_modes() or forward_ad._current_level >= 0:
        return False
    if type(first) not in _exact:
        return False
    return all(tensor is None or type(tensor) in _exact for tensor in others)


def light_autograd(*tensors: torch.Tensor | None) -> bool:
    """True where a torch.autograd.Function may serve a gradient: eager calls, with no subclass among tensors.

    Compilers, export and subclasses see the registered op.
    """
    if torch.compiler.is_compiling():
        return False
    return all(t is None or type(t) in (_Tensor, torch.nn.Parameter) for t in tensors)


def direct(op: torch._ops.OpOverload) -> tuple[Callable[..., Any], Any]:
    """(call, handle): call(handle, *args) is op(*args) for plain calls, less the 0.4 us that the search for
    __torch_function__ takes."""
    call = getattr(torch._C, "_dispatch_call_boxed", None)
    handle = getattr(op, "_handle", None)
    return (call, handle) if call and handle is not None else (lambda op, *args: op(*args), op)


_library = torch.library.Library("gpuprims", "IMPL")
# Whoever watches calls: dispatch modes, tracers, functorch.
_WATCHERS = ("Python", "PreDispatch", "Tracer")
_FUNCTORCH = "FuncTorchDynamicLayerFrontMode"


def plain_handle(
    name: str,
    public: Callable[..., Any],
    fake: Callable[..., Any],
    functorch: Callable[..., Any] | None = None,
) -> Any:
    """What `call` of direct() takes for the op _name, the common call of op `name` without gradients.

    Autograd falls through it, so that it needs no guard (0.8 us on a GPU machine), and it has few arguments
    to box. Whoever watches calls is handed `public` instead: the same through the op `name`; functorch's
    transforms are handed `functorch`, so that the caller need not ask whether there is one.
    """
    _library.impl(f"_{name}", torch.library.fallthrough_kernel, "Autograd")
    for key in _WATCHERS:
        _library.impl(f"_{name}", public, key)
    _library.impl(f"_{name}", functorch or public, _FUNCTORCH)
    torch.library.register_fake(f"gpuprims::_{name}", fake)
    return direct(getattr(torch.ops.gpuprims, f"_{name}").default)[1]


def apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    """function.apply(*args), less the 25 us that it spends on inspecting forward's signature."""
    if _functorch_level() is None:
        return super(torch.autograd.Function, function).apply(*args)  # type: ignore[misc]
    return function.apply(*args)


def bare_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """function.apply, bound once, for calls of which `eager` is true: without the inspection of forward."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def gradients(
    op: torch._ops.OpOverload,
    run: Callable[..., Any],
    setup: Callable[..., None],
    backward_of: Callable[..., Any],
    batch: Callable[..., Any],
    eager_forward: Callable[..., Any] | None = None,
    jvp_of: Callable[..., Any] | None = None,
) -> tuple[type[torch.autograd.Function], Callable[..., Any]]:
    """Registers the gradient of `op` and its vmap, and makes both for eager tensors.

    The first result is an autograd.Function, for transforms: the registered gradient at a third of its cost a
    call. The second is the apply of one that does without what functorch needs, for calls of which `eager` is
    true. `run` is what a call inside a batch goes through; batch(run, info, in_dims, args) is vmap's, with
    all of the op's arguments; `eager_forward` replaces the second one's forward and sets up as `setup` does.
    jvp_of(ctx, *tangents) serves forward-mode AD, which reaches the first alone (`eager` is false then).
    """
    call, handle = direct(op)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(*args: Any) -> Any:
            with below_autograd():
                return op(*args)

        setup_context = staticmethod(setup)
        backward = staticmethod(backward_of)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
            return batch(run, info, in_dims, args)

    if jvp_of is not None:
        Function.jvp = staticmethod(jvp_of)  # type: ignore[method-assign]

    def forward_and_setup(ctx: Any, *args: Any) -> Any:
        guard = below_autograd()  # entered when made; `with` would cost 0.3 us more
        try:
            output = call(handle, *args)
        finally:
            del guard
        setup(ctx, args, output)
        return output

    class Eager(torch.autograd.Function):
        forward = staticmethod(eager_forward or forward_and_setup)
        backward = staticmethod(backward_of)

    defaults = [argument.default_value for argument in op._schema.arguments]

    def registered(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        given = len(args)  # PyTorch leaves out arguments that have their defaults
        return batch(op, info, (*in_dims, *[None] * (len(defaults) - given)), (*args, *defaults[given:]))

    name = op._schema.name
    torch.library.register_autograd(name, backward_of, setup_context=setup)
    torch.library.register_vmap(name, registered)
    return Function, bare_apply(Eager)


def reraise(error: RuntimeError, op: str = "", **tensors: Any) -> NoReturn:
    """Re-raise a native error: out of memory under PyTorch's own class, anything else as it is.

    tensors: by the names of their arguments, those of `op` that may be sparse, where PyTorch finds no kernel
    that could say so.
    """
    for name, tensor in tensors.items():
        if getattr(tensor, "layout", torch.strided) is not torch.strided:
            raise RuntimeError(f"{op}: {name} must be a dense tensor, got a sparse layout") from None
    if ": out of memory allocating " in str(error):
        raise torch.OutOfMemoryError(str(error)) from None
    raise error
