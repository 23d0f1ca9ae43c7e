"""Conjugate gradients: the matrix read as CSR, or packed in thread-access order.

    python examples/reorder_cg.py                                     # all matrices, all variants
    GPUPRIMS_DATA=folder python examples/reorder_cg.py --matrix mesh  # the folder has mesh_wing.npz
    python examples/reorder_cg.py --device cpu --size 0.01 --matrix poisson2d

    original    spmv_csr of torch_gpuprims, nothing packed
    cusparse    torch's product with a CSR matrix
    packed      the seed without its cache: values packed in every iteration, then spmv
    overlapped  the same in chunks of rows, packed on side streams while others are multiplied
    cached      the matrix packed once, through ReorderCache: hits in all iterations but the first

Matrices: poisson2d (5 points), poisson3d (7 points), powerlaw (Laplacian + 1 of a random graph whose degrees
follow a power law), mesh (Laplacian + 0.01 of mesh_wing). Checked: |b - A x| / |b| in float64 with torch.
graph_ms is as many iterations as were needed, each a replayed CUDA graph: device time without the host's.
"""

import dataclasses
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reordering import ROOT, VARIANTS, finish, milliseconds, options, whole

from torch_gpuprims import ReorderCache, Segments, dot, overlapped, pack_rows, sort_by_key, spmv, spmv_csr

VARIANTS = ("original", "cusparse", *VARIANTS[1:])
warnings.filterwarnings("ignore", message=".*[Ss]parse")
MATRICES = ("poisson2d", "poisson3d", "powerlaw", "mesh")


@dataclasses.dataclass
class Matrix:
    """CSR, symmetric positive definite."""

    indptr: torch.Tensor  # [n + 1] int32
    indices: torch.Tensor  # int32
    values: torch.Tensor

    @staticmethod
    def laplacian(
        n: int, i: torch.Tensor, j: torch.Tensor, diagonal: torch.Tensor, dtype: torch.dtype
    ) -> "Matrix":
        """diagonal - 1 at every (i, j), which come in both directions and without (i, i)."""
        every = torch.arange(n, device=i.device)
        key = torch.cat([i * n + j, every * n + every])
        value = torch.cat([torch.full_like(i, -1, dtype=dtype), diagonal.to(dtype)])
        key, value = sort_by_key(key, value, end_bit=max((n * n).bit_length(), 1))
        row = key // n
        indptr = torch.searchsorted(row, torch.arange(n + 1, device=i.device), out_int32=True)
        return Matrix(indptr, (key % n).int(), value)

    @staticmethod
    def from_edges(n: int, i: torch.Tensor, j: torch.Tensor, shift: float, dtype: torch.dtype) -> "Matrix":
        """The Laplacian of a graph, and shift on the diagonal."""
        return Matrix.laplacian(n, i, j, torch.bincount(i, minlength=n) + shift, dtype)

    @staticmethod
    def poisson(sides: tuple[int, ...], device: str, dtype: torch.dtype) -> "Matrix":
        number = torch.arange(int(np.prod(sides)), device=device).view(sides)
        pairs = []
        for d, side in enumerate(sides):
            low, high = number.narrow(d, 0, side - 1).flatten(), number.narrow(d, 1, side - 1).flatten()
            pairs += [(low, high), (high, low)]
        i, j = (torch.cat(part) for part in zip(*pairs, strict=True))
        diagonal = torch.full((number.numel(),), 2.0 * len(sides), device=device)
        return Matrix.laplacian(number.numel(), i, j, diagonal, dtype)

    @staticmethod
    def power_law(n: int, degree: float, device: str, dtype: torch.dtype, seed: int) -> "Matrix":
        """Ends of edges are node n u^2, numbered at random: degrees fall as rank^(-1/2)."""
        g = torch.Generator().manual_seed(seed)
        edges = (torch.rand(2, int(n * degree / 2), generator=g, dtype=torch.float64) ** 2 * n).long()
        i, j = torch.randperm(n, generator=g)[edges].to(device)
        i, j = torch.cat([i, j]), torch.cat([j, i])
        key = torch.unique((i * n + j)[i != j])
        return Matrix.from_edges(n, key // n, key % n, 1.0, dtype)

    @staticmethod
    def mesh(device: str, dtype: torch.dtype) -> "Matrix | None":
        for folder in (ROOT / "torch_gpuprims/data", Path(os.environ.get("GPUPRIMS_DATA", "."))):
            if (folder / "mesh_wing.npz").exists():
                found = np.load(folder / "mesh_wing.npz")
                indptr, j = (torch.from_numpy(found[k]).long().to(device) for k in ("indptr", "indices"))
                n = len(indptr) - 1
                i = torch.arange(n, device=device).repeat_interleave(indptr.diff())
                return Matrix.from_edges(n, i, j, 0.01, dtype)
        print("mesh: mesh_wing.npz is not at hand (GPUPRIMS_DATA names its folder)")
        return None


def make(name: str, size: float, device: str, dtype: torch.dtype, seed: int) -> Matrix | None:
    if name == "poisson2d":
        side = max(int(1400 * size**0.5), 4)
        return Matrix.poisson((side, side), device, dtype)
    if name == "poisson3d":
        side = max(int(128 * size ** (1 / 3)), 4)
        return Matrix.poisson((side, side, side), device, dtype)
    if name == "powerlaw":
        return Matrix.power_law(max(int(1_000_000 * size), 100), 16, device, dtype, seed)
    return Matrix.mesh(device, dtype)


class Product:
    """A p for one of the variants."""

    def __init__(self, variant: str, a: Matrix, window: int | None, chunks: int, streams: int) -> None:
        self.variant, self.a, self.window, self.streams = variant, a, window, streams
        self.cache = ReorderCache(16 << 30)
        self.rows = Segments(a.indptr)
        if variant == "cusparse":
            n = len(a.indptr) - 1
            self.theirs = torch.sparse_csr_tensor(a.indptr, a.indices, a.values, (n, n))
        elif variant in ("packed", "overlapped"):
            self.cut(chunks if variant == "overlapped" else 1)

    def pack(self, values: torch.Tensor) -> Any:
        a = self.a
        return pack_rows(values, a.indptr, indices=a.indices, layout="sliced", window=self.window)

    def cut(self, count: int) -> None:
        """Packed chunks of rows, and the values that each is packed from."""
        chunks = self.pack(self.a.values).chunks(count)
        self.parts, first = [], 0
        for part in chunks:
            entries = part.num_entries
            self.parts.append((part, self.a.values[first : first + entries]))
            first += entries

    def packed(self) -> Any:
        a, key = self.a, ("sliced", self.window)
        return self.cache.get(a.values, self.pack, key=key, pattern=[a.indptr, a.indices])

    @staticmethod
    def refreshed(part: Any) -> Any:
        packed, values = part
        packed.refresh(values)
        return packed

    def reorder(self) -> None:
        for part in self.parts:
            self.refreshed(part)

    def kernel(self, p: torch.Tensor) -> torch.Tensor:
        """The product alone, of what is packed."""
        if self.variant in ("packed", "overlapped"):
            return torch.cat([spmv(part, p) for part, _ in self.parts])
        return self(p)

    def __call__(self, p: torch.Tensor) -> torch.Tensor:
        if self.variant == "original":
            return spmv_csr(self.rows, self.a.indices, self.a.values, p)
        if self.variant == "cusparse":
            return self.theirs @ p
        if self.variant == "cached":
            return spmv(self.packed(), p)
        if self.variant == "packed":
            return spmv(self.refreshed(self.parts[0]), p)
        done = overlapped(
            self.parts, self.refreshed, lambda part: spmv(part, p), self.streams, device=p.device
        )
        return torch.cat(done)


class Solver:
    """Conjugate gradients in place, so that an iteration can be captured; scalars stay on the device."""

    def __init__(self, product: Callable[[torch.Tensor], torch.Tensor], b: torch.Tensor) -> None:
        self.product, self.b = product, b
        self.x, self.r, self.p = torch.zeros_like(b), b.clone(), b.clone()
        self.rr = dot(b, b).clone()

    def restart(self) -> None:
        self.x.zero_()
        self.r.copy_(self.b)
        self.p.copy_(self.b)
        self.rr.copy_(dot(self.b, self.b))

    def iterate(self) -> None:
        q = self.product(self.p)
        alpha = self.rr / dot(self.p, q)
        self.x.addcmul_(self.p, alpha)
        self.r.addcmul_(q, alpha, value=-1)
        rr = dot(self.r, self.r)
        torch.addcmul(self.r, self.p, rr / self.rr, out=self.p)
        self.rr.copy_(rr)

    def solve(self, tolerance: float, most: int, look: int = 20) -> int:
        """Looks at the residual, which waits for the device, every `look` iterations."""
        self.restart()
        enough = tolerance**2 * float(self.rr)
        for number in range(1, most + 1):
            self.iterate()
            if number % look == 0 and float(self.rr) <= enough:
                return number
        return most

    def captured(self) -> Callable[[], None]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.iterate()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.iterate()
        return graph.replay


def residual(a: Matrix, x: torch.Tensor, b: torch.Tensor) -> float:
    n = len(b)
    theirs = torch.sparse_csr_tensor(a.indptr.long(), a.indices.long(), a.values.double(), (n, n))
    return float((b.double() - theirs @ x.double()).norm() / b.double().norm())


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = options(__doc__, VARIANTS)
    parser.add_argument("--matrix", default="all", choices=("all", *MATRICES))
    parser.add_argument("--size", type=float, default=1.0, help="factor on the rows of made matrices")
    parser.add_argument("--dtype", default="float64", choices=("float32", "float64"))
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--most", type=int, default=400, help="iterations")
    parser.add_argument(
        "--window", type=int, help="rows sorted by length together, 0: none; by default 4096 for powerlaw"
    )
    parser.add_argument("--chunks", type=int, default=4, help="of overlapped")
    parser.add_argument("--streams", type=int, default=4)
    option = parser.parse_args(arguments)
    device, dtype = option.device, getattr(torch, option.dtype)
    rows = []
    for name in MATRICES if option.matrix == "all" else (option.matrix,):
        a = make(name, option.size, device, dtype, option.seed)
        if a is None:
            continue
        n = len(a.indptr) - 1
        window = option.window if option.window is not None else 4096 if name == "powerlaw" else 0
        g = torch.Generator().manual_seed(option.seed)
        b = torch.randn(n, generator=g, dtype=torch.float64).to(device, dtype)
        for variant in VARIANTS if option.variant == "all" else (option.variant,):
            product = Product(variant, a, window or None, option.chunks, option.streams)
            solver = Solver(product, b)
            iterations, first_ms = whole(lambda s=solver: s.solve(option.tolerance, option.most), device)
            stats = product.cache.stats()
            _, ms = whole(lambda s=solver: s.solve(option.tolerance, option.most), device)
            left = residual(a, solver.x, b)
            converged = float(solver.rr) <= option.tolerance**2 * float(dot(b, b))
            row = {
                "matrix": name, "variant": variant,
                "spmv_ms": milliseconds(lambda q=product, v=b: q.kernel(v), device),
                "with_reorder_ms": milliseconds(lambda q=product, v=b: q(v), device),
                "iterations": iterations, "converged": converged, "residual": left, "first_ms": first_ms,
                "solve_ms": ms, "graph_ms": float("nan"), "hits": stats.hits, "misses": stats.misses,
                "right": abs(left - float(solver.rr) ** 0.5 / float(b.norm())) < 0.1 * left + 1e-12,
            }  # fmt: skip
            if torch.device(device).type == "cuda":
                replay = solver.captured()
                solver.restart()
                row["graph_ms"] = whole(lambda f=replay, k=iterations: [f() for _ in range(k)], device)[1]
                if dtype == torch.float64:
                    # cuSPARSE's sums differ from run to run, and its residuals with them.
                    room = 3 if variant == "cusparse" else 1.01
                    row["right"] = bool(row["right"]) and residual(a, solver.x, b) < room * left + 1e-12
            rows.append(row)
        print(f"{name}: {n} rows, {len(a.indices)} entries, longest {int(a.indptr.diff().max())}")
    parameters = {
        "dtype": option.dtype,
        "tolerance": option.tolerance,
        "device": device,
    }
    finish("conjugate gradients", parameters, rows, option.json)
    return rows


if __name__ == "__main__":
    main()
