"""Are the sorts ever slower than torch.sort or CUB? A fixed random sample of n x rows x dtype x data."""

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench import harness
from bench.sort_data import DISTRIBUTIONS, make

#: (rows, n)
SHAPES = [
    *((1, n) for n in (1, 32, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)),
    *((1, n) for n in (4097, 8193, 65_536, 300_000, 3_000_000, 30_000_000)),
    *((rows, n) for rows in (7, 64, 512, 4096) for n in (50, 128, 1000, 4096, 10_000, 32_768, 128_256)),
    *((100_000, n) for n in (16, 100, 257, 1000)),
]
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8", "int16")
MOST = 1 << 31  # bytes of an input
#: Behind the sample, on a GPU: rows as long as an issue wants them, (dtype, kind, keys only).
LONGEST = 1_000_000_000
LONGEST_POINTS = [
    ("float32", "normal", False), ("int32", "range20", False), ("float32", "sorted", False),
    ("uint8", "uniform", False), ("bfloat16", "zipf", False), ("int32", "few", True),
]  # fmt: skip

Point = tuple[int, int, torch.dtype, str, bool]


def points(count: int, most: int = MOST) -> Iterator[Point]:
    """(rows, n, dtype, kind, keys only): shapes, dtypes and kinds each as often as any other."""
    rng = random.Random(2026)
    decks: dict[str, list[Any]] = {"shape": [], "dtype": [], "kind": []}
    pools = {"shape": SHAPES, "dtype": list(DTYPES), "kind": list(DISTRIBUTIONS)}
    made = 0
    while made < count:
        drawn = {}
        for name, deck in decks.items():
            if not deck:
                deck.extend(rng.sample(pools[name], len(pools[name])))
            drawn[name] = deck.pop()
        rows, n = drawn["shape"]
        dtype = getattr(torch, drawn["dtype"])
        if rows * n * dtype.itemsize <= most:
            made += 1
            yield rows, n, dtype, drawn["kind"], made % 4 == 0


def sweep(
    options: argparse.Namespace, calls_for: Callable[[torch.Tensor, bool, bool], dict[str, harness.Call]]
) -> dict[str, Any]:
    """Times every point; prints how many are slower, the least gains, the mean; returns the same."""
    timer = harness.Timer(options.device, evict=False, max_reps=20, seconds=0.0)
    cap = MOST if options.device.startswith("cuda") else 1 << 20
    stop = time.monotonic() + options.limit
    done: list[dict[str, Any]] = []
    longest = [(1, LONGEST, getattr(torch, name), *how) for name, *how in LONGEST_POINTS]
    for rows, n, dtype, kind, keys_only in (*points(options.points, cap), *longest[: 6 * (cap == MOST)]):
        if time.monotonic() > stop:
            print(f"stopped by --limit after {len(done)} of {options.points} points")
            break
        name = f"{rows}x{n} {str(dtype).removeprefix('torch.')} {kind}{' keys' * keys_only}"
        x = make((rows, n) if rows > 1 else (n,), dtype, kind, options.device)
        calls = calls_for(x, keys_only, not options.no_cub)
        if keys_only:  # torch has nothing that returns keys alone
            calls["torch"] = lambda x=x: torch.sort(x, stable=True)
        times = timer.measure(calls)
        done.append({"name": name, **{key: round(us, 2) for key, us in times.items()}})
        del x, calls
    return summary(done)


def gain(row: dict[str, Any]) -> float:
    return min(us for key, us in row.items() if key not in ("name", "ours")) / row["ours"]


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {"points": len(done)}
    slower: list[dict[str, Any]] = []
    for rival in ("torch", "cub"):
        beside = [row for row in done if rival in row]
        if not beside:
            continue
        lost = [row for row in beside if harness.slower(row["ours"], row[rival])]
        slower += [row for row in lost if row not in slower]
        mean = math.exp(sum(math.log(row[rival] / row["ours"]) for row in beside) / len(beside))
        result[f"slower_than_{rival}"] = f"{len(lost)} of {len(beside)}"
        result[f"geometric_mean_over_{rival}"] = round(mean, 2)
    print("the 30 points with the least gain (us):")
    for row in sorted((row for row in done if len(row) > 2), key=gain)[:30]:
        times = "  ".join(f"{key} {us:10.1f}" for key, us in row.items() if key != "name")
        print(f"{row['name']:>40}  {times}  {gain(row):6.2f}x")
    print("  ".join(f"{name}={value}" for name, value in result.items()))
    return {**result, "slower": slower}
