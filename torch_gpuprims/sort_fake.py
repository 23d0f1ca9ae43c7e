"""The sorts without data: the words of csrc/sort/checks.h, for sizes that may be symbols."""

import torch

from .topk import _DTYPES, _name


def _check_tensor(op: str, name: str, t: torch.Tensor) -> None:
    torch._check(
        t.layout is torch.strided, lambda: f"{op}: {name} must be a dense tensor, got a sparse layout"
    )


def _check_index(op: str, index_bits: int, n: int) -> torch.dtype:
    torch._check(index_bits in (64, 32), lambda: f"{op}: index_dtype must be int64 or int32")
    if index_bits == 32:
        torch._check(n < 2**31, lambda: f"{op}: index_dtype int32 holds no index of a dimension of {n}")
    return torch.int64 if index_bits == 64 else torch.int32


def sorted_dim(op: str, dim: int, rank: int) -> int:
    """`dim` as a number from 0; a 0-d tensor counts as one dimension of size 1."""
    span = max(rank, 1)
    torch._check(-span <= dim < span, lambda: f"{op}: dim must be between {-span} and {span - 1}, got {dim}")
    return dim % span


def check_input(op: str, input: torch.Tensor, dim: int) -> int:
    """The length of a row."""
    _check_tensor(op, "input", input)
    torch._check(input.dtype in _DTYPES, lambda: f"{op}: dtype {_name(input.dtype)} is not supported")
    dim = sorted_dim(op, dim, input.dim())
    return input.shape[dim] if input.dim() else 1


def check_bits(op: str, input: torch.Tensor, begin_bit: int, end_bit: int) -> tuple[int, int]:
    """The bits that count, with -1 resolved."""
    width = input.dtype.itemsize * 8
    end = width if end_bit == -1 else end_bit
    torch._check(
        0 <= begin_bit <= end <= width,
        lambda: (
            f"{op}: begin_bit and end_bit must satisfy 0 <= begin_bit <= end_bit <= {width}, "
            f"got {begin_bit} and {end}"
        ),
    )
    return begin_bit, end


@torch.library.register_fake("gpuprims::sort")
def _sort(
    input: torch.Tensor, dim: int = -1, descending: bool = False, index_bits: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    n = check_input("sort", input, dim)
    dtype = _check_index("sort", index_bits, n)
    return input.new_empty(input.shape), input.new_empty(input.shape, dtype=dtype)


@torch.library.register_fake("gpuprims::argsort")
def _argsort(
    input: torch.Tensor,
    dim: int = -1,
    descending: bool = False,
    index_bits: int = 64,
    begin_bit: int = 0,
    end_bit: int = -1,
) -> torch.Tensor:
    n = check_input("argsort", input, dim)
    dtype = _check_index("argsort", index_bits, n)
    check_bits("argsort", input, begin_bit, end_bit)
    return input.new_empty(input.shape, dtype=dtype)


@torch.library.register_fake("gpuprims::sort_keys")
def _sort_keys(input: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    check_input("sort_keys", input, dim)
    return input.new_empty(input.shape)


@torch.library.register_fake("gpuprims::_sort_keys_")
def _sort_keys_in_place(input: torch.Tensor, descending: bool = False) -> None:
    check_input("sort_keys", input, -1)
    torch._check(input.is_contiguous(), lambda: "sort_keys: input must be contiguous")


@torch.library.register_fake("gpuprims::segment_sort")
def _segment_sort(
    keys: torch.Tensor, indptr: torch.Tensor, descending: bool = False, index_bits: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    op, check = "segment_sort", torch._check
    _check_tensor(op, "keys", keys)
    check(keys.dtype in _DTYPES, lambda: f"{op}: dtype {_name(keys.dtype)} is not supported")
    check(keys.dim() == 1, lambda: f"{op}: keys must have 1 dimension, got {keys.dim()}")
    _check_tensor(op, "indptr", indptr)
    check(
        indptr.dtype in (torch.int64, torch.int32),
        lambda: f"{op}: indptr must be int32 or int64, got {_name(indptr.dtype)}",
    )

    def words() -> str:
        return f"{op}: indptr must have shape [segments + 1], got {list(indptr.shape)}"

    check(indptr.dim() == 1, words)
    check(indptr.shape[0] >= 1, words)
    check(indptr.device == keys.device, lambda: f"{op}: indptr must be on the device of keys")
    dtype = _check_index(op, index_bits, keys.shape[0])
    return keys.new_empty(keys.shape), keys.new_empty(keys.shape, dtype=dtype)
