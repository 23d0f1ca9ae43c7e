"""sort_out_of_core with an eighth of the array as its budget, beside the sort of an array that fits.

    python -m bench.sort_out_of_core [--elements 2e7] [--rounds 3]

Seconds by the host's clock, medians: ours; `in core`, the whole copied to the device, sorted, copied back,
from pageable memory as ours is; torch.sort on the CPU, of the keys (once). And the device memory that ours
took, of the budget.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from torch_gpuprims import sort_by_key, sort_out_of_core


def timed(run: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()  # ends with the result on the host
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def in_core(columns: tuple[torch.Tensor, ...], device: str) -> tuple[torch.Tensor, ...]:
    return tuple(t.cpu() for t in sort_by_key(*(t.to(device) for t in columns)))


def main() -> None:
    name = "python -m bench.sort_out_of_core"
    parser = argparse.ArgumentParser(prog=name, description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=float, default=2e7)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    n, cuda = int(options.elements), options.device.startswith("cuda")
    print(f"{'':>28}{'ours s':>9}{'in core':>9}{'CPU':>9}{'MB taken':>10}{'budget':>8}")
    for dtype in (torch.float32, torch.int64):
        g = torch.Generator().manual_seed(1)
        keys = torch.randint(2**62, (n,), generator=g)
        if dtype.is_floating_point:
            keys = torch.randn(n, generator=g)
        start = time.perf_counter()
        expected = torch.sort(keys, stable=True)
        cpu = time.perf_counter() - start
        payload = torch.arange(n, dtype=torch.int32)
        for columns in ((keys,), (keys, payload)):
            budget = sum(t.nbytes for t in columns) // 8
            ours = partial(sort_out_of_core, *columns, budget=budget, device=options.device)
            if cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() if cuda else 0
            got = ours()
            taken = torch.cuda.max_memory_allocated() - before if cuda else 0
            assert torch.equal(got[0], expected.values), "keys are not those of torch.sort"
            assert torch.equal(got[-1], columns[-1][expected.indices]), "the payload is not in that order"
            del got
            beside = partial(in_core, columns, options.device)
            mine, core = timed(ours, options.rounds), timed(beside, options.rounds)
            title = f"{n:.0e} {str(dtype).removeprefix('torch.')}{', int32 payload' * (len(columns) - 1)}"
            print(f"{title:>28}{mine:9.3f}{core:9.3f}{cpu:9.3f}{taken / 1e6:10.1f}{budget / 1e6:8.1f}")


if __name__ == "__main__":
    main()
