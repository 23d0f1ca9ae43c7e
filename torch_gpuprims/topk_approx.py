"""approx_topk: most of the k largest elements, with an expected recall; kernels in csrc/topk/approx*."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import _explain
from ._dispatch import apply, below_autograd, eager, gradients, light_autograd, plain, reraise
from .topk import _LAYOUT, TopK, _check_k, _fake, topk

_op = torch.ops.gpuprims.approx_topk.default


def approx_topk(
    input: torch.Tensor, k: int, recall_target: float = 0.95, dim: int = -1, largest: bool = True
) -> TopK:
    """The k largest (or smallest) elements that one look at each bucket finds, in order, with their indices.

    Args:
        input: tensor of any shape and strides; the dtypes of topk.
        k: how many, between 0 and the size of `dim`.
        recall_target: the share of the true k to be found at least, in expectation over the positions of the
            winners; above 0 and at most 1. 1 asks for the exact answer.
        dim: the dimension to select from.
        largest: the largest elements; otherwise the smallest.

    Returns:
        TopK(values, indices), contiguous, with k in place of the size of `dim`. Values are input's own bits,
        in order; every one is an element of its row, and no index repeats. The largest is always there.

    Column j is in bucket j mod B; the best K' of each bucket are the candidates, and their exact top k is the
    answer. B and K' are the fewest candidates with E[recall] = 1 - B/k * sum over r > K' of (r - K') *
    Hypergeometric(n, k, n/B)(r) at or above the target (Samaga et al., arXiv 2506.04165); `explain` states
    them. This holds where winners lie at random positions: data with the period B can do worse. Where two
    stages do not pay (k below 256, above 4096 or below n / 64, rows of fewer than 8,192 or more than 65,536
    elements, or more candidates than an eighth of the row), for dtypes of one or eight bytes, and on the CPU,
    the answer is exact.

    NaN is greater than every number, as in topk. Equal elements come in a fixed order that is not that of
    their indices. Deterministic: same input, same bits, on every run; B and K' depend on dtype, n, k and the
    target alone. Gradients reach the selected elements. A dimension that is not the last is copied.

    Cost: one read, and a topk of the candidates; workspace at most an eighth of the row's elements with
    4 bytes more each.

    Raises:
        RuntimeError: recall_target, k, dim, dtype or layout is not as above.
        torch.OutOfMemoryError: no memory for the result or the workspace.

    >>> approx_topk(torch.tensor([1.0, 3.0, 2.0]), 2).indices
    tensor([1, 2])
    """
    rank = input.dim()
    if rank == 0 or not -rank <= dim < rank:
        _check_target(recall_target)
        return topk(input, k, dim, largest)  # the one element, or the error about dim
    last = dim in (-1, rank - 1)
    if not last and not torch.compiler.is_compiling():  # the op would name the last dimension
        _check_target(recall_target)
        _check_k(k, input.shape[dim], dim % rank)
    rows = input if last else input.movedim(dim, -1)
    args = (rows, k, recall_target, largest)
    try:
        if plain(rows):
            with below_autograd():
                values, indices = _op(*args)
        elif eager(rows):
            values, indices = _apply(*args)
        else:
            values, indices = _run(*args)
    except RuntimeError as error:
        if input.layout is not torch.strided:  # no kernel of ours is found, to say so
            raise RuntimeError(_LAYOUT.format("input")) from None
        reraise(error)
    if _explain.enabled:
        _explain.log("approx_topk", input, k, recall_target, dim)
    if last:
        return TopK(values, indices)
    return TopK(values.movedim(-1, dim).contiguous(), indices.movedim(-1, dim).contiguous())


def _run(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The op for a call that autograd, a transform, a subclass or a tracer may see."""
    if light_autograd(args[0]):
        return apply(_Function, *args)
    if "torch.distributed.tensor" in sys.modules and not torch.compiler.is_compiling():
        _register_sharding()
    return _op(*args)


def _check_target(target: float) -> None:
    torch._check(
        0 < target <= 1,
        lambda: f"approx_topk: recall_target must be above 0 and at most 1, got {target:g}",
    )


@torch.library.register_fake("gpuprims::approx_topk")
def _approx_fake(
    input: torch.Tensor, k: int, recall_target: float = 0.95, largest: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_target(recall_target)
    return _fake(input, k)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.shape = inputs[0].shape
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])
    ctx.save_for_forward(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: torch.Tensor | None, _: None) -> tuple[torch.Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    (indices,) = ctx.saved_tensors
    return grad.new_zeros(ctx.shape).scatter(-1, indices, grad), None, None, None


def _jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> tuple[torch.Tensor, None]:
    return tangent.gather(-1, ctx.saved_tensors[0]), None


def _vmap(run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    input, *rest = args
    input = input.movedim(in_dims[0], 0)
    if input.dim() == 1:  # a batch of single elements
        values, indices = run(input[:, None], *rest)
        return (values[:, 0], indices[:, 0]), (0, 0)
    return run(input, *rest), (0, 0)


_Function, _apply = gradients(_op, _run, _setup_context, _backward, _vmap, jvp_of=_jvp)


@functools.cache
def _register_sharding() -> None:
    """Rows may be sharded. Imports DTensor, which takes a second."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(_op)
    def _sharding(input, k, recall_target=0.95, largest=True):  # type: ignore[no-untyped-def]
        places = [Replicate(), *map(Shard, range(input.ndim - 1))]
        return [([place, place], [place, None, None, None]) for place in places]
