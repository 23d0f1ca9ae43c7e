"""The ops beside what PyTorch offers: same values? same indices? how long? Used by `demo` and `info`."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from .aggregate import neighbor_aggregate
from .graph import Graph
from .reduce import reduce
from .reorder import pack_rows, spmv, spmv_csr
from .segments import Segments
from .sort import sort
from .topk import TopK, topk
from .topk_gate import topk_gate
from .topk_segment import segment_topk


@dataclass(frozen=True)
class Case:
    """One call of an op and the PyTorch call that answers the same question on the same input."""

    op: str
    name: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


@dataclass(frozen=True)
class Outcome:
    """How the two answers compare; `same_indices` is None where the op returns none."""

    same_values: bool
    same_indices: bool | None
    worst: float  # the largest difference between values

    @property
    def ok(self) -> bool:
        return self.same_values and self.same_indices is not False


def topk_case(rows: int, n: int, k: int, device: torch.device) -> Case:
    """Rows that are permutations: without ties torch.topk's indices are determined, and must be ours."""
    generator = torch.Generator().manual_seed(n)
    order = torch.rand(rows, n, generator=generator, dtype=torch.float64).argsort(-1)
    x = order.to(device, torch.float32)  # exact up to 2^24
    return Case("topk", f"{rows}x{n} k={k}", lambda: topk(x, k), lambda: torch.topk(x, k))


def gate_case(rows: int, n: int, k: int, device: torch.device) -> Case:
    """The weights of a router, beside softmax, topk and a division."""
    x = torch.randn(rows, n, generator=torch.Generator().manual_seed(n)).to(device)

    def theirs() -> torch.Tensor:
        weights = torch.topk(torch.softmax(x, -1), k).values
        return weights / weights.sum(-1, keepdim=True)

    return Case("topk_gate", f"{rows}x{n} k={k}", lambda: topk_gate(x, k).weights, theirs)


def segment_case(segments: int, length: int, k: int, device: torch.device) -> Case:
    """Segments of one length, which torch.topk sees as rows of a matrix."""
    generator = torch.Generator().manual_seed(length)
    order = torch.randperm(segments * length, generator=generator)
    x = order.to(device, torch.float32)  # exact up to 2^24
    starts = torch.arange(0, segments * length + 1, length, device=device)
    cut = Segments(starts)

    def theirs() -> TopK:
        values, indices = torch.topk(x.view(segments, length), k)
        return TopK(values, indices + starts[:-1, None])

    return Case("segment_topk", f"{segments} of {length} k={k}", lambda: segment_topk(x, cut, k), theirs)


def sort_case(rows: int, n: int, device: torch.device) -> Case:
    """Normal numbers with ties, which a stable sort orders in one way alone."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(rows, n, generator=generator).mul(1000).round().to(device)
    return Case("sort", f"{rows}x{n}", lambda: sort(x), lambda: torch.sort(x, stable=True))


def reduce_case(rows: int, n: int, op: str, device: torch.device) -> Case:
    """A reduction of each row."""
    x = torch.rand(rows, n, generator=torch.Generator().manual_seed(n)).to(device)
    theirs = {"max": torch.amax, "norm": torch.linalg.vector_norm}.get(op) or getattr(torch, op)
    return Case("reduce", f"{op} {rows}x{n}", lambda: reduce(x, op, -1), lambda: theirs(x, dim=-1))


def csr_tensor(indptr: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, width: int) -> torch.Tensor:
    """A CSR tensor of PyTorch, without its warnings that CSR is new and unchecked."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR|invariant)")
        return torch.sparse_csr_tensor(indptr, indices, values, (len(indptr) - 1, width))


def aggregate_case(
    label: str, indptr: torch.Tensor, indices: torch.Tensor, features: int, device: torch.device
) -> Case:
    """Weighted neighbour sums beside torch.sparse.mm, on a square graph given as CSR."""
    generator = torch.Generator().manual_seed(features)
    nodes = len(indptr) - 1
    weight = torch.rand(len(indices), generator=generator).to(device)
    x = torch.rand(nodes, features, generator=generator).to(device)
    indptr, indices = indptr.to(device), indices.to(device)
    graph = Graph.from_csr(indptr, indices, num_src=nodes).prepare()
    matrix = csr_tensor(indptr, indices, weight, nodes)
    return Case(
        "neighbor_aggregate",
        f"{label} F={features}",
        lambda: neighbor_aggregate(x, graph, weight),
        lambda: torch.sparse.mm(matrix, x),
    )


def spmv_case(
    label: str, indptr: torch.Tensor, indices: torch.Tensor, packed: bool, device: torch.device
) -> Case:
    """A sparse product, of packed rows or of CSR, beside PyTorch's."""
    generator = torch.Generator().manual_seed(len(indptr))
    nodes = len(indptr) - 1
    values = torch.rand(len(indices), generator=generator).to(device)
    x = torch.rand(nodes, generator=generator).to(device)
    indptr, indices = indptr.to(device), indices.to(device)
    matrix, rows = csr_tensor(indptr, indices, values, nodes), Segments(indptr)
    if not packed:
        return Case("spmv_csr", label, lambda: spmv_csr(rows, indices, values, x), lambda: matrix @ x)
    layout = pack_rows(values, rows, indices=indices, layout="sliced")
    return Case("spmv", label, lambda: spmv(layout, x), lambda: matrix @ x)


def random_graph(nodes: int, edges: int) -> tuple[torch.Tensor, torch.Tensor]:
    """CSR of a graph whose edges have both ends uniform: indptr [nodes + 1], indices [edges], both int64."""
    generator = torch.Generator().manual_seed(nodes)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    row, column = ends[:, (ends[0] * nodes + ends[1]).argsort()]
    counts = torch.bincount(row, minlength=nodes)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), column


def compare(case: Case) -> Outcome:
    """Values must be equal bit for bit where indices are returned, else within float32 rounding of a sum."""
    ours, theirs = case.ours(), case.theirs()
    if isinstance(theirs, torch.Tensor):
        worst = (ours - theirs).abs().max().item()
        return Outcome(torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5), None, worst)
    worst = (ours.values - theirs.values).abs().max().item()
    return Outcome(torch.equal(ours.values, theirs.values), torch.equal(ours.indices, theirs.indices), worst)


def median_times(case: Case, device: torch.device, repetitions: int = 21) -> tuple[float, float]:
    """Median microseconds of a whole call, ours and PyTorch's, taken in turn; about 0.1 s for each case."""

    def batch(call: Callable[[], Any], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / count * 1e6

    calls = (case.ours, case.theirs)
    counts = []
    for call in calls:
        batch(call, 2)  # warms up
        counts.append(max(1, min(200, int(2000 / batch(call, 2)))))  # about 2 ms a batch
    samples = [
        [batch(call, count) for call, count in zip(calls, counts, strict=True)] for _ in range(repetitions)
    ]
    return median(s[0] for s in samples), median(s[1] for s in samples)
