"""segment_reduce and segment_expand over CSR offsets; kernels are csrc/reduce/segment_*."""

import torch

from . import _explain
from . import _native as _native
from ._dispatch import bare_apply, below_autograd, eager, plain, reraise
from .reduce_segment_fake import OPS
from .reduce_segment_grad import EagerReduce, expand_op, reduce_op, run_expand, run_reduce
from .segments import Segments

_CODES = {name: code for code, name in enumerate(OPS)}
_apply_reduce = bare_apply(EagerReduce)


def segment_reduce(values: torch.Tensor, indptr: torch.Tensor | Segments, op: str = "sum") -> torch.Tensor:
    """The sum, mean, maximum, minimum, product or logsumexp of each segment of a tensor's first dimension.

    Args:
        values: [n] or [n, ...]; float64/32/16, bfloat16, (u)int8/16/32/64 or bool.
        indptr: CSR offsets [segments + 1], int32 or int64, from 0 to n, never decreasing; or Segments, which
            were validated when they were made. Segments may be empty, or of any length.
        op: "sum", "mean", "max", "min", "prod" or "logsumexp".

    Returns:
        [segments] or [segments, ...]. The dtype is that of values; of a sum or product of integers it is
        int64 (uint64 of uint64). 16-bit floats add up in float32, integers in 64 bits. An empty segment gives
        0 (sum), NaN (mean), 1 (prod), -inf (max, logsumexp) or +inf (min); of integers the least or greatest
        value.

    NaN propagates. A maximum or minimum that is zero is +0.0.

    Deterministic: the bits of a segment depend on its values alone, not on its place, its neighbours, or the
    device for sum and mean. A flat segment's sum has the bits of `reduce` of the same values; rows [n, ...]
    are added up by a tree of their own (docs/reduce_ladder.md says which).

    Where a raw indptr is not as above, every result is NaN (integers: 0); with GPUPRIMS_CHECK=1 it raises
    RuntimeError. Nothing outside the tensors is touched.

    Gradients of all ops, double backward included (of prod: two derivatives, zeros included); those of max
    and min go to the first extremum of the segment, where torch.segment_reduce spreads them over ties.

    Cost: values and offsets are read once. Flat segments of up to 32 values are a thread's work, of up to
    4,096 a warp's, longer ones are cut; in rows a thread has a column. Two launches and a memset, one launch
    with Segments that are all short. Workspace on CUDA: at most 2 % of the input (of rows: 4 %), and 1 KiB.

    Raises:
        ValueError: op is not one of the above.
        RuntimeError: sizes, dtypes, layout or devices are not as above; the message says which.
        torch.OutOfMemoryError: no memory for the result or the workspace.

    >>> segment_reduce(torch.tensor([3.0, 9.0, 4.0, 7.0]), torch.tensor([0, 3, 3, 4]))
    tensor([16.,  0.,  7.])
    >>> segment_reduce(torch.tensor([3.0, 9.0, 4.0, 7.0]), torch.tensor([0, 3, 3, 4]), "max")
    tensor([9., -inf, 7.])
    """
    if op not in _CODES:
        raise ValueError(f"segment_reduce: op must be one of {', '.join(OPS)}, got {op!r}")
    given = indptr
    offsets, promises = _offsets("segment_reduce", values, indptr)
    shape = values.shape
    flat = values.flatten(1) if values.dim() > 2 else values
    try:
        args = (flat, offsets, _CODES[op], promises)
        if plain(flat, offsets):
            with below_autograd():
                out = reduce_op(*args)
        elif eager(flat, offsets):
            out = _apply_reduce(*args)
        else:
            out = run_reduce(*args)
        if _explain.enabled:
            _explain.log("segment_reduce", values, given, op)
        return out.reshape(out.shape[0], *shape[1:]) if len(shape) > 2 else out
    except RuntimeError as error:
        reraise(error, "segment_reduce", values=values, indptr=offsets)


def segment_expand(values: torch.Tensor, indptr: torch.Tensor | Segments, n: int) -> torch.Tensor:
    """The row of each element's segment: the transpose of segment_reduce's sum.

    Args:
        values: [segments] or [segments, ...], of any dtype that segment_reduce takes.
        indptr: CSR offsets [segments + 1], int32 or int64, from 0 to n, never decreasing; or Segments.
        n: the number of elements (sizes are the host's; the last offset is the device's).

    Returns:
        [n] or [n, ...]: row i is values[s], where segment s holds element i. Where a raw indptr is not as
        above: NaN (integers: 0); with GPUPRIMS_CHECK=1 RuntimeError.

    Gradient: segment_reduce's sum, deterministic. Cost: values and offsets are read once, the result is
    written once; a raw indptr is read a second time.

    >>> segment_expand(torch.tensor([3.0, 9.0, 4.0]), torch.tensor([0, 3, 3, 4]), 4)
    tensor([3., 3., 3., 4.])
    """
    promises = 0
    offsets = indptr.indptr if isinstance(indptr, Segments) else indptr
    if isinstance(indptr, Segments) and indptr.promises and not torch.compiler.is_compiling():
        if indptr.numel != n:
            raise RuntimeError(f"segment_expand: n must be {indptr.numel} (the end of the segments), got {n}")
        promises = indptr.promises
    shape = values.shape
    flat = values.flatten(1) if values.dim() > 2 else values
    try:
        args = (flat, offsets, n, promises)
        if plain(flat, offsets):
            with below_autograd():
                out = expand_op(*args)
        else:
            out = run_expand(*args)
        return out.reshape(n, *shape[1:]) if len(shape) > 2 else out
    except RuntimeError as error:
        reraise(error, "segment_expand", values=values, indptr=offsets)


def _offsets(name: str, values: torch.Tensor, indptr: torch.Tensor | Segments) -> tuple[torch.Tensor, int]:
    if not isinstance(indptr, Segments):
        return indptr, 0
    # Tracers would guard on these numbers; without them the op looks by itself.
    if indptr.promises and not torch.compiler.is_compiling():
        if values.dim() > 0 and values.shape[0] != indptr.numel:
            raise RuntimeError(
                f"{name}: values must have {indptr.numel} rows (the end of the segments), "
                f"got {values.shape[0]}"
            )
        return indptr.indptr, indptr.promises
    return indptr.indptr, 0
