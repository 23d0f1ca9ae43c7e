"""topk and the sorts on the CPU beside PyTorch's, on 2 threads.

    python -m bench.cpu [--threads 2] [--rounds 5]

Milliseconds by the host's clock, the best of the interleaved rounds: other work on the machine adds, it
never subtracts. `read twice` is the time to add up the row twice with torch.sum on as many threads, which
topk of one long row should not exceed by more than a fifth.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch

import torch_gpuprims
from bench.sort_data import random_bits
from bench.topk_data import random_input

Calls = dict[str, Callable[[], object]]


def best(calls: Calls, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: min(taken) for name, taken in times.items()}


def line(name: str, ms: dict[str, float]) -> None:
    twice = f"{ms['read twice']:12.3f}{ms['ours'] / ms['read twice']:7.2f}x" if "read twice" in ms else ""
    gain = ms["torch"] / ms["ours"]
    print(f"{name:>34}{ms['ours']:10.3f}{ms['torch']:10.3f}{gain:8.2f}x{twice}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'':>34}{'ours ms':>10}{'torch':>10}{'gain':>9}{'read twice':>12}{'ratio':>8}")
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        x = random_input(1, 10_000_000, dtype, "cpu")[0]
        words = x.view(torch.float32)  # of any bits: what they add up to does not matter
        for k in (1, 10, 100, 4096):
            calls: Calls = {
                "ours": partial(torch_gpuprims.topk, x, k),
                "torch": partial(torch.topk, x, k),
                "read twice": lambda words=words: (words.sum(), words.sum()),
            }
            line(f"topk 1e7 {str(dtype).removeprefix('torch.')} k={k}", best(calls, options.rounds))
    for n in (100_000, 1_000_000, 10_000_000):
        for dtype in (torch.int32, torch.float32, torch.int64, torch.int16, torch.uint8):
            x = torch.randn(n) if dtype.is_floating_point else random_bits((n,), dtype, "cpu")
            calls = {
                "ours": partial(torch_gpuprims.sort, x),
                "torch": partial(torch.sort, x, stable=True),
            }
            rounds = options.rounds if n < 10_000_000 else 2
            line(f"sort {n:.0e} {str(dtype).removeprefix('torch.')}", best(calls, rounds))


if __name__ == "__main__":
    main()
