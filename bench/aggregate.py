"""neighbor_aggregate beside torch.sparse.mm (cuSPARSE): the cases of targets.json that exist, warm caches."""

import argparse
import os
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import graphs, harness, record
from torch_gpuprims import Graph, neighbor_aggregate

Csr = tuple[torch.Tensor, torch.Tensor]
#: Real graphs: shipped ones, and those in the folder that GPUPRIMS_DATA names.
FOLDERS = [record.ROOT / "torch_gpuprims/data", Path(os.environ.get("GPUPRIMS_DATA", "."))]


def real_graph(name: str, device: str) -> Csr | None:
    """CSR of <name>.npz (indptr, indices), or None where the file is not at hand."""
    for folder in FOLDERS:
        file = folder / f"{name}.npz"
        if file.exists():
            with np.load(file) as arrays:
                parts = [torch.from_numpy(arrays[key].astype(np.int64)) for key in ("indptr", "indices")]
            return parts[0].to(device), parts[1].to(device)
    return None


def make_csr(name: str, options: argparse.Namespace) -> Csr | None:
    if name in graphs.NAMES:
        return graphs.make(name, options.device, small=options.small)
    return real_graph(name, options.device)


def verify(out: torch.Tensor, x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor) -> str | None:
    """Compare a sample of rows, the widest among them, with float64 sums."""
    degree = indptr.diff()
    rows = torch.cat(
        [degree.topk(min(8, len(degree))).indices, torch.arange(0, len(degree), 99_991).to(degree)]
    )
    for row in rows.tolist():
        begin, end = int(indptr[row]), int(indptr[row + 1])
        picked = x[indices[begin:end].long()].double()
        bound = (1e-2 if x.dtype.itemsize == 2 else 1e-5) * picked.abs().sum(0) + 1e-6
        if bool(((out[row].double() - picked.sum(0)).abs() > bound).any()):
            return f"row {row} differs from the float64 sum"
    return None


def schedule(graph: Graph, name: str, results: harness.Results) -> Graph:
    """graph.reorder(), its decision printed, and the time of building a community schedule."""
    ordered = graph.reorder()
    print(f"{name:>36}   {ordered.schedule}")

    def build() -> None:
        graph.reorder("community").walk()

    times = []
    for _ in range(3):
        if graph.device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        build()
        if graph.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    print(f"{name:>36}   building the community schedule: {min(times):.2f} ms")
    results.add("schedule_ms", {name: round(min(times), 2)})
    return ordered.prepare()


def run_cases(options: argparse.Namespace, results: harness.Results) -> bool:
    timer = harness.Timer(options.device, evict=False, seconds=options.seconds)
    sound = True
    harness.print_row()
    targets = harness.selected("aggregate", options.cases)
    order = list(dict.fromkeys(case["args"]["graph"] for case in targets))
    targets.sort(key=lambda case: order.index(case["args"]["graph"]))  # a graph is made once
    made, csr = "", None
    for target in targets:
        args, name = target["args"], target["name"]
        if results.out_of_time(name):
            continue
        if args["graph"] != made:
            made, csr, graph, ordered, sparse = args["graph"], None, None, None, {}  # frees the graph before
            csr = make_csr(made, options)
        if csr is None:
            print(f"{name:>36}   not run: {made}.npz is not at hand (GPUPRIMS_DATA names its folder)")
            continue
        indptr, indices = csr
        if graph is None:
            graph = Graph.from_csr(indptr, indices.int(), num_src=len(indptr) - 1).prepare()
        if args["reordered"] and ordered is None:
            ordered = schedule(graph, made, results)
        walked = ordered if args["reordered"] else graph
        dtype = getattr(torch, args["dtype"])
        g = torch.Generator(device=options.device).manual_seed(1)
        x = torch.randn(len(indptr) - 1, args["F"], generator=g, dtype=dtype, device=options.device)
        wrong = verify(neighbor_aggregate(x, walked, reduce=args["reduce"]), x, indptr, indices)
        if wrong:
            print(f"{name:>36}   WRONG: {wrong}")
            sound = False
            continue
        if dtype not in sparse:
            ones = torch.ones(len(indices), dtype=dtype, device=options.device)
            parts = (indptr.int(), indices.int(), ones)
            sparse[dtype] = torch.sparse_csr_tensor(*parts, (len(indptr) - 1,) * 2, check_invariants=False)
        calls: dict[str, harness.Call] = {
            "ours": partial(neighbor_aggregate, x, walked, reduce=args["reduce"]),
            "torch": partial(torch.sparse.mm, sparse[dtype], x),
        }
        row = harness.case_row(target, timer.measure(calls))
        row["best"] = "cuSPARSE (torch.sparse.mm)" if row["best"] else None
        harness.print_row(row)
        results.add("cases", [row])
    return sound


def host_calls(device: str) -> dict[str, Any]:
    """A whole call on Cora, 64 features: here the host is slower than the GPU."""
    csr = real_graph("cora", device)
    assert csr is not None, "torch_gpuprims/data/cora.npz is missing"
    indptr, indices = csr[0], csr[1].int()
    nodes = len(indptr) - 1
    x = torch.randn(nodes, 64, device=device)
    y = x.clone().requires_grad_()
    graph = Graph.from_csr(indptr, indices, num_src=nodes).prepare()
    ones = torch.ones(len(indices), device=device)
    matrix = torch.sparse_csr_tensor(indptr.int(), indices, ones, (nodes, nodes), check_invariants=False)
    return {
        "ours": partial(neighbor_aggregate, x, graph),
        "torch": partial(torch.sparse.mm, matrix, x),
        "ours, grad": partial(neighbor_aggregate, y, graph),
        "torch, grad": partial(torch.sparse.mm, matrix, y),
    }


def main(argv: list[str]) -> None:
    from bench import host

    parser = harness.arguments("aggregate")
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    parser.add_argument("--variants", action="store_true", help="a table of tiles, runs and blocks instead")
    parser.add_argument("--sweep", action="store_true", help="all graphs and widths beside cuSPARSE instead")
    parser.add_argument("--backward", action="store_true", help="forward with backward over forward instead")
    parser.add_argument("--small", action="store_true", help="graphs of 1/1000 of the size, to try it out")
    options = parser.parse_args(argv)
    if options.small and options.record:
        parser.error("--small measures other graphs than the record's")
    if options.variants or options.sweep or options.backward:
        from bench import aggregate_variants

        aggregate_variants.run(options)
        return
    results = harness.Results("aggregate", options)
    results.add("host_us", host.report("neighbor_aggregate, cora, 64 features", host_calls, options.device))
    if not options.host and not run_cases(options, results):
        raise SystemExit("aggregate: some results are wrong; their times are left out")
