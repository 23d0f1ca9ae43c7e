"""Tables beside the record: variants of the row kernels, every graph and width, forward with backward."""

import argparse
import ctypes
import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch

from bench import graphs, harness
from torch_gpuprims import Graph, _native, neighbor_aggregate


class Variant(NamedTuple):
    """What is forced (csrc/aggregate/choose.h, AggregateTuning); 0: the plan's choice."""

    tile: int = 0
    units: int = 0
    warps: int = 0
    chunk: int = 0
    small: int = 0
    deep: int = 0

    def __str__(self) -> str:
        return " ".join(f"{k} {v}" for k, v in self._asdict().items() if v) or "as planned"


VARIANTS = (
    Variant(), Variant(tile=128), Variant(tile=256), Variant(tile=512), Variant(units=2), Variant(units=8),
    Variant(units=16), Variant(chunk=-1), Variant(chunk=24), Variant(deep=-1), Variant(deep=1),
    Variant(small=1), Variant(small=-1),
)  # fmt: skip
#: (graph, features, dtype, reordered)
POINTS = (
    ("rmat", 16, "float32", False), ("rmat", 64, "float32", False), ("rmat", 128, "float32", False),
    ("uniform", 16, "float32", False), ("uniform", 64, "float32", False), ("uniform", 128, "float32", False),
    ("uniform", 128, "bfloat16", False), ("sbm", 64, "float32", False), ("sbm", 64, "float32", True),
    ("sbm", 128, "float32", True), ("sbm", 128, "bfloat16", True), ("grid", 64, "float32", False),
    ("grid", 128, "float32", False), ("products", 64, "float32", False), ("products", 64, "float32", True),
    ("products", 128, "float32", True), ("reddit", 16, "float32", False), ("reddit", 64, "float32", False),
    ("reddit", 128, "float32", False),
)  # fmt: skip


def tune(v: Variant) -> None:
    library = ctypes.CDLL(_native.loaded["_C_cuda.so"]["file"])
    sizes = (ctypes.c_int64(value) for value in (v.tile, v.units, v.warps))
    library.gpuprims_tune_aggregate(*sizes, v.chunk, v.small, v.deep)


def each_graph(
    options: argparse.Namespace, names: tuple[str, ...]
) -> Iterator[tuple[str, Graph, torch.Tensor]]:
    """(name, graph, indptr), one at a time; --cases picks among the names."""
    for name in names:
        if options.cases != "*" and options.cases not in name:
            continue
        indptr, indices = graphs.make(name, options.device, small=options.small)
        yield name, Graph.from_csr(indptr, indices.int(), num_src=len(indptr) - 1).prepare(), indptr


def features(rows: int, width: int, dtype: str, device: str) -> torch.Tensor:
    g = torch.Generator(device=device).manual_seed(1)
    return torch.randn(rows, width, generator=g, dtype=getattr(torch, dtype), device=device)


def variants(options: argparse.Namespace, timer: harness.Timer) -> None:
    titles = [str(v) for v in VARIANTS]
    print(f"{'us':>40}" + "".join(f"{title:>16}" for title in titles))
    for name, graph, indptr in each_graph(options, tuple(dict.fromkeys(p[0] for p in POINTS))):
        ordered = None
        for _, width, dtype, reordered in (p for p in POINTS if p[0] == name):
            if reordered and ordered is None:
                ordered = graph.reorder().prepare()
                print(f"{name:>36}   {ordered.schedule}")
            walked = ordered if reordered and ordered is not None else graph
            x = features(len(indptr) - 1, width, dtype, options.device)
            times = []
            for variant in VARIANTS:
                if options.device.startswith("cuda"):
                    tune(variant)
                times.append(timer.measure({"ours": partial(neighbor_aggregate, x, walked)})["ours"])
            label = f"{name} {width} {dtype}{' reordered' * reordered}"
            print(f"{label:>40}" + "".join(f"{us:16.1f}" for us in times), flush=True)
    if options.device.startswith("cuda"):
        tune(VARIANTS[0])


def sweep(options: argparse.Namespace, timer: harness.Timer) -> None:
    """Where sum loses against cuSPARSE or a warp a row, and max against sum."""
    row_kernel = None
    if options.device.startswith("cuda"):
        from bench import aggregate_triton

        row_kernel = aggregate_triton.sum_rows
    rivals = ("cuSPARSE", "a warp a row")
    titles = ("sum", *rivals, "max", "x cuSPARSE", "x warp", "max / sum")
    print(f"{'us':>26}" + "".join(f"{title:>13}" for title in titles))
    slower, points = 0, 0
    for name, graph, indptr in each_graph(options, graphs.NAMES):
        rows = len(indptr) - 1
        for dtype, width in itertools.product(("float32", "bfloat16"), (1, 16, 32, 64, 100, 128, 256)):
            x = features(rows, width, dtype, options.device)
            ones = torch.ones(graph.num_edges, dtype=x.dtype, device=x.device)
            parts = (graph.indptr, graph.indices, ones)
            matrix = torch.sparse_csr_tensor(*parts, (rows, rows), check_invariants=False)
            calls: dict[str, Callable[[], object]] = {
                "ours": partial(neighbor_aggregate, x, graph),
                "cuSPARSE": partial(torch.sparse.mm, matrix, x),
                "max": partial(neighbor_aggregate, x, graph, reduce="max"),
            }
            if row_kernel is not None:
                calls["a warp a row"] = partial(row_kernel, x, graph.indptr, graph.indices)
            times = timer.measure(calls)
            ours = times["ours"]
            theirs = [times.get(rival, math.nan) for rival in rivals]
            lost = [rival for rival in rivals if rival in times and harness.slower(ours, times[rival])]
            slower, points = slower + len(lost), points + sum(rival in times for rival in rivals)
            numbers = "".join(f"{us:13.1f}" for us in (ours, *theirs, times["max"]))
            ratios = "".join(f"{us / ours:13.2f}" for us in (*theirs, times["max"]))
            print(
                f"{name:>10} {width:4d} {dtype:>9}{numbers}{ratios}"
                f"{'   SLOWER than ' * bool(lost)}{', '.join(lost)}",
                flush=True,
            )
            del matrix
    print(f"{slower} of {points} comparisons are lost")


def backward(options: argparse.Namespace, timer: harness.Timer) -> None:
    print(f"{'us':>30}{'forward':>11}{'with backward':>15}{'ratio':>8}")
    for name, graph, indptr in each_graph(options, ("rmat", "uniform", "sbm", "grid")):
        x = features(len(indptr) - 1, 64, "float32", options.device)
        leaf, upstream = x.clone().requires_grad_(), torch.ones_like(x)
        weight = torch.rand(graph.num_edges, device=x.device, requires_grad=True)

        def both(reduce: str, w: torch.Tensor | None, leaf=leaf, upstream=upstream, graph=graph) -> None:  # type: ignore[no-untyped-def]
            leaves = [leaf] if w is None else [leaf, w]
            torch.autograd.grad(neighbor_aggregate(leaf, graph, w, reduce), leaves, upstream)

        for reduce, w in (("sum", None), ("mean", None), ("max", None), ("sum", weight)):
            plain = None if w is None else w.detach()
            calls: dict[str, Callable[[], object]] = {
                "ours": partial(neighbor_aggregate, x, graph, plain, reduce),
                "both": partial(both, reduce, w),
            }
            times = timer.measure(calls)
            label = f"{name} 64 {reduce}{' weighted' * (w is not None)}"
            ratio = times["both"] / times["ours"]
            print(f"{label:>30}{times['ours']:11.1f}{times['both']:15.1f}{ratio:8.2f}", flush=True)


def run(options: argparse.Namespace) -> None:
    timer = harness.Timer(options.device, evict=False, seconds=min(options.seconds, 0.3), min_reps=5)
    if options.variants:
        variants(options, timer)
    if options.sweep:
        sweep(options, timer)
    if options.backward:
        backward(options, timer)
