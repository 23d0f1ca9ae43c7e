"""reduce, stats and dot without data: the words of csrc/reduce/checks.h, for sizes that may be symbols."""

import operator
from collections.abc import Sequence
from typing import Any

import torch

from .topk import _DTYPES, _name

#: Codes of the raw op, in the order of ReduceOp in csrc/reduce/ops.h; norm is norm1, norm2 or norm_inf.
NAMES = (
    "sum", "mean", "prod", "max", "min", "argmax", "argmin", "any", "all", "norm", "norm", "norm", "var",
    "std", "logsumexp",
)  # fmt: skip
SUM, MEAN, PROD, MAX, MIN, ARGMAX, ARGMIN, ANY, ALL, NORM1, NORM2, NORM_INF, VAR, STD, LOGSUMEXP = range(15)
#: In the order of enum Dtype in csrc/common/dtype.h: the codes of dtypes.
DTYPES = (
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
)  # fmt: skip
ALL_DIMS = -(2**63)  # of _reduce
_NO_IDENTITY = (MAX, MIN, ARGMAX, ARGMIN, NORM_INF)

Dims = Sequence[int] | None


def listed(dim: Any) -> list[int] | None:
    """The dim argument of a wrapper as the ops take it; NumPy's integers count as integers."""
    if dim is None:
        return None
    if isinstance(dim, int):
        return [dim]
    if not isinstance(dim, list | tuple):
        try:
            return [operator.index(dim)]
        except TypeError:
            pass
    return [d if isinstance(d, int) else operator.index(d) for d in dim]


def reduced_dims(op: str, dims: Dims, rank: int) -> list[int]:
    """The dims as numbers from 0, in order; a 0-d tensor counts as one dimension of size 1."""
    if not dims:
        return list(range(rank))
    span, chosen = max(rank, 1), []
    for dim in dims:
        torch._check(
            -span <= dim < span,
            lambda dim=dim: f"{op}: dim must be between {-span} and {span - 1}, got {dim}",  # type: ignore[misc]
        )
        torch._check(dim % span not in chosen, lambda dim=dim: f"{op}: dim {dim % span} appears twice")  # type: ignore[misc]
        chosen.append(dim % span)
    return sorted(chosen) if rank else []


def output_shape(shape: Sequence[int], dims: list[int], keepdim: bool) -> list[int]:
    if keepdim:
        return [1 if d in dims else size for d, size in enumerate(shape)]
    return [size for d, size in enumerate(shape) if d not in dims]


def _check_input(op: str, input: torch.Tensor, shape: Sequence[int], dims: Dims) -> list[int]:
    torch._check(
        input.layout is torch.strided, lambda: f"{op}: input must be a dense tensor, got a sparse layout"
    )
    torch._check(input.dtype in _DTYPES, lambda: f"{op}: dtype {_name(input.dtype)} is not supported")
    return reduced_dims(op, dims, len(shape))


def result_dtype(op: int, dtype: torch.dtype, given: int) -> torch.dtype:
    check, name, floating = torch._check, NAMES[op], dtype.is_floating_point
    check(op < NORM1 or floating, lambda: f"reduce: {name} is not defined for {_name(dtype)}")
    if given < 0:
        check(
            op != MEAN or floating,
            lambda: f"reduce: mean is not defined for {_name(dtype)} without a floating dtype",
        )
        if op in (ARGMAX, ARGMIN):
            return torch.int64
        if op in (ANY, ALL):
            return torch.bool
        wide = not floating and op in (SUM, PROD) and dtype != torch.uint64
        return torch.int64 if wide else dtype
    check(op in (SUM, MEAN, PROD, NORM1, NORM2), lambda: f"reduce: {name} takes no dtype")
    check(given < len(DTYPES), lambda: f"reduce: no dtype has the code {given}")
    out = DTYPES[given]
    check(
        out.is_floating_point or (not floating and op != MEAN and out != torch.bool),
        lambda: f"reduce: {name} of {_name(dtype)} cannot have dtype {_name(out)}",
    )
    return out


def check_reduce(
    input: torch.Tensor, shape: Sequence[int], op: int, dim: Dims, dtype: int
) -> tuple[list[int], torch.dtype]:
    """The dims and the dtype of the result, for an input of `shape` (of `input`, or of one of a batch)."""
    check = torch._check
    check(0 <= op < len(NAMES), lambda: f"reduce: op must be a code between 0 and {len(NAMES) - 1}, got {op}")
    dims, name = _check_input("reduce", input, shape, dim), NAMES[op]
    count = len(dim) if dim is not None else 0
    check(
        op not in (ARGMAX, ARGMIN) or count <= 1,
        lambda: f"reduce: {name} takes one dim or None, got {count} dims",
    )
    out = result_dtype(op, input.dtype, dtype)
    if op in _NO_IDENTITY:
        for d in dims:
            check(
                shape[d] != 0,
                lambda: f"reduce: {name} of no elements is not defined: a reduced dimension has size 0",
            )
    return dims, out


@torch.library.register_fake("gpuprims::reduce")
def _reduce(
    input: torch.Tensor,
    op: int,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: int = -1,
    correction: float = 1.0,
) -> torch.Tensor:
    dims, out = check_reduce(input, input.shape, op, dim, dtype)
    return input.new_empty(output_shape(input.shape, dims, keepdim), dtype=out)


def _plain(input: torch.Tensor, op: int, dim: int) -> torch.Tensor:
    return _reduce(input, op, None if dim == ALL_DIMS else [dim])


def check_stats(input: torch.Tensor, shape: Sequence[int], dim: Dims, indices: bool) -> list[int]:
    dims = _check_input("stats", input, shape, dim)
    check = torch._check
    check(input.dtype.is_floating_point, lambda: f"stats: input must be floating, got {_name(input.dtype)}")
    count = len(dim) if dim is not None else 0
    check(not indices or count <= 1, lambda: f"stats: indices take one dim or None, got {count} dims")
    for d in dims:
        check(
            shape[d] != 0,
            lambda: "stats: min of no elements is not defined: a reduced dimension has size 0",
        )
    return dims


@torch.library.register_fake("gpuprims::stats")
def _stats(
    input: torch.Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    correction: float = 1.0,
    indices: bool = False,
) -> tuple[torch.Tensor, ...]:
    dims = check_stats(input, input.shape, dim, indices)
    shape = output_shape(input.shape, dims, keepdim)
    values = [input.new_empty(shape) for _ in range(4)]
    whole = [input.new_empty(s, dtype=torch.int64) for s in (shape, *[shape if indices else [0]] * 2)]
    return (*values, *whole)


def check_dot(input: torch.Tensor, other: torch.Tensor, size: Sequence[int], length: Sequence[int]) -> None:
    """`size` and `length`: the shapes of input and other, or of one of a batch of each."""
    check = torch._check
    for name, t in (("input", input), ("other", other)):
        check(
            t.layout is torch.strided,
            lambda name=name: f"dot: {name} must be a dense tensor, got a sparse layout",  # type: ignore[misc]
        )
    check(input.dtype in _DTYPES, lambda: f"dot: dtype {_name(input.dtype)} is not supported")
    check(input.dtype.is_floating_point, lambda: f"dot: input must be floating, got {_name(input.dtype)}")
    check(
        other.dtype == input.dtype,
        lambda: f"dot: other must have the dtype of input ({_name(input.dtype)}), got {_name(other.dtype)}",
    )

    def shapes() -> str:
        return (
            f"dot: input and other must be vectors of one length, got shapes {list(size)} and {list(length)}"
        )

    check(len(size) == 1, shapes)
    check(len(length) == 1, shapes)
    check(size[0] == length[0], shapes)
    check(input.device == other.device, lambda: "dot: other must be on the device of input")


@torch.library.register_fake("gpuprims::dot")
def _dot(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    check_dot(input, other, input.shape, other.shape)
    return input.new_empty([])
