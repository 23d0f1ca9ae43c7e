"""reduce and stats beside torch and torch.compile: the cases of targets.json, a sweep, host time."""

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch

import torch_gpuprims
from bench import harness
from bench.reduce_data import compiled, make, ours, theirs, wrong
from bench.reduce_sweep import sweep


def run_cases(options: argparse.Namespace, results: harness.Results) -> bool:
    timer = harness.Timer(options.device, evict=False, seconds=options.seconds)
    sound = True
    harness.print_row()
    for target in harness.selected("reduce", options.cases):
        args = target["args"]
        if results.out_of_time(target["name"]):
            continue
        if args["op"].startswith("segment"):
            sound &= run_segments(target, timer, options, results)
            continue
        shape = tuple(args["shape"])
        if options.device == "cpu" and math.prod(shape) > 1 << 24:
            continue
        op, dim = args["op"], args["dim"]
        x = make(shape, getattr(torch, args["dtype"]), options.device)
        problem = None if options.unverified else wrong(x, op, dim)
        if problem:  # a time of a wrong result is no result
            print(f"{target['name']:>36}   WRONG: {problem}", flush=True)
            sound = False
            continue
        calls: dict[str, harness.Call] = {"ours": ours(x, op, dim), "torch": theirs(x, op, dim)}
        if options.compile:
            call = compiled(x, op, dim)
            if call:
                calls["compile"] = call
        row = harness.case_row(target, timer.measure(calls))
        harness.print_row(row)
        results.add("cases", [row])
        del x, calls
        if options.device.startswith("cuda"):
            torch.cuda.empty_cache()
    return sound


def run_segments(
    target: dict[str, Any], timer: harness.Timer, options: argparse.Namespace, results: harness.Results
) -> bool:
    """segment_sum: as many segments of one length, beside torch.segment_reduce over the same offsets."""
    args = target["args"]
    n = args["segments"] * args["length"]
    if options.device == "cpu" and n > 1 << 24:
        return True
    x = make((n,), getattr(torch, args["dtype"]), options.device)
    indptr = torch.arange(0, n + 1, args["length"], device=options.device)
    got = torch_gpuprims.segment_reduce(x, indptr, "sum")
    want = x.view(args["segments"], args["length"]).double().sum(1)
    if not options.unverified and not torch.allclose(got.double(), want, rtol=1e-5, atol=1e-3):
        print(f"{target['name']:>36}   WRONG", flush=True)
        return False
    calls: dict[str, harness.Call] = {
        "ours": lambda: torch_gpuprims.segment_reduce(x, indptr, "sum"),
        "torch": lambda: torch.segment_reduce(x, "sum", offsets=indptr, unsafe=True),
    }
    row = harness.case_row(target, timer.measure(calls))
    harness.print_row(row)
    results.add("cases", [row])
    return True


def host_calls(device: str) -> dict[str, Callable[[], Any]]:
    """The small call of the contract's point 9: x [8, 16]."""
    x = torch.randn(8, 16, device=device)
    y = x.clone().requires_grad_()
    op = torch.ops.gpuprims.reduce
    reduce = torch_gpuprims.reduce
    return {
        "ours": lambda: reduce(x, "sum", -1),
        "torch": lambda: torch.sum(x, -1),
        "ours, max": lambda: reduce(x, "max", -1),
        "torch, amax": lambda: torch.amax(x, -1),
        "ours, all": lambda: reduce(x, "sum"),
        "torch, all": lambda: torch.sum(x),
        "torch.ops": lambda: op(x, 0, [-1]),
        "ours, grad": lambda: reduce(y, "sum", -1),
        "torch, grad": lambda: torch.sum(y, -1),
    }


def main(argv: list[str]) -> None:
    from bench import host

    parser = harness.arguments("reduce")
    parser.add_argument("--sweep", action="store_true", help="shape x dim x dtype x op beside torch")
    parser.add_argument("--points", type=int, default=220, help="points of the sweep")
    parser.add_argument("--compiled", type=int, default=40, help="points beside torch.compile too")
    parser.add_argument("--compile", action="store_true", help="torch.compile beside the cases (slow)")
    parser.add_argument("--unverified", action="store_true", help="time without looking at the results")
    options = parser.parse_args(argv)
    results = harness.Results("reduce", options)
    if options.sweep:
        results.add("sweep", sweep(options))
        return
    results.add("host_us", host.report("reduce, x [8, 16]", host_calls, options.device))
    if not options.host and not run_cases(options, results):
        raise SystemExit("reduce: some results are wrong; their times are left out")
