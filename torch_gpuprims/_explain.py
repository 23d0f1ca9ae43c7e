"""What a call would do: the algorithm, grid, workspace and bytes that its plan chooses, in one line."""

import ctypes
import logging
import math
import os
import re
from collections.abc import Callable
from typing import Any

import torch

from ._native import library

_log = logging.getLogger("torch_gpuprims")
#: GPUPRIMS_LOG=1, read at import: every call says what it does, at level INFO.
enabled = os.environ.get("GPUPRIMS_LOG", "0") not in ("", "0")
if enabled:
    logging.basicConfig()
    _log.setLevel(logging.INFO)

_H200_SMS = 132  # what a plan is made for where there is no GPU
_ALGOS = (  # topk_algo_name of csrc/topk/plan_types.h
    "", "block_row", "split_row", "sort", "thread_row", "radix", "lanes", "count_row", "warp_row",
    "cluster_row", "part_row",
)  # fmt: skip
# The order of enum Dtype in csrc/common/dtype.h.
_DTYPES = (
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
)  # fmt: skip


def _multiprocessors(tensor: torch.Tensor) -> tuple[int, str]:
    """Of the GPU that the plan is for, and a remark where the tensor is elsewhere."""
    if tensor.is_cuda:
        return torch.cuda.get_device_properties(tensor.device).multi_processor_count, ""
    count = _H200_SMS
    if torch.cuda.is_available():
        count = torch.cuda.get_device_properties(0).multi_processor_count
    return count, f" (on a GPU of {count} multiprocessors; this input is on {tensor.device})"


def _code(op: str, tensor: torch.Tensor) -> int:
    """Of the tensor's dtype; or the error that the op itself gives."""
    if tensor.dtype not in _DTYPES:
        raise RuntimeError(f"{op}: dtype {str(tensor.dtype).removeprefix('torch.')} is not supported")
    return _DTYPES.index(tensor.dtype)


def _text(function: Any, *numbers: Any) -> str:
    text = ctypes.create_string_buffer(512)
    function(*numbers, text, ctypes.c_int64(len(text)))
    return text.value.decode()


def _one_stride(sizes: Any, strides: Any) -> int | None:
    """Of dimensions that are dense among themselves, as row_map of csrc/topk/cuda.cpp sees them."""
    stride, span = 0, None
    for size, step in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if span is None:
            stride = step
        elif step != span:
            return None
        span = step * size
    return stride


def _topk(
    input: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    mask: torch.Tensor | None = None,
    index_dtype: torch.dtype = torch.int64,
    **kwargs: Any,
) -> str:
    from .topk import _check  # which logs through this module

    bits = 64 if index_dtype is torch.int64 else 32 if index_dtype is torch.int32 else 0  # refused
    dim = _check(input, k, dim, mask, bits)
    if input.dim() == 0:
        input, k = input[None], 1  # a slot there is, whatever k
    shape, n = input.shape, input.shape[dim]
    inner = math.prod(shape[dim + 1 :])

    def steps(t: torch.Tensor) -> tuple[int | None, int | None, int]:
        outer = _one_stride(shape[:dim], t.stride()[:dim])
        return outer, _one_stride(shape[dim + 1 :], t.stride()[dim + 1 :]), 1 if n == 1 else t.stride(dim)

    outer, within, step = steps(input)
    apart = 0 if input.movedim(dim, -1).is_contiguous() else 1
    if outer is None or within is None or step != 1:
        apart *= 2
    mask_apart = False
    if mask is not None:
        wide = mask.expand(shape)
        mask_apart = None in steps(wide) and not wide.movedim(dim, -1).is_contiguous()
    # has_vectors there; the address, as far as the storage is aligned, which PyTorch's allocator sees to.
    floats = input.dtype in (torch.float32, torch.float16, torch.bfloat16)
    vectors = floats and largest and mask is None and inner == 1 and apart < 2
    if vectors and outer is not None:
        places = (n, outer, input.storage_offset())
        vectors = all(place * input.element_size() % 16 == 0 for place in places)
    count, where = _multiprocessors(input)
    name = os.environ.get("GPUPRIMS_TOPK_ALGO", "")
    forced = _ALGOS.index(name) if name in _ALGOS else 0
    numbers = map(ctypes.c_int64, (math.prod(shape[:dim]) * inner, n, k, inner))
    options = (count, forced, mask is not None, bits, vectors, apart, mask_apart)
    return _text(library.gpuprims_explain_topk, _code("topk", input), *numbers, *options) + where


def _approx_topk(
    input: torch.Tensor, k: int, recall_target: float = 0.95, dim: int = -1, *args: Any, **kwargs: Any
) -> str:
    from .topk import _check

    sizes = list(input.shape) or [1]
    n = sizes.pop(_check(input, k, dim, None, 64))
    numbers = map(ctypes.c_int64, (math.prod(sizes), n, k))
    name = os.environ.get("GPUPRIMS_APPROX_TOPK_ALGO", "")
    mode = {"exact": 1, "buckets": 2}.get(name, 0)
    target = ctypes.c_double(recall_target)
    where = " (on a GPU; on the CPU the answer is exact)" if input.device.type == "cpu" else ""
    dtype = _code("approx_topk", input)
    return _text(library.gpuprims_explain_approx_topk, dtype, *numbers, target, mode) + where


def _topk_gate(
    logits: torch.Tensor,
    k: int,
    *,
    bias: Any = None,
    num_groups: int = 1,
    topk_groups: int = 1,
    **kwargs: Any,
) -> str:
    n = logits.shape[-1]
    sizes = map(ctypes.c_int64, (math.prod(logits.shape[:-1]), n, k, num_groups, topk_groups))
    dtype = _code("topk_gate", logits)
    _, where = _multiprocessors(logits)
    return _text(library.gpuprims_explain_topk_gate, dtype, *sizes, bias is not None) + where


def _row_place(x: torch.Tensor) -> tuple[Any, Any]:
    """The address of the rows of x [rows, ...] and the bytes between them, as an op that copies rows that are
    not dense reads them."""
    if x.dim() != 2 or not (x.shape[1] <= 1 or x.stride(1) == 1):
        return ctypes.c_int64(0), ctypes.c_int64(x[:1].numel() * x.element_size())
    known = x.device.type != "meta" and not isinstance(x, torch._subclasses.FakeTensor)
    stride = x.stride(0) * x.element_size() if x.shape[0] > 1 else 0
    return ctypes.c_int64(x.data_ptr() if known else 0), ctypes.c_int64(stride)


def _neighbor_aggregate(
    x: torch.Tensor, graph: Any, edge_weight: torch.Tensor | None = None, reduce: str = "sum"
) -> str:
    if edge_weight is not None and edge_weight.dim() == 2 and x.dim() > 2:  # a call a head
        heads = x.shape[1]
        if heads == 0:
            return "neighbor_aggregate: no heads, nothing to launch"
        one = _neighbor_aggregate(x[:, 0], graph, edge_weight[:, 0], reduce)
        return f"{one}; {heads} times, a head each"
    features = math.prod(x.shape[1:])
    count, where = _multiprocessors(x)
    sizes = map(ctypes.c_int64, (graph.num_dst, graph.num_edges, features))
    dtype = _DTYPES.index(x.dtype)
    code = ("sum", "mean", "max", "min").index(reduce)
    call = (code, edge_weight is not None, graph.indices.dtype == torch.int64, *_row_place(x))
    numbers = (graph.promises, count, ctypes.c_int64(graph.num_src), graph._order is not None, *call)
    text = _text(library.gpuprims_explain_aggregate, dtype, *sizes, *numbers)
    return f"{text}; {graph.schedule}{where}"


def _neighbor_attention(x: torch.Tensor, graph: Any, *args: Any, **kwargs: Any) -> str:
    count, where = _multiprocessors(x)
    sizes = map(ctypes.c_int64, (graph.num_dst, graph.num_edges, x.shape[1], x.shape[2]))
    dtype = _DTYPES.index(x.dtype)
    return _text(library.gpuprims_explain_attention, dtype, *sizes, graph.promises, count) + where


def _sddmm(a: torch.Tensor, b: torch.Tensor, graph: Any) -> str:
    _, where = _multiprocessors(a)
    sizes = map(ctypes.c_int64, (graph.num_dst, graph.num_edges, a.shape[1]))
    # Any misalignment of either counts for both.
    places = zip(_row_place(a), _row_place(b), strict=True)
    both = [ctypes.c_int64(mine.value | theirs.value) for mine, theirs in places]
    text = _text(library.gpuprims_explain_sddmm, _DTYPES.index(a.dtype), *sizes, graph.promises, *both)
    return text + where


def _edge_softmax(graph: Any, scores: torch.Tensor) -> str:
    heads = 1 if scores.dim() == 1 else scores.shape[1]
    return _scores(scores, graph, heads, -1, False)


def _gatv2_score(
    x_src: torch.Tensor, x_dst: torch.Tensor, att: torch.Tensor, graph: Any, *args: Any, **kwargs: Any
) -> str:
    every = (x_src, x_dst, att, *[t for t in (*args, kwargs.get("edge")) if isinstance(t, torch.Tensor)])
    aligned = all(t.device.type == "meta" or t.data_ptr() % 16 == 0 for t in every)
    return _scores(x_src, graph, x_src.shape[1], x_src.shape[2], aligned)


def _scores(x: torch.Tensor, graph: Any, heads: int, channels: int, aligned: bool) -> str:
    count, where = _multiprocessors(x)
    sizes = map(ctypes.c_int64, (graph.num_dst, graph.num_edges, heads, channels))
    numbers = (_DTYPES.index(x.dtype), *sizes, aligned, graph.promises, count)
    return _text(library.gpuprims_explain_scores, *numbers) + where


def _segment_topk(values: torch.Tensor, indptr: Any, k: Any, *, max_k: Any = None, **kwargs: Any) -> str:
    counted = isinstance(k, torch.Tensor)
    promises = getattr(indptr, "promises", 0)  # of Segments
    segments = getattr(indptr, "indptr", indptr).shape[0] - 1
    count, where = _multiprocessors(values)
    sizes = map(ctypes.c_int64, (values.shape[0], segments, max_k if counted else k))
    dtype, look = _code("segment_topk", values), counted or not promises & 1
    return _text(library.gpuprims_explain_segment_topk, dtype, *sizes, count, look, promises) + where


def _segment_reduce(values: torch.Tensor, indptr: Any, op: str = "sum") -> str:
    code = ("sum", "mean", "max", "min", "prod", "logsumexp").index(op)  # SegmentOp
    promises = getattr(indptr, "promises", 0)  # of Segments
    segments = getattr(indptr, "indptr", indptr).shape[0] - 1
    count, where = _multiprocessors(values)
    features = math.prod(values.shape[1:])
    vec = 4 if features % 4 == 0 and values.dtype.is_floating_point and values.element_size() < 8 else 1
    sizes = map(ctypes.c_int64, (values.shape[0], segments, features))
    numbers = (_DTYPES.index(values.dtype), code, *sizes, vec, count, not promises & 1, promises)
    return _text(library.gpuprims_explain_segment_reduce, *numbers) + where


_SORT_ALGOS = ("", "warp_row", "block_row", "sweep")


def _number_in(variable: str, most: int) -> int:
    """As atoi, which the library reads it by."""
    found = re.match(r"\s*[+-]?\d+", os.environ.get(variable, "-1"))
    return min(int(found[0]), most) if found else 0


# (algorithm, bits of codes, parts), read at import as the library does.
_name = os.environ.get("GPUPRIMS_SORT_ALGO", "")
_SORT_FORCED = _SORT_ALGOS.index(_name) if _name in _SORT_ALGOS else 0
_SORT_CODES, _SORT_PARTS = _number_in("GPUPRIMS_SORT_CODES", 16), _number_in("GPUPRIMS_SORT_PARTS", 12)


def _sorting(op: str, values: bool, indices: bool) -> Callable[..., str]:
    def text(
        input: torch.Tensor,
        dim: int = -1,
        *args: Any,
        index_dtype: Any = torch.int64,
        inplace: bool = False,
        begin_bit: int = 0,
        end_bit: int | None = None,
        **kwargs: Any,
    ) -> str:
        from .sort_fake import check_bits, check_input  # which imports modules that log through this one

        n = check_input(op, input, dim)
        bits = check_bits(op, input, begin_bit, -1 if end_bit is None else end_bit)
        count, where = _multiprocessors(input)
        sizes = map(ctypes.c_int64, (input.numel() // n if n else 0, n))
        lies = inplace and input.is_contiguous() and dim % max(input.dim(), 1) == max(input.dim() - 1, 0)
        wanted = (values, indices, 32 if index_dtype is torch.int32 else 64, *bits)
        set_to = (_SORT_FORCED, lies, _SORT_CODES, _SORT_PARTS)
        dtype = _DTYPES.index(input.dtype)
        return _text(library.gpuprims_explain_sort, dtype, *sizes, *wanted, count, *set_to) + where

    return text


def _sort_by_key(
    keys: torch.Tensor, *values: Any, begin_bit: int = 0, end_bit: int | None = None, **kwargs: Any
) -> str:
    sort = _sorting("sort_by_key", begin_bit == 0 and end_bit is None, True)
    text = sort(keys, begin_bit=begin_bit, end_bit=end_bit)
    return f"sort_by_key: {text}, then a gather for each payload"


def _segment_sort(
    keys: torch.Tensor, indptr: Any, values: Any = None, *, index_dtype: Any = torch.int64, **kwargs: Any
) -> str:
    segments = getattr(indptr, "indptr", indptr).shape[0] - 1  # of Segments or a tensor
    count, where = _multiprocessors(keys)
    sizes = map(ctypes.c_int64, (keys.shape[0], segments))
    dtype, bits = _DTYPES.index(keys.dtype), 32 if index_dtype is torch.int32 else 64
    return _text(library.gpuprims_explain_segment_sort, dtype, *sizes, bits, count) + where


def _reducing(input: torch.Tensor, code: int, acc: int, dim: Any, dtype: int = -1) -> str:
    from .reduce_fake import listed  # whose module imports one that logs through this one

    rank = input.dim()
    dims = listed(dim) or range(rank)
    reduced = (ctypes.c_bool * max(rank, 1))()
    for d in dims:
        reduced[d % max(rank, 1)] = True
    sizes = (ctypes.c_int64 * max(rank, 1))(*input.shape)
    strides = (ctypes.c_int64 * max(rank, 1))(*input.stride())
    count, where = _multiprocessors(input)
    dtype = _DTYPES.index(input.dtype) if dtype < 0 else dtype
    numbers = (code, dtype, acc, sizes, strides, reduced, ctypes.c_int64(rank), count)
    return _text(library.gpuprims_explain_reduce, *numbers) + where


def _acc(input: torch.Tensor, integer: bool) -> int:
    wide = input.dtype == torch.float64
    acc = (
        torch.int64 if integer or not input.is_floating_point() else torch.float64 if wide else torch.float32
    )
    return _DTYPES.index(acc)


def _reduce(
    input: torch.Tensor,
    op: str | int,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    ord: float = 2,
    **kwargs: Any,
) -> str:
    from .reduce import reduce_code  # which logs through this module
    from .reduce_fake import ALL, ANY, PROD

    code = op if isinstance(op, int) else reduce_code(op, ord)
    acc, given, first = _acc(input, code in (ANY, ALL)), input.dtype, ""
    double = _DTYPES.index(torch.float64)
    if dtype is not None and dtype.is_floating_point:  # reduced_as in csrc/reduce/setup.h
        if not given.is_floating_point and (code == PROD or given.itemsize == 8):
            given, acc = torch.float64, double
        elif given.is_floating_point and dtype == torch.float64:
            given, acc = torch.float32 if given.itemsize == 2 else given, double
        if given != input.dtype:
            first = f"a copy in {str(given).removeprefix('torch.')}, then "
    return first + _reducing(input, code, acc, dim, _DTYPES.index(given))


def _stats(input: torch.Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> str:
    return _reducing(input, 15, _acc(input, False), dim)  # kReduceOps


def _dot(input: torch.Tensor, other: torch.Tensor) -> str:
    return _reducing(input, 16, _acc(input, False), None)


def _histogram(input: torch.Tensor, bins: int = 100, *args: Any, **kwargs: Any) -> str:
    count, where = _multiprocessors(input)
    sizes = map(ctypes.c_int64, (input.numel(), bins))
    shared = 227 << 10  # bytes a block of sm_90 may have; other GPUs have less
    return (
        _text(library.gpuprims_explain_histogram, _DTYPES.index(input.dtype), *sizes, count, shared) + where
    )


def _reorder(name: str) -> Callable[..., str]:
    def text(*args: Any, **kwargs: Any) -> str:
        from . import reorder_explain  # which imports modules that log through this one

        return getattr(reorder_explain, name)(*args, **kwargs)

    return text


_OPS: dict[str, Callable[..., str]] = {
    "approx_topk": _approx_topk,
    "argsort": _sorting("argsort", False, True),
    "bincount": _histogram,
    "dot": _dot,
    "edge_softmax": _edge_softmax,
    "gatv2_score": _gatv2_score,
    "histogram": _histogram,
    "neighbor_aggregate": _neighbor_aggregate,
    "neighbor_attention": _neighbor_attention,
    "pack_rows": _reorder("pack_rows"),
    "reduce": _reduce,
    "sddmm": _sddmm,
    "segment_reduce": _segment_reduce,
    "segment_sort": _segment_sort,
    "segment_topk": _segment_topk,
    "sort": _sorting("sort", True, True),
    "sort_by_key": _sort_by_key,
    "sort_keys": _sorting("sort_keys", True, False),
    "spmv": _reorder("spmv"),
    "spmv_csr": _reorder("spmv_csr"),
    "stats": _stats,
    "topk": _topk,
    "topk_gate": _topk_gate,
}


def explain(op: str, *args: Any, **kwargs: Any) -> str:
    """One line about what `op`, called with these arguments, does on a GPU.

    The plan is a pure function of sizes, dtype and device: nothing is launched, and no GPU is needed.

    >>> explain("topk", torch.empty(4096, 256), 8).split(" -> ")[0]
    'topk float32 [4096, 256] k=8'
    """
    if op not in _OPS:
        raise ValueError(f"explain: no op named {op!r}; there are {', '.join(sorted(_OPS))}")
    return _OPS[op](*args, **kwargs)


def log(op: str, *args: Any, **kwargs: Any) -> None:
    """Log the explanation of a call that was made; wrappers call it where `enabled`. Silent while tracing:
    compiled code cannot log, and a call that cannot be traced breaks its graph."""
    if not torch.compiler.is_compiling():
        _log.info(explain(op, *args, **kwargs))
