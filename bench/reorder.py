"""Packing beside copies and PyTorch's indexing, products of packed rows beside CSR and cuSPARSE; warm caches.

A case `pack ...` times `packed.refresh(values)`; torch is values[map] with the map of slots ready, copy is a
copy of the values (its speed, bytes read and written, is what `share of copy` divides by). A case `spmv ...`
times the packed product; torch is a CSR tensor @ x (cuSPARSE), csr is spmv_csr with Segments. `reuses` is
how many products must follow one refresh before packing wins against csr.
"""

import fnmatch
import time
import warnings
from functools import partial
from typing import Any

import torch

from bench import harness
from bench.reorder_data import NAMES, Matrix, make
from torch_gpuprims import PackedRows, Segments, gather_packed, pack_rows, redirect, spmv, spmv_csr

LAYOUTS: dict[str, dict[str, Any]] = {
    "padded": {},
    "sliced": {"layout": "sliced"},
    "window": {"layout": "sliced", "window": 4096},
    "window 256k": {"layout": "sliced", "window": 1 << 18},  # where the one before leaves much padding
}
GATHERS = ((1 << 20, 1, 8), (1 << 20, 4, 8), (1 << 22, 1, 8), (1 << 18, 64, 4))  # rows, features, reads a row


def slot_map(packed: PackedRows) -> torch.Tensor:
    """The entry of each slot; empty slots read entry 0."""
    entries = torch.arange(packed.num_entries, device=packed.device, dtype=torch.int32)
    return packed.repack(entries).values.long()


def row(name: str, times: dict[str, float], **more: Any) -> dict[str, Any]:
    rivals = {key: us for key, us in times.items() if key != "copy"}  # a bound, no rival
    made = harness.case_row({"op": "reorder", "name": name}, rivals)
    harness.print_row(made)
    return {**made, **more}


def cpu_refresh(packed: PackedRows, values: torch.Tensor, repetitions: int = 7) -> float:
    """Microseconds of the same on the CPU, with the threads that PyTorch has."""
    there, source = packed.to("cpu"), values.cpu()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        there.refresh(source)
        times.append((time.perf_counter() - start) * 1e6)
    return sorted(times)[len(times) // 2]


def check_product(matrix: Matrix, x: torch.Tensor, out: torch.Tensor) -> bool:
    """Against float64 sums of every row."""
    indptr, indices, values = matrix
    rows = torch.arange(len(indptr) - 1, device=x.device).repeat_interleave(indptr.diff())
    terms = values.double() * x.double()[indices]
    exact = torch.zeros(len(indptr) - 1, dtype=torch.float64, device=x.device)
    bound = exact.index_add(0, rows, terms.abs()) * 1e-5 + 1e-6
    return bool(((out.double() - exact.index_add_(0, rows, terms)).abs() <= bound).all())


def run_matrix(
    name: str, matrix: Matrix, timer: harness.Timer, options: Any, results: harness.Results
) -> bool:
    indptr, indices, values = matrix
    segments, x = Segments(indptr), torch.randn(len(indptr) - 1, device=values.device)
    sink = torch.empty_like(values)
    expected = spmv_csr(segments, indices, values, x)
    sound = check_product(matrix, x, expected)
    sparse = torch.sparse_csr_tensor(indptr.int(), indices, values, (len(x), len(x)), check_invariants=False)
    csr = partial(spmv_csr, segments, indices, values, x)
    times = timer.measure({"ours": csr, "torch": partial(torch.mv, sparse, x)})
    csr_us = times["ours"]
    results.add("cases", [row(f"spmv_csr {name}", times)])
    share = 0.0
    for layout, how in LAYOUTS.items():
        if layout == "window 256k" and share < 0.2:
            continue
        try:
            packed = pack_rows(values, indptr, indices=indices, **how)
        except ValueError:
            print(f"{layout + ' ' + name:>36}   over the budget: {len(x)} x {int(indptr.diff().max())} slots")
            continue
        sound &= torch.equal(packed.unpack(), values)
        where = slot_map(packed)
        pack_times = timer.measure(
            {
                "ours": partial(packed.refresh, values),
                "torch": partial(torch.index_select, values, 0, where),
                "copy": partial(sink.copy_, values),
            }
        )
        del where
        moved = values.nbytes + packed.values.nbytes
        speed, copy_speed = moved / pack_times["ours"] / 1e3, 2 * values.nbytes / pack_times["copy"] / 1e3
        cpu_us = cpu_refresh(packed, values)
        share = round(1 - len(values) / max(packed.num_slots, 1), 3)
        more = {
            "gb_s": round(speed), "of_copy": round(speed / copy_speed, 2), "cpu_us": round(cpu_us),
            "cpu_threads": torch.get_num_threads(), "padding": share,
        }  # fmt: skip
        results.add("cases", [row(f"pack {layout} {name}", pack_times, **more)])
        print(
            f"{'':>36}   {speed:.0f} GB/s, {100 * speed / copy_speed:.0f} % of copy; the CPU's "
            f"{torch.get_num_threads()} threads: {cpu_us:.0f} us ({cpu_us / pack_times['ours']:.1f}x); "
            f"{100 * share:.0f} % padding"
        )
        sound &= torch.equal(spmv(packed, x), expected)
        times = timer.measure(
            {"ours": partial(spmv, packed, x), "torch": partial(torch.mv, sparse, x), "csr": csr}
        )
        gain = times["csr"] - times["ours"]
        reuses = round(pack_times["ours"] / gain, 1) if gain > 0 else None
        made = row(f"spmv {layout} {name}", times, csr_us=round(times["csr"], 2), reuses=reuses)
        results.add("cases", [made])
        won = (
            f"packed {times['csr'] / times['ours']:.2f}x, wins from {reuses} reuses" if reuses else "csr wins"
        )
        print(f"{'':>36}   {won}")
        del packed
    results.add("csr_us", {name: round(csr_us, 2)})
    return sound


def run_gathers(timer: harness.Timer, options: Any, results: harness.Results) -> bool:
    sound = True
    for rows, features, reads in GATHERS:
        rows = rows // 1000 if options.small else rows
        name = f"gather {rows}x{features} {reads} reads"
        if not selected(name, options.cases):
            continue
        a = torch.randn(rows, features, device=options.device)
        g = torch.Generator(device=options.device).manual_seed(1)
        b = torch.randint(rows, (rows * reads,), generator=g, device=options.device)
        packed = gather_packed(a, redirect(b))
        sound &= torch.equal(packed.values, a[b])
        calls = {"ours": partial(packed.refresh, a), "torch": partial(torch.index_select, a, 0, b)}
        results.add("cases", [row(name, timer.measure(calls))])
    return sound


def selected(name: str, pattern: str) -> bool:
    return fnmatch.fnmatch(name, pattern) or pattern in name


def main(argv: list[str]) -> None:
    parser = harness.arguments("reorder")
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    parser.add_argument("--small", action="store_true", help="matrices of 1/1000 of the size, to try it out")
    options = parser.parse_args(argv)
    if options.small and options.record:
        parser.error("--small measures other matrices than the record's")
    results = harness.Results("reorder", options)
    if options.host:
        return
    timer = harness.Timer(options.device, evict=False, seconds=min(options.seconds, 0.3))
    sound = True
    harness.print_row()
    for name in NAMES:
        if not selected(name, options.cases) or results.out_of_time(name):
            continue
        matrix = make(name, options.device, options.small)
        if matrix is None:
            print(f"{name:>36}   not run: {name}.npz is not at hand (GPUPRIMS_DATA names its folder)")
            continue
        sound &= run_matrix(name, matrix, timer, options, results)
        del matrix
    sound &= run_gathers(timer, options, results)
    if not sound:
        raise SystemExit("reorder: some results are wrong")
