"""Rings of rows on and off, in turns in one process: what docs/next_reduce.md asks the next GPU run for.

python -m bench.reduce_candidates [--cases GLOB] [--seconds S]: microseconds, and which ways have other bits.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch

import torch_gpuprims
from bench import harness
from bench.reduce_data import make, ours

#: Environment of each way; `own` is what the plan decides.
WAYS: dict[str, dict[str, str]] = {
    "none": {"GPUPRIMS_REDUCE_RING": "0", "GPUPRIMS_REDUCE_PACKED": "0", "GPUPRIMS_SEGMENT_RING": "0"},
    "own": {},
    "ring 2": {"GPUPRIMS_REDUCE_RING": "2"},
    "ring 3": {"GPUPRIMS_REDUCE_RING": "3"},
    "stay 3": {"GPUPRIMS_REDUCE_PACKED": "3"},
    "stay 5": {"GPUPRIMS_REDUCE_PACKED": "5"},
}
NAMES = sorted({name for env in WAYS.values() for name in env})


def under(env: dict[str, str], call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        for name in NAMES:
            os.environ.pop(name, None)
        os.environ.update(env)
        return call()

    return run


def call_of(args: dict[str, Any]) -> Callable[[], Any]:
    if args["op"].startswith("segment"):
        n = args["segments"] * args["length"]
        x = make((n,), getattr(torch, args["dtype"]), "cuda")
        indptr = torch.arange(0, n + 1, args["length"], device="cuda")
        return lambda: torch_gpuprims.segment_reduce(x, indptr, "sum")
    x = make(tuple(args["shape"]), getattr(torch, args["dtype"]), "cuda")
    return ours(x, args["op"], args["dim"])


def same(a: Any, b: Any) -> bool:
    a, b = (list(v) if isinstance(v, tuple) else [v] for v in (a, b))
    return all(
        torch.equal(p.reshape(-1).view(torch.uint8), q.reshape(-1).view(torch.uint8))
        for p, q in zip(a, b, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="*")
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    timer = harness.Timer("cuda", evict=False, seconds=options.seconds)
    print(f"{'case':>34}{'target':>9}" + "".join(f"{way:>9}" for way in WAYS) + "  other bits")
    for target in harness.selected("reduce", options.cases):
        call = call_of(target["args"])
        calls = {way: under(env, call) for way, env in WAYS.items()}
        results = {way: run() for way, run in calls.items()}
        other = [way for way in WAYS if not same(results[way], results["none"])]
        del results
        times = timer.measure({"ours" if way == "none" else way: run for way, run in calls.items()})
        times["none"] = times.pop("ours")
        row = "".join(f"{times[way]:9.1f}" for way in WAYS)
        print(f"{target['name']:>34}{target.get('target_us') or 0:9.1f}{row}  {' '.join(other)}", flush=True)
        del call, calls
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
