"""Sparse matrices for the reordering benchmarks, made on the device: CSR (indptr, int32 indices, float32)."""

import numpy as np
import torch

from bench.aggregate import FOLDERS

Matrix = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def poisson(dims: int, side: int, device: str) -> Matrix:
    """The finite-difference Laplacian of a square or a cube: 2 * dims + 1 entries a row inside."""
    shape, count = (side,) * dims, side**dims
    at = torch.arange(count, device=device).view(shape)
    rows, columns, values = (
        [at.reshape(-1)],
        [at.reshape(-1)],
        [torch.full((count,), 2.0 * dims, device=device)],
    )
    for d in range(dims):
        low, high = at.narrow(d, 0, side - 1).reshape(-1), at.narrow(d, 1, side - 1).reshape(-1)
        rows += [low, high]
        columns += [high, low]
        values += [torch.full((2 * len(low),), -1.0, device=device)]
    row, column, value = torch.cat(rows), torch.cat(columns), torch.cat(values)
    order = (row * count + column).argsort()
    bounds = torch.arange(count + 1, device=device)
    return torch.searchsorted(row[order], bounds), column[order].int(), value[order]


def power_law(rows: int, device: str, mean: float = 16.0) -> Matrix:
    """Symmetric and positive definite: random pairs whose ends follow a power law, and a diagonal that
    dominates. The longest rows have thousands of entries."""
    g = torch.Generator(device=device).manual_seed(1)
    weight = torch.rand(rows, generator=g, device=device, dtype=torch.float64).clamp_(min=1e-7).pow_(-0.6)
    cumulative = weight.cumsum(0)
    pairs = int(rows * mean / 2)
    ends = torch.rand(2, pairs, generator=g, device=device, dtype=torch.float64) * cumulative[-1]
    a, b = torch.searchsorted(cumulative, ends).clamp_(max=rows - 1)
    key = torch.unique(torch.cat([a * rows + b, b * rows + a]))
    key = key[key // rows != key % rows]
    diagonal = torch.arange(rows, device=device) * (rows + 1)
    key = torch.cat([key, diagonal]).sort().values
    row, column = key // rows, key % rows
    indptr = torch.searchsorted(row, torch.arange(rows + 1, device=device))
    degree = (indptr[1:] - indptr[:-1]).float()
    value = torch.where(row == column, degree[row], -torch.ones((), device=device))
    return indptr, column.int(), value


def mesh(name: str, device: str) -> Matrix | None:
    """The Laplacian (plus the identity) of a real graph, or None where its file is not at hand."""
    for folder in FOLDERS:
        file = folder / f"{name}.npz"
        if not file.exists():
            continue
        with np.load(file) as arrays:
            ends, columns = (torch.from_numpy(arrays[k].astype(np.int64)) for k in ("indptr", "indices"))
        rows = len(ends) - 1
        row = torch.arange(rows).repeat_interleave(ends.diff())
        key = torch.cat([row * rows + columns, torch.arange(rows) * (rows + 1)]).sort().values.to(device)
        row, column = key // rows, key % rows
        indptr = torch.searchsorted(row, torch.arange(rows + 1, device=device))
        degree = (indptr[1:] - indptr[:-1]).float()
        value = torch.where(row == column, degree[row], -torch.ones((), device=device))
        return indptr, column.int(), value
    return None


NAMES = (
    "poisson2d_1M",
    "poisson2d_9M",
    "poisson3d_1M",
    "poisson3d_8M",
    "power_1M",
    "mesh_wing",
    "road_luxembourg",
)


def make(name: str, device: str, small: bool = False) -> Matrix | None:
    """A matrix of NAMES; small: of about 1/1000 of the rows."""
    if name.startswith("poisson"):
        dims = int(name[7])
        side = {"2d_1M": 1024, "2d_9M": 3000, "3d_1M": 100, "3d_8M": 200}[name[7:]]
        return poisson(dims, max(4, side // (30 if dims == 2 else 10)) if small else side, device)
    if name == "power_1M":
        return power_law(1000 if small else 1_000_000, device)
    return mesh(name, device)
