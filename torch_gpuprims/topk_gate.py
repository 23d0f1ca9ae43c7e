"""topk_gate: the router of a mixture of experts in one kernel; CPU and CUDA kernels are csrc/topk/gate_*."""

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from . import _explain
from ._dispatch import apply, below_autograd, direct, eager, gradients, light_autograd, plain, reraise

_op = torch.ops.gpuprims.topk_gate.default
_call, _handle = direct(_op)
_tuple = tuple.__new__
_INT64 = torch.int64
SCORING = {"softmax": 0, "sigmoid": 1}
_DEFAULTS = (0, True, 1, 1, 1.0, 64)  # of the op, behind bias
MAX_EXPERTS, MAX_K = 2048, 64  # of csrc/topk/gate_plan.h


class TopKGate(NamedTuple):
    weights: torch.Tensor
    indices: torch.Tensor


# torch.export.save writes a NamedTuple by a name.
torch.utils._pytree._register_namedtuple(TopKGate, serialized_type_name="torch_gpuprims.TopKGate")


def topk_gate(
    logits: torch.Tensor,
    k: int,
    *,
    scoring: str = "softmax",
    bias: torch.Tensor | None = None,
    renormalize: bool = True,
    num_groups: int = 1,
    topk_groups: int = 1,
    scale: float = 1.0,
    index_dtype: torch.dtype = torch.int64,
) -> TopKGate:
    """The k experts of each token and the weights of their outputs, from a router's logits.

    Scores s = softmax(logits) or sigmoid(logits) over the experts. Experts are chosen by s + bias, the best
    first; their weights are s without the bias, divided by the sum of the k where `renormalize`, times
    `scale`. With groups, only experts of the best `topk_groups` of `num_groups` groups of consecutive
    experts are chosen from; a group's score is its largest s + bias (softmax) or the sum of its two largest
    (sigmoid).

    Args:
        logits: [..., experts], float32, bfloat16, float16 or float64, any strides; at most 2,048 experts.
        k: experts a token, at most 64 and at most the experts of the kept groups.
        scoring: "softmax" or "sigmoid".
        bias: [experts], float32 or of the logits' dtype: a correction that balances the experts' load. It
            chooses, it does not weigh.
        renormalize: the weights of a token add up to `scale`.
        num_groups: divides the number of experts.
        topk_groups: groups kept, between 1 and `num_groups`.
        scale: factor of the weights, after renormalisation.
        index_dtype: torch.int64 or torch.int32.

    Returns:
        TopKGate(weights, indices), both contiguous [..., k]. Weights are float32, as fused expert kernels
        take them and models compute them, float64 for float64 logits.

    Arithmetic is float32, float64 for float64 logits. Order: NaN is above every number, equal scores go to
    the lowest index. Without a bias the logits themselves are compared: their order is that of the scores,
    without the ties that rounding makes. A row always has k distinct indices in range, whatever its logits.
    With a NaN or a +inf, or nothing but -inf, softmax weights are NaN as in torch.softmax. A logit of -inf
    has score 0. Where the k scores add up to 0 (they underflowed, or are all 0), renormalised weights are 0.

    The gradient reaches the logits, twice if asked, in forward mode too: the selected ones alone where
    `renormalize` or sigmoid, all of them through the softmax's denominator otherwise. The bias and the choice
    itself have none, as in DeepSeek-V3, whose bias follows the load and not the loss.

    Deterministic: a row's bits depend on the row and the options alone, not on the batch. CPU and GPU choose
    the same experts, unless scores (with a bias) or sums of a group differ in their last digits alone; their
    weights agree to about 1e-6 of themselves, not bit for bit, as exp is not the same function on both.

    Cost: one read of the logits, one kernel. Without bias and groups, up to 512 experts and k up to 24 stay
    in registers, and scores are computed of the selected alone. The router is that of Shazeer et al., 2017;
    groups and bias are those of DeepSeek-V2 and DeepSeek-V3 (2024).

    Raises:
        ValueError: unknown `scoring`.
        RuntimeError: anything else is not as above; the message says what and what was given.
        torch.OutOfMemoryError: no memory for the result.

    >>> topk_gate(torch.tensor([[0.0, 1.0, 3.0, 1.0]]), 2)
    TopKGate(weights=tensor([[0.8808, 0.1192]]), indices=tensor([[2, 1]]))
    """
    code = SCORING.get(scoring)
    if code is None:
        raise ValueError(f"topk_gate: scoring must be one of {', '.join(SCORING)}, got {scoring!r}")
    bits = 64 if index_dtype is _INT64 else 32 if index_dtype is torch.int32 else 0  # the op refuses 0
    try:
        if plain(logits, bias):
            args = (logits, k, bias, code, renormalize, num_groups, topk_groups, scale, bits)
            if bias is None and args[3:] == _DEFAULTS:
                args = (logits, k)  # type: ignore[assignment]  # every argument costs 0.1 us
            guard = below_autograd()
            try:
                result = _tuple(TopKGate, _call(_handle, *args))
            finally:
                del guard
        else:
            # Gradients come through a product that is PyTorch's, with the bits of the kernel's. Dynamo makes
            # symbols of floats, which no argument of an op can be, and bits must not depend on compilation.
            args = (logits, k, bias, code, renormalize, num_groups, topk_groups, 1.0, bits)
            weights, indices = _apply(*args) if eager(logits, bias) else _run(*args)
            if torch.compiler.is_dynamo_compiling() or scale != 1:
                weights = weights * scale
            result = TopKGate(weights, indices)
        if _explain.enabled:
            _explain.log("topk_gate", logits, k, bias=bias, num_groups=num_groups, topk_groups=topk_groups)
        return result
    except RuntimeError as error:
        for name, tensor in (("logits", logits), ("bias", bias)):  # no kernel of ours is found, to say so
            if getattr(tensor, "layout", torch.strided) is not torch.strided:
                raise RuntimeError(_LAYOUT.format(name)) from None
        reraise(error)


def _run(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The op for a call that autograd, a transform, a subclass or a tracer may see."""
    if light_autograd(args[0], args[2]):
        return apply(_Function, *args)
    if "torch.distributed.tensor" in sys.modules and not torch.compiler.is_compiling():
        _register_sharding()
    return _op(*args)


# Shapes without data: the words of csrc/topk/gate_checks.h, for sizes that may be symbols -------------------

_LAYOUT = "topk_gate: {} must be a dense tensor, got a sparse layout"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@torch.library.register_fake("gpuprims::topk_gate")
def _fake(
    logits: torch.Tensor,
    k: int,
    bias: torch.Tensor | None = None,
    scoring: int = 0,
    renormalize: bool = True,
    num_groups: int = 1,
    topk_groups: int = 1,
    scale: float = 1.0,
    index_bits: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    check = torch._check
    check(logits.layout is torch.strided, lambda: _LAYOUT.format("logits"))
    kinds = "float32, bfloat16, float16 or float64"
    check(logits.dtype in _DTYPES, lambda: f"topk_gate: logits must be {kinds}, got {_name(logits.dtype)}")
    check(logits.dim() > 0, lambda: "topk_gate: logits must have at least 1 dimension, got 0")
    codes = "0 (softmax) or 1 (sigmoid)"
    check(scoring in (0, 1), lambda: f"topk_gate: scoring must be {codes}, got {scoring}")
    n = logits.shape[-1]
    check(n <= MAX_EXPERTS, lambda: f"topk_gate: at most {MAX_EXPERTS} experts are supported, got {n}")

    def groups_words() -> str:
        return f"topk_gate: num_groups must divide the {n} experts, got {num_groups}"

    check(num_groups >= 1, groups_words)
    if num_groups != 1:
        check(n % num_groups == 0, groups_words)
    check(
        1 <= topk_groups <= num_groups,
        lambda: f"topk_gate: topk_groups must be between 1 and {num_groups} (num_groups), got {topk_groups}",
    )
    kept = n if topk_groups == num_groups else n // num_groups * topk_groups

    def k_words() -> str:
        return f"topk_gate: k must be between 0 and {kept} (the experts of the kept groups), got {k}"

    check(k >= 0, k_words)
    check(k <= kept, k_words)
    check(k <= MAX_K, lambda: f"topk_gate: k must be at most {MAX_K}, got {k}")
    if bias is not None:
        check(bias.layout is torch.strided, lambda: _LAYOUT.format("bias"))
        wanted = "float32" if logits.dtype == torch.float32 else f"float32 or {_name(logits.dtype)}"
        check(
            bias.dtype in (torch.float32, logits.dtype),
            lambda: f"topk_gate: bias must be {wanted}, got {_name(bias.dtype)}",
        )

        def bias_words() -> str:
            return f"topk_gate: bias must have shape [{n}], got {list(bias.shape)}"

        check(bias.dim() == 1, bias_words)
        check(bias.shape[0] == n, bias_words)
        check(bias.device == logits.device, lambda: "topk_gate: bias must be on the device of logits")
    check(index_bits in (64, 32), lambda: "topk_gate: index_dtype must be int64 or int32")
    shape = [*logits.shape[:-1], k]
    real = torch.float64 if logits.dtype == torch.float64 else torch.float32
    index_dtype = torch.int64 if index_bits == 64 else torch.int32
    return logits.new_empty(shape, dtype=real), logits.new_empty(shape, dtype=index_dtype)


# Gradients ------------------------------------------------------------------------------------------------
#
# With w = scale * s / t over the selected, t their sum or 1, and g the gradient of w:
#   softmax, renormalised    dx_j = w_j (g_j - sum_i g_i w_i / scale)           selected j; others 0
#   sigmoid, renormalised    dx_j = w_j (g_j - sum_i g_i w_i / scale)(1 - s_j)  selected j; others 0
#   sigmoid                  dx_j = w_j g_j (1 - s_j)                           selected j; others 0
#   softmax                  dx_j = w_j g_j [j selected] - s_j sum_i g_i w_i    all j
# The first needs the k weights alone; the others read the logits again rather than keep scores of them.


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, _, _, scoring, renormalize, _, _, scale, _ = inputs
    weights, indices = output
    ctx.sigmoid, ctx.renormalize, ctx.scale = scoring == 1, renormalize, scale
    ctx.shape, ctx.dtype = logits.shape, logits.dtype
    ctx.mark_non_differentiable(indices)
    kept = (weights, indices) if scoring == 0 and renormalize else (weights, indices, logits)
    ctx.save_for_backward(*kept)
    ctx.save_for_forward(*kept)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: torch.Tensor | None, _: None) -> tuple[torch.Tensor | None, ...]:
    """The formulas above, of aten ops alone, so that it differentiates and compiles in turn."""
    nothing = (None,) * 8
    if grad is None:
        return None, *nothing
    weights, indices, *saved = ctx.saved_tensors
    indices = indices.long()
    shared = grad * weights
    if ctx.renormalize:
        inverse = 1.0 / ctx.scale if ctx.scale else 0.0
        chosen = shared - weights * (shared.sum(-1, keepdim=True) * inverse)
    else:
        chosen = shared
    if ctx.sigmoid:
        chosen = chosen * torch.sigmoid(-saved[0].gather(-1, indices).to(weights.dtype))
    if ctx.sigmoid or ctx.renormalize:
        return chosen.new_zeros(ctx.shape).scatter(-1, indices, chosen).to(ctx.dtype), *nothing
    scores = torch.softmax(saved[0], -1, dtype=weights.dtype)
    whole = (scores * -shared.sum(-1, keepdim=True)).scatter_add(-1, indices, chosen)
    return whole.to(ctx.dtype), *nothing


def _jvp(ctx: Any, tangent: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, None]:
    """The same formulas the other way: of a tangent dx, w_j (a_j dx_j - what the denominator takes)."""
    weights, indices, *saved = ctx.saved_tensors
    if tangent is None:  # that of a bias alone
        return torch.zeros_like(weights), None
    indices, tangent = indices.long(), tangent.to(weights.dtype)
    moved = tangent.gather(-1, indices)
    if ctx.sigmoid:
        moved = moved * torch.sigmoid(-saved[0].gather(-1, indices).to(weights.dtype))
    if ctx.renormalize:
        inverse = 1.0 / ctx.scale if ctx.scale else 0.0
        moved = moved - (weights * moved).sum(-1, keepdim=True) * inverse
    elif not ctx.sigmoid:
        scores = torch.softmax(saved[0], -1, dtype=weights.dtype)
        moved = moved - (scores * tangent).sum(-1, keepdim=True)
    return weights * moved, None


# Batching: the new dimension is one more of rows ------------------------------------------------------------


def _vmap(run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    logits, k, bias, *rest = args
    if in_dims[0] is None:
        logits = logits.expand(info.batch_size, *logits.shape)
    else:
        logits = logits.movedim(in_dims[0], 0)
    if bias is None or in_dims[2] is None:
        torch._check(logits.dim() > 1, lambda: "topk_gate: logits must have at least 1 dimension, got 0")
        return run(logits, k, bias, *rest), (0, 0)
    # A bias for each sample: the kernel takes one, so samples are routed one after another.
    results = [run(x, k, b, *rest) for x, b in zip(logits, bias.movedim(in_dims[2], 0), strict=True)]
    return tuple(torch.stack(part) for part in zip(*results, strict=True)), (0, 0)


_Function, _apply = gradients(_op, _run, _setup_context, _backward, _vmap, jvp_of=_jvp)


# DTensor ----------------------------------------------------------------------------------------------------


@functools.cache
def _register_sharding() -> None:
    """Any dimension but that of the experts may be sharded. Imports DTensor, which takes a second."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(_op)
    def _sharding(logits, k, bias=None, *rest):  # type: ignore[no-untyped-def]
        def rule(place: Any) -> tuple[list[Any], list[Any]]:
            added = None if bias is None else Replicate()
            return [place, place], [place, None, added, *[None] * len(rest)]

        return [rule(Replicate()), *(rule(Shard(d)) for d in range(logits.ndim - 1))]
