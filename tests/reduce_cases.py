"""Inputs and expectations that the tests of reduce share."""

import numpy as np
import torch

from torch_gpuprims.reduce import REDUCE_OPS

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]

INTEGERS = [
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool,
]  # fmt: skip

#: Around the limits of every kernel: vector, slot, accumulators, chunk, group, finals.
LENGTHS = [
    1, 2, 3, 4, 5, 8, 31, 64, 65, 100, 127, 128, 129,
    255, 256, 257, 500, 512, 513, 1000, 4095, 4096, 4097,
]  # fmt: skip

LONG = [8192, 10_001, 32_768, 32_769, 40_000, 300_001]


def make(shape: tuple[int, ...], dtype: torch.dtype, device: str, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype).to(device)
    if dtype == torch.bool:
        return (torch.rand(shape, generator=g) < 0.7).to(device)
    low = 0 if not dtype.is_signed else -100
    whole = torch.randint(low, 100, shape, generator=g)
    if dtype.itemsize > 1 and not dtype.is_signed:  # beyond the signed half
        whole = torch.where(
            torch.rand(shape, generator=g) < 0.1, whole + 2 ** (8 * dtype.itemsize - 1), whole
        )
    return whole.to(dtype).to(device)


def integers(x: torch.Tensor) -> np.ndarray:
    return x.cpu().numpy().astype(object)


def expected(x: torch.Tensor, op: str, dim: int) -> torch.Tensor:
    """PyTorch's answer in float64; NumPy's exact integers."""
    if not x.dtype.is_floating_point and op in ("max", "min", "sum", "argmax", "argmin"):
        values = integers(x)
        if op in ("argmax", "argmin"):
            return torch.from_numpy(np.asarray(getattr(np, op)(x.cpu().numpy(), dim)))
        result = np.asarray(getattr(np, op)(values, dim), dtype=object)
        if x.dtype == torch.uint64:
            return torch.from_numpy(np.asarray(result % 2**64).astype(np.uint64))
        return torch.from_numpy(result.astype(np.int64))
    x = x.cpu().double()
    match op:
        case "max" | "min":
            return getattr(torch, f"a{op}")(x, dim)
        case "norm":
            return torch.linalg.vector_norm(x, dim=dim)
        case "logsumexp":
            return torch.logsumexp(x, dim)
    return getattr(torch, op)(x, dim)


def close(actual: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, scale: float = 1.0) -> None:
    if dtype == torch.uint64:
        assert np.array_equal(actual.cpu().numpy(), want.numpy())
        return
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 3e-6, torch.float64: 1e-13}
    bound = tolerance.get(dtype, 0) * scale
    torch.testing.assert_close(
        actual.cpu().double(), want.double(), rtol=bound, atol=bound * 4, equal_nan=True
    )


def ops_for(dtype: torch.dtype) -> list[str]:
    if dtype.is_floating_point:
        return list(REDUCE_OPS)
    return ["sum", "max", "min", "argmax", "argmin", "any", "all"]
