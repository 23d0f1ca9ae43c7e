"""Memory transactions of the applications' kernels, before and after reordering, by Nsight Compute.

    ncu --profile-from-start off --csv --metrics $(python -m bench.reorder_transactions --metrics) \
        python -m bench.reorder_transactions > raw.csv
    python -m bench.reorder_transactions --read raw.csv

Each application's kernels run once between profiler marks; --read prints a line for each kernel of each case.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench import record

sys.path.insert(0, str(record.ROOT / "examples"))
import reorder_cg
import reorder_md
import reorder_sp
from reordering_sp import Formula

from torch_gpuprims import ReorderCache

METRICS = {
    "requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "L2_sectors": "lts__t_sectors_op_read.sum",
    "DRAM_bytes": "dram__bytes_read.sum",
    "ns": "gpu__time_duration.sum",
}


def cases(small: bool) -> Iterator[tuple[str, Any]]:
    """(name, call)"""
    for variant in ("original", "csr", "packed", "cached", "sorted_original", "sorted"):
        sim = reorder_md.Simulation(
            variant, reorder_md.lattice(12 if small else 100, 0.8, "cuda", 0), 6, 1, 1
        )
        sim.rebuild()
        sim.run(6)
        yield f"MD {variant}", sim.compute
    count = 4200 if small else 1_000_000
    formula = Formula.random(int(count / 4.2), count, "cuda", 0)
    for variant in ("original", "csr", "packed", "cached", "redirected", "sorted"):
        mine = formula.by_variable() if variant == "sorted" else formula
        sp = reorder_sp.Propagation(variant, mine, ReorderCache(1 << 30), chunks=1)
        sp.run(5)
        yield f"SP {variant}", sp.round
    for name in ("poisson3d", "powerlaw"):
        a = reorder_cg.make(name, 0.002 if small else 1.0, "cuda", torch.float64, 0)
        assert a is not None
        p = torch.randn(len(a.indptr) - 1, dtype=torch.float64, device="cuda")
        for variant in ("original", "cusparse", "cached"):
            product = reorder_cg.Product(variant, a, 4096 if name == "powerlaw" else None, 1, 1)
            product(p)
            yield f"CG {name} {variant}", lambda q=product, v=p: q(v)


def run(small: bool) -> None:
    """A fill of a tensor precedes each case, so that the reader can tell them apart."""
    mark = torch.zeros(1 << 10, device="cuda", dtype=torch.float16)
    for name, call in cases(small):
        torch.cuda.synchronize()
        print(f"case: {name}", flush=True)
        torch.cuda.profiler.start()
        mark.fill_(1)  # a kernel of float16, which nothing else here uses
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def read(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text().splitlines()
    names = [line.removeprefix("case: ") for line in lines if line.startswith("case: ")]
    begin = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    rows: list[dict[str, Any]] = []
    last = None
    for entry in csv.DictReader(line for line in lines[begin:] if line.startswith('"')):
        if "FillFunctor<c10::Half>" in entry["Kernel Name"]:
            if entry["ID"] != last:
                rows.append({"case": names[len(rows)]})
                last = entry["ID"]
            continue
        wanted = next((k for k, v in METRICS.items() if v == entry["Metric Name"]), None)
        if wanted and rows:
            value = float(entry["Metric Value"].replace(",", ""))
            scale = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "us": 1e3, "usecond": 1e3, "ms": 1e6}
            kernel = entry["Kernel Name"].replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
            kernel = kernel.split("(")[0].split("<")[0].removeprefix("void ").split("::")[-1]
            row = rows[-1].setdefault("kernels", {}).setdefault(kernel, {})
            row[wanted] = row.get(wanted, 0) + value * scale.get(entry["Metric Unit"], 1)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--metrics", action="store_true", help="print them for ncu")
    parser.add_argument("--read", type=Path)
    parser.add_argument("--small", action="store_true")
    option = parser.parse_args()
    if option.metrics:
        print(",".join(METRICS.values()))
    elif option.read:
        for row in read(option.read):
            for kernel, values in row.get("kernels", {}).items():
                numbers = "  ".join(f"{k} {values.get(k, 0):.4g}" for k in METRICS)
                print(f"{row['case']:>24}  {kernel:<24} {numbers}")
    else:
        run(option.small)


if __name__ == "__main__":
    main()
