"""segment_topk: the k largest or smallest elements of each segment; kernels are csrc/topk/segment_*."""

from collections.abc import Callable
from typing import Any

import torch

from . import _explain
from . import _native as _native
from ._dispatch import apply, below_autograd, eager, gradients, light_autograd, plain, reraise
from .segments import Segments
from .topk import _DTYPES, TopK, _name

_op = torch.ops.gpuprims.segment_topk.default


def segment_topk(
    values: torch.Tensor,
    indptr: torch.Tensor | Segments,
    k: int | torch.Tensor,
    *,
    max_k: int | None = None,
    largest: bool = True,
    index_dtype: torch.dtype = torch.int64,
) -> TopK:
    """The k largest (or smallest) elements of each segment of a flat tensor, in order, with their indices.

    Args:
        values: [n]; float64/32/16, bfloat16, (u)int8/16/32/64 or bool.
        indptr: CSR offsets [segments + 1], int32 or int64, from 0 to n, never decreasing; or Segments, which
            were validated when they were made. Segments may be empty, or of any length.
        k: how many; or how many of each segment, int32 or int64 [segments]. A segment gives no more than it
            has: the slots left over are missing.
        max_k: with a tensor k, the width of the result (sizes are the host's, and a tensor's data is not);
            what k asks for beyond it is left out.
        largest: the largest elements; otherwise the smallest.
        index_dtype: torch.int64, or torch.int32 where n is below 2^31.

    Returns:
        TopK(values, indices), [segments, k] (or max_k). Indices are positions in `values`, as those of
        torch_scatter, so that values[indices] are the elements; subtract indptr[:-1, None] for positions
        within segments. Missing slots come last: index -1, value -inf (largest) or +inf, of integers and
        bool the least or greatest. Only the index tells.

    Order: as in topk: NaN of either sign is greater than every number, -0.0 equals +0.0, of equal elements
    the lowest index comes first. The answer is unique: same input, same bits, everywhere.

    Where a raw indptr is not as above, or some k of a tensor is negative, every value of the result is NaN
    (integers: 0) and every index -1; with GPUPRIMS_CHECK=1 it raises RuntimeError. Nothing else is touched.

    Gradients reach the selected elements, double backward and forward mode included. Asynchronous and
    capturable: what the lengths ask for is decided on the device.

    Cost: the elements are read once, long segments by many blocks at a time; segments of 32 elements and
    fewer share a warp. On CUDA k beyond 4,096 takes a further read of the longer segments for each 4,096.
    Workspace on CUDA: at most 5 % of `values` and 1 MiB, for k beyond 4,096 also 16 bytes a segment.

    Raises:
        RuntimeError: sizes, dtypes, layout or devices are not as above; the message says which.
        ValueError: max_k is missing where k is a tensor, or given where it is not.
        torch.OutOfMemoryError: no memory for the result or the workspace.

    >>> segment_topk(torch.tensor([3.0, 9.0, 4.0, 7.0]), torch.tensor([0, 3, 3, 4]), 2)
    TopK(values=tensor([[9., 4.],
            [-inf, -inf],
            [7., -inf]]), indices=tensor([[ 1,  2],
            [-1, -1],
            [ 3, -1]]))
    """
    counts: torch.Tensor | None = None
    width: Any = k
    if isinstance(k, torch.Tensor):
        if max_k is None:
            raise ValueError(
                "segment_topk: max_k, the width of the result, must be given where k is a tensor"
            )
        counts, width = k, max_k
    elif max_k is not None:
        raise ValueError("segment_topk: max_k goes with a tensor k")
    given, promises = indptr, 0
    if isinstance(indptr, Segments):
        segments, indptr = indptr, indptr.indptr
        # Tracers would guard on these numbers; without them the op looks by itself.
        if segments.promises and not torch.compiler.is_compiling():
            promises = segments.promises
            if values.dim() == 1 and values.shape[0] != segments.numel:
                raise RuntimeError(
                    f"segment_topk: values must have {segments.numel} elements (the end of the segments), "
                    f"got {values.shape[0]}"
                )
    bits = 64 if index_dtype is torch.int64 else 32 if index_dtype is torch.int32 else 0  # refused
    args = (values, indptr, width, counts, largest, bits, promises)
    try:
        if plain(values, indptr, counts):
            with below_autograd():
                result = TopK(*_op(*args))
        elif eager(values, indptr, counts):
            result = TopK(*_apply(*args))
        else:
            result = TopK(*_run(*args))
        if _explain.enabled:
            _explain.log("segment_topk", values, given, k, max_k=max_k)
        return result
    except RuntimeError as error:
        for name, tensor in (("values", values), ("indptr", indptr), ("k", k)):  # no kernel of ours is found
            if getattr(tensor, "layout", torch.strided) is not torch.strided:
                raise RuntimeError(_LAYOUT.format(name)) from None
        reraise(error)


def _run(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The op for a call that autograd, a transform, a subclass or a tracer may see."""
    if light_autograd(args[0], args[1], args[3]):
        return apply(_Function, *args)
    return _op(*args)


# Shapes without data: the words of csrc/topk/segment_checks.h ----------------------------------------------

_LAYOUT = "segment_topk: {} must be a dense tensor, got a sparse layout"


def _check(ok: Any, words: Callable[[], str]) -> None:
    torch._check(ok, lambda: f"segment_topk: {words()}")


def _check_ints(name: str, t: torch.Tensor, values: torch.Tensor) -> None:
    torch._check(t.layout is torch.strided, lambda: _LAYOUT.format(name))
    _check(t.dim() == 1, lambda: f"{name} must have 1 dimension, got {t.dim()}")
    _check(
        t.dtype in (torch.int32, torch.int64), lambda: f"{name} must be int32 or int64, got {_name(t.dtype)}"
    )
    _check(t.device == values.device, lambda: f"{name} must be on the device of values")


def _check_all(
    values: torch.Tensor, indptr: torch.Tensor, k: int, counts: torch.Tensor | None, index_bits: int
) -> None:
    torch._check(values.layout is torch.strided, lambda: _LAYOUT.format("values"))
    _check(values.dtype in _DTYPES, lambda: f"dtype {_name(values.dtype)} is not supported")
    _check(values.dim() == 1, lambda: f"values must have 1 dimension, got {values.dim()}")
    _check_ints("indptr", indptr, values)
    _check(indptr.shape[0] >= 1, lambda: "indptr must have at least 1 element, got 0")
    _check(k >= 0, lambda: f"k must not be negative, got {k}")
    segments = indptr.shape[0] - 1
    if counts is not None:
        _check_ints("k", counts, values)
        have = counts.shape[0]
        _check(
            have == segments,
            lambda: f"k must have {segments} elements (the number of segments), got {have}",
        )
    _check(index_bits in (64, 32), lambda: "index_dtype must be int64 or int32")
    if index_bits == 32:
        n = values.shape[0]
        _check(n < 2**31, lambda: f"index_dtype int32 holds no index of {n} values")


@torch.library.register_fake("gpuprims::segment_topk")
def _fake(
    values: torch.Tensor,
    indptr: torch.Tensor,
    k: int,
    counts: torch.Tensor | None = None,
    largest: bool = True,
    index_bits: int = 64,
    promises: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_all(values, indptr, k, counts, index_bits)
    segments = indptr.shape[0] - 1
    index_dtype = torch.int64 if index_bits == 64 else torch.int32
    return values.new_empty((segments, k)), values.new_empty((segments, k), dtype=index_dtype)


# Gradients --------------------------------------------------------------------------------------------------


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.n = inputs[0].shape[0]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])
    ctx.save_for_forward(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: torch.Tensor | None, _: None) -> tuple[torch.Tensor | None, ...]:
    """Scatters to the selected elements; missing slots go to a last one, which is cut off."""
    nothing = (None,) * 6
    if grad is None:
        return None, *nothing
    (indices,) = ctx.saved_tensors
    n = ctx.n
    at = torch.where(indices < 0, n, indices.long()).reshape(-1)
    return grad.new_zeros(n + 1).scatter(0, at, grad.reshape(-1)).narrow(0, 0, n), *nothing


def _jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> tuple[torch.Tensor, None]:
    (indices,) = ctx.saved_tensors
    wide = torch.cat([tangent, tangent.new_zeros(1)])  # missing slots take the last
    at = torch.where(indices < 0, ctx.n, indices.long()).reshape(-1)
    return wide.gather(0, at).reshape(indices.shape), None


# Batching: the values of the batch lie behind each other, and so do their segments -------------------------


def _vmap(run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    values, indptr, k, counts, largest, bits, _ = args
    size = info.batch_size
    one = [a if d is None else a.select(d, 0) for a, d in zip(args, in_dims, strict=True)]
    _check_all(one[0], one[1], k, one[3], bits)  # a sample's shapes, which those of the batch hide
    if in_dims[1] is not None:  # each has its own offsets: a loop
        parts = [tuple(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True))
                 for i in range(size)]  # fmt: skip
        results = [run(*part) for part in parts]
        return tuple(torch.stack(column) for column in zip(*results, strict=True)), (0, 0)
    values = values.expand(size, -1) if in_dims[0] is None else values.movedim(in_dims[0], 0)
    n, segments = values.shape[1], indptr.shape[0] - 1
    if counts is not None:
        counts = counts.expand(size, -1) if in_dims[3] is None else counts.movedim(in_dims[3], 0)
        counts = counts.reshape(-1)
    # Bad offsets stay bad: the first and the last of all are those of indptr.
    shift = torch.arange(size, device=values.device)[:, None] * n
    offsets = torch.cat([(indptr[:-1].long() + shift).reshape(-1), indptr[-1:].long() + (size - 1) * n])
    best, indices = run(values.reshape(-1), offsets, k, counts, largest, 64, 0)
    best, indices = best.reshape(size, segments, k), indices.reshape(size, segments, k)
    indices = torch.where(indices < 0, -1, indices - shift[:, :, None])
    return (best, indices if bits == 64 else indices.int()), (0, 0)


_Function, _apply = gradients(_op, _run, _setup_context, _backward, _vmap, jvp_of=_jvp)
