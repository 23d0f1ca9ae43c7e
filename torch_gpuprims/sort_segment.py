"""segment_sort: the segments of a vector, each in order; kernels are in csrc/sort."""

from typing import NamedTuple

import torch

from . import _explain, sort_grad
from ._dispatch import below_autograd, direct, plain
from .segments import Segments
from .sort import _bits, _raise, check_payload, gathered, movable, viewed

_call, _handle = direct(torch.ops.gpuprims.segment_sort.default)


#: Floats that have no negative zero; its bits are their one NaN.
_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


class SegmentSort(NamedTuple):
    keys: torch.Tensor
    indices: torch.Tensor
    values: torch.Tensor | None


# torch.export.save writes a NamedTuple by a name.
torch.utils._pytree._register_namedtuple(SegmentSort, serialized_type_name="torch_gpuprims.SegmentSort")


def segment_sort(
    keys: torch.Tensor,
    indptr: torch.Tensor | Segments,
    values: torch.Tensor | None = None,
    *,
    descending: bool = False,
    index_dtype: torch.dtype = torch.int64,
) -> SegmentSort:
    """Sort each segment keys[indptr[i]:indptr[i + 1]], stably, with no wait for the device.

    Args:
        keys: [n], any dtype that `sort` takes.
        indptr: [segments + 1], int32 or int64, rising from 0 to n; segments may be empty, and of any mix of
            lengths. It is read on the device: the call can be captured in a CUDA graph and replayed with
            other segments. Or Segments, which were validated when they were made.
        values: payload [n, ...] of any dtype to bring into the same order.
        descending: the largest first; equal keys keep their order.
        index_dtype: torch.int64, or torch.int32 where n is below 2^31.

    Returns:
        SegmentSort(keys, indices, values): indices are positions in the whole of keys; values is None where
        none were given. Where a raw indptr is wrong, keys and values are NaN (integers: 0) and indices -1;
        with GPUPRIMS_CHECK=1 it raises RuntimeError. Nothing else is touched.

    Order and dtypes as `sort`: the answer is unique, same input, same bits. Gradients reach keys and values
    through the permutation, double backward and forward mode included.

    Cost on CUDA: segments that fit a block's shared memory are read and written once, the others are sorted
    together by segment number and key, as long rows of `sort`. Workspace: a second buffer of keys and 32-bit
    indices, where some segment may be that long. A payload is gathered, and with a raw indptr looked at once
    more.

    Raises:
        RuntimeError: sizes, dtypes, layout or devices are not as above; the message says which.
        torch.OutOfMemoryError: no memory for the result or the workspace.

    >>> segment_sort(torch.tensor([2, 1, 9, 8, 7]), torch.tensor([0, 2, 5])).keys
    tensor([1, 2, 7, 8, 9])
    """
    given, checked = indptr, False
    if isinstance(indptr, Segments):
        segments, indptr = indptr, indptr.indptr
        # Tracers would guard on the number of elements; without it the op looks by itself.
        if segments.promises and not torch.compiler.is_compiling():
            checked = True
            if keys.dim() == 1 and keys.shape[0] != segments.numel:
                raise RuntimeError(
                    f"segment_sort: keys must have {segments.numel} elements (the end of the segments), "
                    f"got {keys.shape[0]}"
                )
    if values is not None and keys.dim() == 1:  # the op refuses other keys
        check_payload("segment_sort", "values", values, keys)
    bits = _bits(index_dtype)
    try:
        if plain(keys, indptr):
            guard = below_autograd()
            try:
                ordered, order = _call(_handle, keys, indptr, descending, bits)
            finally:
                del guard
        else:
            ordered, order = sort_grad.run_segment_sort(keys, indptr, descending, bits)
    except RuntimeError as error:
        return _raise(error, "segment_sort", keys=keys, indptr=indptr)
    if _explain.enabled:
        _explain.log("segment_sort", keys, given, index_dtype=index_dtype)
    if values is None:
        return SegmentSort(ordered, order, None)
    if checked:
        return SegmentSort(ordered, order, gathered(values, order))
    return SegmentSort(ordered, order, _gathered_or_filled(values, order))


def _gathered_or_filled(values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """values[order]; NaN or 0 instead where the op found indptr wrong, which left `order` full of -1."""
    moved = movable(values).index_select(0, order.clamp_min(0))
    bad = (order[:1] < 0).view(-1, *[1] * (moved.dim() - 1))
    fill: float = False
    if values.dtype in _FNUZ:
        fill = -128
    elif values.is_floating_point() or values.is_complex():
        fill = torch.nan if moved.dtype == values.dtype else -1  # all bits set: NaN
    return viewed(torch.where(bad, fill, moved), values.dtype)
