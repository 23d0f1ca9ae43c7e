"""Sorting: rows, keys alone, keys with payloads; CPU and CUDA kernels are in csrc/sort."""

import functools
import sys
from typing import Any, NamedTuple

import torch

from . import _explain, sort_grad
from . import sort_fake as sort_fake
from ._dispatch import below_autograd, direct, eager, forward_ad, plain, reraise

_ops = torch.ops.gpuprims
_call, _sort_handle = direct(_ops.sort.default)
_, _argsort_handle = direct(_ops.argsort.default)
_, _keys_handle = direct(_ops.sort_keys.default)
_tuple = tuple.__new__
_INT64 = torch.int64


class Sort(NamedTuple):
    values: torch.Tensor
    indices: torch.Tensor


# torch.export.save writes a NamedTuple by a name.
torch.utils._pytree._register_namedtuple(Sort, serialized_type_name="torch_gpuprims.Sort")


def _bits(index_dtype: torch.dtype) -> int:
    return 64 if index_dtype is _INT64 else 32 if index_dtype is torch.int32 else 0  # the op refuses 0


def _raise(error: RuntimeError, op: str, **tensors: Any) -> Any:
    for name, tensor in tensors.items():  # the dispatcher finds no kernel before ours can say so
        if getattr(tensor, "layout", torch.strided) is not torch.strided:
            raise RuntimeError(f"{op}: {name} must be a dense tensor, got a sparse layout") from None
    reraise(error)


def sort(
    input: torch.Tensor,
    dim: int = -1,
    descending: bool = False,
    stable: bool = True,
    *,
    index_dtype: torch.dtype = torch.int64,
    out: Any = None,
) -> Sort:
    """The elements of each row along `dim` in order, with their indices. Always stable.

    Swaps for torch.sort, with NaN and zero made definite, every integer width, and int32 indices.

    Args:
        input: tensor of any shape and strides; float64/32/16, bfloat16, (u)int8/16/32/64 or bool.
        dim: the dimension to sort.
        descending: the largest first; equal elements keep their order, as in
            torch.sort(descending=True, stable=True).
        stable: accepted as in torch.sort. The sort always is: that costs nothing more.
        index_dtype: torch.int64, or torch.int32 where the dimension has fewer than 2^31 elements.

    Returns:
        Sort(values, indices), both contiguous, of input's shape. Values are input's own bits.

    Order: NaN of either sign is greater than every number, -0.0 equals +0.0, and of equal elements the one
    with the lowest index comes first. The answer is thus unique: same input, same bits, on every device, on
    every run and for any number of threads.

    Gradients reach the elements through the permutation (indices have none), double backward and forward
    mode included.

    Cost: rows that fit a multiprocessor are read and written once; longer ones take a pass for each 8 bits
    of the key that vary, a sorted row none. Workspace: a second buffer of keys and 32-bit indices. A
    dimension that is not the last one is copied before and after, as in torch.sort. The
    method for long rows is the radix sort of Adinets & Merrill, "Onesweep" (2022); the rank of a key within
    a tile comes from counters that each thread has to itself, as in Satish, Harris & Garland (IPDPS 2009).

    Raises:
        RuntimeError: dim, dtype, layout or index_dtype is not as above; the message says which and what
            was given.
        TypeError: `out` was given.
        torch.OutOfMemoryError: no memory for the result or the workspace.

    >>> sort(torch.tensor([3.0, 1.0, 2.0, 1.0]))
    Sort(values=tensor([1., 1., 2., 3.]), indices=tensor([1, 3, 2, 0]))
    """
    if out is not None:
        raise TypeError("sort: out= is not supported; use values.copy_(result.values) and the like")
    bits = _bits(index_dtype)
    try:
        if plain(input):
            guard = below_autograd()  # entered when made; `with` would cost 0.3 us more
            try:
                if dim == -1 and not descending and bits == 64:
                    result = _tuple(Sort, _call(_sort_handle, input))  # every argument costs 0.1 us
                else:
                    result = _tuple(Sort, _call(_sort_handle, input, dim, descending, bits))
            finally:
                del guard
        elif eager(input):
            result = _tuple(Sort, sort_grad.eager_sort(input, dim, descending, bits))
        else:
            _may_be_sharded()
            result = Sort(*sort_grad.run_sort(input, dim, descending, bits))
        if _explain.enabled:
            _explain.log("sort", input, dim, index_dtype=index_dtype)
        return result
    except RuntimeError as error:
        return _raise(error, "sort", input=input)


def _argsort(input: torch.Tensor, *args: Any) -> torch.Tensor:
    if plain(input):
        guard = below_autograd()
        try:
            return _call(_argsort_handle, input, *args)
        finally:
            del guard
    _may_be_sharded()
    return _ops.argsort(input.detach() if input.requires_grad else input, *args)


def argsort(
    input: torch.Tensor,
    dim: int = -1,
    descending: bool = False,
    stable: bool = True,
    *,
    index_dtype: torch.dtype = torch.int64,
) -> torch.Tensor:
    """The indices of `sort`, without its values: swaps for torch.argsort(stable=True).

    Arguments, order, errors and cost as `sort`, less the traffic of the values. Indices have no gradient.

    >>> argsort(torch.tensor([3, 1, 2]), descending=True)
    tensor([0, 2, 1])
    """
    try:
        indices = _argsort(input, dim, descending, _bits(index_dtype))
        if _explain.enabled:
            _explain.log("argsort", input, dim, index_dtype=index_dtype)
        return indices
    except RuntimeError as error:
        return _raise(error, "argsort", input=input)


def sort_keys(
    input: torch.Tensor, dim: int = -1, descending: bool = False, *, inplace: bool = False
) -> torch.Tensor:
    """The elements of each row along `dim` in order, without indices: about half the traffic of `sort`.

    Returns a contiguous tensor of input's shape and dtype, with input's own bits. Where elements are equal
    and yet differ in bits, no index tells them apart, so bits decide, repeatably: -0.0 comes before +0.0,
    and of NaNs, which come last, the positive before the negative ones (the other way round where
    descending). Arguments, dtypes and errors as `sort`. The backward pass sorts once more, for the indices.

    inplace: input, which must need no gradient and have no tangent, is sorted where it lies and returned.
    Rows that fit a multiprocessor then take no memory at all, longer ones a second buffer of keys and what
    the passes count: 5 % of it where keys have 4 or 8 bytes and rows 100,000 elements, else at most 18 %
    (long rows of 1-byte keys 8 %, from 2^30 elements 17 %). 8-byte keys take a pass for each of their 8
    bytes that vary. A dimension that is not the last of a contiguous tensor is copied. If the call is
    interrupted, input may be left in any order.

    >>> sort_keys(torch.tensor([3, 1, 2], dtype=torch.uint8))
    tensor([1, 2, 3], dtype=torch.uint8)
    """
    if inplace:
        return _sort_keys_in_place(input, dim, descending)
    try:
        if plain(input):
            guard = below_autograd()
            try:
                keys = _call(_keys_handle, input, dim, descending)
            finally:
                del guard
        else:
            _may_be_sharded()
            keys = sort_grad.run_sort_keys(input, dim, descending)
        if _explain.enabled:
            _explain.log("sort_keys", input, dim)
        return keys
    except RuntimeError as error:
        return _raise(error, "sort_keys", input=input)


def _needs_gradient(input: torch.Tensor) -> bool:
    """Of either mode. An op in place has neither: it would leave the tangent in the order of the input."""
    if input.requires_grad and torch.is_grad_enabled():
        return True
    if forward_ad._current_level < 0:
        return False
    while torch._C._functorch.is_batchedtensor(input):  # vmap has no rule for unpack_dual
        input = torch._C._functorch.get_unwrapped(input)
    return forward_ad.unpack_dual(input).tangent is not None


def _sort_keys_in_place(input: torch.Tensor, dim: int, descending: bool) -> torch.Tensor:
    if _needs_gradient(input):
        raise RuntimeError("sort_keys: inplace needs an input that requires no gradient")
    last = dim in (-1, max(input.dim() - 1, 0))  # other dims are checked by sort_keys
    if input.layout is not torch.strided or not last or not input.is_contiguous():
        return input.copy_(sort_keys(input, dim, descending))
    try:
        _ops._sort_keys_(input, descending)
        if not torch.compiler.is_compiling():  # compiled code counts what it writes
            torch.autograd.graph.increment_version(input)
        if _explain.enabled:
            _explain.log("sort_keys", input, dim, descending, inplace=True)
        return input
    except RuntimeError as error:
        return _raise(error, "sort_keys", input=input)


def check_payload(op: str, name: str, payload: torch.Tensor, keys: torch.Tensor) -> None:
    """Raises where a payload [n, ...] does not go with keys [n]."""
    if payload.layout is not torch.strided:
        raise RuntimeError(f"{op}: {name} must be a dense tensor, got a sparse layout")
    shape = list(payload.shape)
    if not shape or shape[0] != keys.shape[0]:
        raise RuntimeError(f"{op}: {name} must have the length of keys ({keys.shape[0]}), got shape {shape}")
    if payload.device != keys.device:
        raise RuntimeError(f"{op}: {name} must be on the device of keys")


# Dtypes that PyTorch has kernels for on every device; others move as integers of their size.
_COMMON = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128}
    | {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool}
)
_SAME_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def movable(payload: torch.Tensor) -> torch.Tensor:
    """The payload itself, or its bits in a dtype that can be gathered."""
    return viewed(payload, payload.dtype if payload.dtype in _COMMON else _SAME_SIZE[payload.element_size()])


def viewed(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return t if t.dtype == dtype else t.view(dtype)  # a view as another dtype has no gradient


def gathered(payload: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """payload[order], for a payload [n, ...] of any dtype."""
    return viewed(movable(payload).index_select(0, order), payload.dtype)


def sort_by_key(
    keys: torch.Tensor,
    *values: torch.Tensor,
    begin_bit: int = 0,
    end_bit: int | None = None,
    descending: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Sort keys, stably, and bring any number of payloads into the same order.

    Args:
        keys: [n], any dtype that `sort` takes.
        values: payloads [n, ...] of any dtype and trailing shape, on the device of keys.
        begin_bit, end_bit: only bits [begin_bit, end_bit) of the key count (end_bit None: all above). Bit 0
            is the least significant bit of the key as an unsigned integer in the order of `sort`: the sign
            bit of signed integers is flipped, so it counts as it should; meant for integer keys.
        descending: the largest first; equal keys keep their order.

    Returns:
        (keys, *values), new tensors. Gradients reach keys and payloads through the permutation.

    Cost: `sort`, then one gather for each payload; with some bits alone `argsort`, and a gather for keys too.

    Raises:
        RuntimeError: keys are not one-dimensional or of another dtype or layout, a payload's length, layout
            or device differs, or bits are out of range.
        torch.OutOfMemoryError: no memory for the result or the workspace.

    >>> sort_by_key(torch.tensor([2, 1]), torch.tensor(["ab".index(c) for c in "ab"]))
    (tensor([1, 2]), tensor([1, 0]))
    """
    if keys.dim() != 1:
        raise RuntimeError(f"sort_by_key: keys must have 1 dimension, got {keys.dim()}")
    for at, payload in enumerate(values):
        check_payload("sort_by_key", f"payload {at}", payload, keys)
    if end_bit is not None and end_bit < 0:  # -1 is the op's own word for all
        width = 8 * keys.element_size()
        raise RuntimeError(
            f"sort_by_key: begin_bit and end_bit must satisfy 0 <= begin_bit <= end_bit <= {width}, "
            f"got {begin_bit} and {end_bit}"
        )
    try:
        if begin_bit == 0 and end_bit is None:
            sorted_keys, order = sort(keys, 0, descending)
        else:
            order = _argsort(keys, 0, descending, 64, begin_bit, -1 if end_bit is None else end_bit)
            sorted_keys = gathered(keys, order)
            if _explain.enabled:
                _explain.log("sort_by_key", keys, *values, begin_bit=begin_bit, end_bit=end_bit)
    except RuntimeError as error:
        raise type(error)(_renamed(str(error))) from None
    return (sorted_keys, *(gathered(payload, order) for payload in values))


def _renamed(words: str) -> str:
    """An op's message in the name of the function that was called."""
    for name in ("argsort: ", "sort: "):
        if words.startswith(name):
            words = f"sort_by_key: {words[len(name) :]}"
    return words.replace("sort_by_key: input", "sort_by_key: keys")


@functools.cache
def _register_sharding() -> None:
    """Any dimension but the sorted one may be sharded. Imports DTensor, which takes a second."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    for op, results in ((_ops.sort.default, 2), (_ops.argsort.default, 1), (_ops.sort_keys.default, 1)):
        rest = [None] * (len(op._schema.arguments) - 1)

        def _sharding(input, dim=-1, *_, results=results, rest=rest):  # type: ignore[no-untyped-def]
            places = [Replicate(), *(Shard(d) for d in range(input.ndim) if d != dim % max(input.ndim, 1))]
            return [([place] * results, [place, *rest]) for place in places]

        register_sharding(op)(_sharding)


def _may_be_sharded() -> None:
    """For a call that a subclass of Tensor may see."""
    if "torch.distributed.tensor" in sys.modules and not torch.compiler.is_compiling():
        _register_sharding()
