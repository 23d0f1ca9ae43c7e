"""Host time of one call: what the processor spends until the call returns, on CPU and on CUDA.

Implementations take turns in batches; a batch's median is robust against interrupts, and the least of the
medians against a slow phase of the machine. On CUDA nothing synchronises inside a batch, and a batch is short
enough for the GPU's queue to hold it.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

BATCHES = 15
CALLS = 200


def measure(calls: dict[str, Callable[[], Any]], cuda: bool, batches: int = BATCHES) -> dict[str, float]:
    """Microseconds a call."""
    best: dict[str, float] = {}
    for call in calls.values():
        for _ in range(50):
            call()
    for _ in range(batches):
        for name, call in calls.items():
            if cuda:
                torch.cuda.synchronize()
            times = []
            for _ in range(CALLS):
                start = time.perf_counter_ns()
                call()
                times.append(time.perf_counter_ns() - start)
            median = statistics.median(times) / 1000
            best[name] = min(best.get(name, median), median)
    return {name: round(us, 2) for name, us in best.items()}


def report(
    title: str, make: Callable[[str], dict[str, Callable[[], Any]]], device: str
) -> dict[str, dict[str, float]]:
    """Measure on the CPU, and on the GPU where there is one; print a line each; {device: {call: us}}."""
    result = {}
    threads = torch.get_num_threads()
    for kind in dict.fromkeys(["cpu", "cuda" if device.startswith("cuda") else "cpu"]):
        result[kind] = measure(make(kind), kind == "cuda")
        text = "   ".join(f"{name} {us:.1f}" for name, us in result[kind].items())
        print(f"host us a call ({title}; {kind}, {threads} threads): {text}", flush=True)
    return result
