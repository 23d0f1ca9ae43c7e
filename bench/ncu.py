"""What Nsight Compute counts in the kernels of cases of targets.json: one call each, after one that warms up.

    python -m bench.ncu topk "1x100000000 k=20 float32" "1024x32768 k=64 float32"
    python -m bench.ncu sort "1e8 float32"

A line a kernel: microseconds, DRAM throughput (of its peak, and in GB/s), issue slots used while SMs are
active, warp instructions for 32 elements of the input. Clocks are left free. Needs ncu, and counters that it
may read.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys

from bench.record import targets

METRICS = {
    "us": "gpu__time_duration.sum",
    "DRAM %": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "bytes": "dram__bytes.sum",
    "issue %": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "instructions": "smsp__inst_executed.sum",
}


def call_once(op: str, case: dict) -> None:
    """The profiled process: prints nothing, so that ncu's table stands alone."""
    import torch

    import torch_gpuprims
    from bench.sort_data import case_input
    from bench.topk_data import random_input

    args = case["args"]
    if op == "topk":
        x = random_input(args["rows"], args["n"], getattr(torch, args["dtype"]), "cuda")
    else:
        x = case_input(args, "cuda")
    for profiled in (False, True):
        torch.cuda.synchronize()
        if profiled:
            torch.cuda.profiler.start()
        if op == "topk":
            torch_gpuprims.topk(x, args["k"])
        elif args.get("keys_only"):
            torch_gpuprims.sort_keys(x)
        else:
            torch_gpuprims.sort(x)
        torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def read(text: str) -> list[dict[str, str]]:
    """ncu's raw page as CSV: names, units, then a line a kernel."""
    lines = text.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise SystemExit("ncu gave no table:\n" + "\n".join(lines[-5:]))
    return list(csv.DictReader(lines[first:]))[1:]


def profile(ncu: str, op: str, case: dict) -> None:
    metrics = ",".join(METRICS.values())
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--metrics", metrics]
    command += ["--profile-from-start", "off", "--clock-control", "none"]
    command += [sys.executable, "-m", "bench.ncu", op, case["name"], "--child"]
    done = subprocess.run(command, capture_output=True, text=True)
    elements = case["args"]["n"] * case["args"].get("rows", 1)
    print(f"{op} {case['name']}\n{'us':>9}{'DRAM %':>8}{'GB/s':>8}{'issue %':>9}{'instr/32':>10}  kernel")
    for row in read(done.stdout + done.stderr):
        value = {name: float(row[metric].replace(",", "")) for name, metric in METRICS.items()}
        us = value["us"] / 1000  # ncu's base unit is ns
        kernel = row["Kernel Name"].split("(")[0].split("<")[0].split("::")[-1].removeprefix("void ")
        print(
            f"{us:9.1f}{value['DRAM %']:8.1f}{value['bytes'] / us / 1e3:8.0f}{value['issue %']:9.1f}"
            f"{value['instructions'] / (elements / 32):10.1f}  {kernel}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ncu", description=__doc__.splitlines()[0])
    parser.add_argument("op", choices=("topk", "sort"))
    parser.add_argument("cases", nargs="+", help="names of targets.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = {case["name"]: case for case in targets(options.op)}
    if missing := [name for name in options.cases if name not in known]:
        raise SystemExit(f"no such case: {', '.join(missing)}; there are {', '.join(known)}")
    if options.child:
        call_once(options.op, known[options.cases[0]])
        return
    ncu = shutil.which("ncu") or f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin/ncu"
    if not os.path.exists(ncu):
        raise SystemExit("bench.ncu needs Nsight Compute: no ncu on PATH or in CUDA_HOME/bin")
    for name in options.cases:
        profile(ncu, options.op, known[name])


if __name__ == "__main__":
    main()
