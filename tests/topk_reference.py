"""What topk must return, by NumPy's lexsort or a stable integer sort, and hard inputs."""

import numpy as np
import torch

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [getattr(torch, f"{sign}int{bits}") for bits in (8, 16, 32, 64) for sign in ("", "u")]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
EXTREMES = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, -torch.nan, 1.0, -1.0, 6e-8, -6e-8]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().contiguous().view(BITS[x.element_size()])


def fill_value(dtype: torch.dtype, largest: bool) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.tensor(-torch.inf if largest else torch.inf, dtype=dtype)
    if dtype == torch.bool:
        return torch.tensor(not largest)
    info = torch.iinfo(dtype)
    return torch.tensor(info.min if largest else info.max, dtype=dtype)


def reference(x, k, dim, largest, mask):
    """NumPy's lexsort of each row by (dropped, NaN, value, index)."""
    x, dim = x.cpu(), dim % max(x.dim(), 1)
    kept = torch.ones(x.shape, dtype=torch.bool) if mask is None else mask.cpu().expand(x.shape)
    rows, keep = torch.atleast_1d(x).movedim(dim, -1), torch.atleast_1d(kept).movedim(dim, -1)
    shape, n = (*rows.shape[:-1], k), rows.shape[-1]
    rows, keep = rows.reshape(-1, n), keep.reshape(-1, n).numpy()
    values = torch.empty(len(rows), k, dtype=x.dtype)
    indices = torch.full((len(rows), k), -1)
    fill = fill_value(x.dtype, largest)
    numbers = (rows.float() if x.dtype == torch.bfloat16 else rows).numpy()
    for r, (row, kept_row) in enumerate(zip(numbers, keep, strict=True)):
        nan = np.isnan(row) if x.dtype.is_floating_point else np.zeros(n, bool)
        _, rank = np.unique(np.where(nan, row.dtype.type(0), row), return_inverse=True)  # -0.0 equals 0.0
        rank = np.where(nan, n, rank)
        order = np.lexsort((np.arange(n), -rank if largest else rank, ~kept_row))[:k]
        order = torch.from_numpy(order[kept_row[order]])
        indices[r, : len(order)] = order
        values[r] = fill
        bits(values[r])[: len(order)] = bits(rows[r])[order]
    if not x.dim():
        return values.reshape(()), indices.reshape(())
    return values.reshape(shape).movedim(-1, dim), indices.reshape(shape).movedim(-1, dim)


def random_input(shape, dtype, generator, ties):
    """Few distinct values where `ties`, else the dtype's whole range; every third float is an extreme."""
    count = int(np.prod(shape))
    raw = generator.integers(0, 256, (count, dtype.itemsize), dtype=np.uint8)
    if ties:
        values = torch.from_numpy(generator.integers(-2 if dtype.is_signed else 0, 3, count)).to(dtype)
    elif dtype == torch.bool:
        values = torch.from_numpy(raw[:, 0] > 127)
    else:
        values = torch.from_numpy(raw).view(dtype).reshape(count)
    if dtype.is_floating_point:
        extreme = torch.tensor(EXTREMES, dtype=dtype)[generator.integers(0, len(EXTREMES), count)]
        values = torch.where(torch.from_numpy(generator.integers(0, 3, count) == 0), extreme, values)
    return values.reshape(shape)


def restride(x, kind):
    """The same elements in another layout, behind a storage offset."""
    if kind == "transposed":
        return x.mT.contiguous().mT if x.dim() > 1 else x
    if kind == "stepped" and x.dim():
        wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1] + 3)
        wide[..., 3::2] = x
        return wide[..., 3::2]
    if kind == "expanded" and x.dim():
        return x[..., :1].expand(x.shape)
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


# Distributions that break selection algorithms ------------------------------------------------------------


def narrow(shape):  # 24 leading bits in common
    return (torch.randint(0, 256, shape, dtype=torch.int32) + 0x3F800000).view(torch.float32)


DISTRIBUTIONS = {
    "uniform": torch.rand,
    "normal": torch.randn,
    "all equal": torch.ones,
    "sorted": lambda shape: torch.randn(shape).sort(-1).values,
    "reversed": lambda shape: torch.randn(shape).sort(-1, descending=True).values,
    "narrow": narrow,
    "outliers": lambda shape: torch.where(torch.rand(shape) < 1e-3, torch.randn(shape), 1.0),
    "all nan": lambda shape: torch.full(shape, torch.nan),
    "all -inf": lambda shape: torch.full(shape, -torch.inf),
}


def by_sort(x, k, largest=True):
    """By a stable sort of order-preserving integers, on x's own device; float32."""
    key = x.view(torch.int32).long()
    key = torch.where(key < 0, -(key & 0x7FFFFFFF), key)
    key = torch.where(x.isnan(), 2**40, key)
    return torch.sort(key, dim=-1, descending=largest, stable=True).indices[..., :k]
