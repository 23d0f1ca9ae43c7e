"""Is topk ever slower than torch.topk? A fixed random sample of rows x n x k x dtype, memory-capped.

On CUDA with L2 evicted before every call. A point takes POINT_SECONDS, 3 to 20 samples of each call in
turns; one that looks slower is measured again for longer, and the second answer counts. 320 points take a GPU
about 100 seconds. On the CPU (--device cpu) inputs are small enough for calls of less than a second.
"""

import argparse
import math
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

import torch_gpuprims
from bench import harness
from bench.topk_data import random_input

ROWS = (1, 2, 7, 32, 100, 512, 1000, 4096, 16_384, 100_000)
LENGTHS = (
    1, 3, 10, 32, 100, 257, 1000, 1024, 4096, 10_000, 32_768, 100_000, 152_064,
    1_000_000, 10_000_000, 100_000_000,
)  # fmt: skip
SMALL_K = (1, 2, 5, 8, 10, 20, 32, 50, 64, 100, 128, 256, 512, 1000, 2048, 4096)
LARGE_K = (4097, 10_000, 100_000)
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8")
INPUT_BYTES = 512 << 20  # 1e8 float32, but not 1e8 float64
OUTPUT_BYTES = 1 << 30
CPU_BYTES = 40 << 20  # 1e7 float32
CPU_OUTPUT_BYTES = 16 << 20
POINT_SECONDS = 0.2

Point = tuple[int, int, int, torch.dtype]


def points(count: int, input_bytes: int = INPUT_BYTES, output_bytes: int = OUTPUT_BYTES) -> Iterator[Point]:
    """The sample: each dtype, shape and kind of k as often as any other, in a fixed order."""
    rng = random.Random(2026)
    shapes = [(rows, n) for rows in ROWS for n in LENGTHS if rows * n * 2 <= input_bytes]
    seen: set[Point] = set()
    deck: list[tuple[int, int]] = []
    tries = 0
    while len(seen) < count and tries < 200 * count:
        tries += 1
        if not deck:
            deck = rng.sample(shapes, len(shapes))
        rows, n = deck.pop()
        dtype = getattr(torch, DTYPES[tries % len(DTYPES)])
        kind = tries // len(DTYPES) % 4  # half of the points take a k that is common, the rest the extremes
        options = [n // 2, n - 1, n] if kind == 1 else LARGE_K if kind == 3 else SMALL_K
        fits = [k for k in options if 1 <= k <= n]
        if not fits:
            continue
        k = rng.choice(fits)
        bytes_in = rows * n * dtype.itemsize
        if bytes_in > input_bytes or rows * k * (dtype.itemsize + 8) > output_bytes:
            continue
        if (rows, n, k, dtype) not in seen:
            seen.add((rows, n, k, dtype))
            yield rows, n, k, dtype


def measure(timer: harness.Timer, point: Point, device: str) -> dict[str, Any]:
    rows, n, k, dtype = point
    x = random_input(rows, n, dtype, device)
    calls: dict[str, harness.Call] = {
        "ours": partial(torch_gpuprims.topk, x, k),
        "torch": partial(torch.topk, x, k),
    }
    if k > 4096 or (k > 64 and 2 * k >= n):  # here sorting everything is the bound
        calls["sort"] = partial(torch.sort, x, dim=-1, descending=True)
    times = timer.measure(calls)
    name = f"{rows}x{n} k={k} {str(dtype).removeprefix('torch.')}"
    return {"name": name, **{key: round(us, 2) for key, us in times.items()}}


def sweep(options: argparse.Namespace) -> dict[str, Any]:
    """Times every point; prints how many are slower, the worst, the geometric mean; returns all times."""
    cuda = options.device.startswith("cuda")
    timer = harness.Timer(options.device, evict=True, max_reps=20, seconds=POINT_SECONDS, min_reps=3)
    longer = harness.Timer(options.device, evict=True, max_reps=60, seconds=4 * POINT_SECONDS, min_reps=7)
    caps = (INPUT_BYTES, OUTPUT_BYTES) if cuda else (CPU_BYTES, CPU_OUTPUT_BYTES)
    start = time.monotonic()
    done: list[dict[str, Any]] = []
    for point in points(options.points, *caps):
        if time.monotonic() > start + options.limit:
            print(f"stopped by --limit after {len(done)} of {options.points} points")
            break
        try:
            row = measure(timer, point, options.device)
            if loses(row):
                row = measure(longer, point, options.device)
        except torch.OutOfMemoryError as error:
            print(f"{point}: left out, {str(error).splitlines()[0]}")
            continue
        done.append(row)
    print(f"{len(done)} points in {time.monotonic() - start:.0f} s")
    return summary(done)


def loses(row: dict[str, Any]) -> bool:
    return any(harness.slower(row["ours"], row[rival]) for rival in ("torch", "sort") if rival in row)


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    if not done:
        return {"points": 0}
    slower = [row for row in done if harness.slower(row["ours"], row["torch"])]
    slower_sort = [row for row in done if "sort" in row and harness.slower(row["ours"], row["sort"])]
    ranked = sorted(done, key=lambda row: row["torch"] / row["ours"])
    mean = math.exp(sum(math.log(row["torch"] / row["ours"]) for row in done) / len(done))
    result = {
        "points": len(done),
        "slower_than_torch_topk": len(slower),
        "slower_than_torch_sort": len(slower_sort),
        "worst_ratio": round(ranked[0]["ours"] / ranked[0]["torch"], 3),
        "geometric_mean_speedup": round(mean, 2),
    }
    losers = [row for row in ranked if loses(row)]
    print(f"{len(losers)} points slower than torch.topk or torch.sort, then the least gains (us):")
    for row in losers + [row for row in ranked[:15] if row not in losers]:
        mark = "slower" if row in losers else ""
        sort = f"  sort {row['sort']:.1f}" if "sort" in row else ""
        times = f"ours {row['ours']:10.1f}  torch {row['torch']:10.1f}  {row['torch'] / row['ours']:6.2f}x"
        print(f"{row['name']:>36}  {times}{sort}  {mark}")
    print("  ".join(f"{name}={value}" for name, value in result.items()))
    return {**result, "slower": slower, "least_gain": ranked[:15], "all": done}
