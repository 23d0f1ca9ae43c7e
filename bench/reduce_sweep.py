"""Is reduce ever slower than eager PyTorch or torch.compile? A fixed sample of shape, dim, dtype and op."""

import argparse
import math
import random
import time
from collections.abc import Iterator
from typing import Any

import torch

from bench import harness
from bench.reduce_data import compiled, make, ours, theirs

#: (shape, dim)
CASES: list[tuple[tuple[int, ...], Any]] = [
    *(((n,), None) for n in (1, 100, 4096, 30_000, 262_144, 1_000_003, 2**24, 100_000_000)),
    *(((rows, n), -1) for rows in (7, 512, 10_000) for n in (3, 16, 50, 128, 257, 1000, 4096, 10_000)),
    *(((1_000_000, n), -1) for n in (2, 10, 33, 128)),
    *(((rows, 50_257), -1) for rows in (1, 8, 64, 512)),
    *(((n, f), 0) for n in (10, 64, 500, 4096, 100_000) for f in (3, 32, 129, 1000)),
    *(((4, n, 1_000_000 // n), 1) for n in (8, 100, 1000)),
    ((64, 128, 56, 56), (0, 2, 3)), ((32, 64, 1000), (0, 2)), ((256, 256, 256), (0, 1)), ((100, 50, 200), 1),
    ((3000, 3000), None),
]  # fmt: skip
OPS = ("sum", "mean", "max", "min", "argmax", "any", "norm", "var", "std", "logsumexp", "stats")
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8", "float32")
WHOLE = ("sum", "max", "min", "argmax", "any")

Point = tuple[tuple[int, ...], Any, str, torch.dtype]


def points(count: int, most: int = 1 << 30) -> Iterator[Point]:
    """Shapes, ops and dtypes, each as often as any other."""
    rng = random.Random(2026)
    deck: list[tuple[tuple[int, ...], Any]] = []
    made = tries = 0
    while made < count and tries < 100 * count:
        tries += 1
        if not deck:
            deck = rng.sample(CASES, len(CASES))
        shape, dim = deck.pop()
        op, dtype = OPS[tries % len(OPS)], getattr(torch, rng.choice(DTYPES))
        if not dtype.is_floating_point and op not in WHOLE:
            op = rng.choice(WHOLE)
        several = isinstance(dim, tuple) or (dim is None and len(shape) > 1 and op == "argmax")
        if (several and op == "argmax") or (op == "argmax" and isinstance(dim, tuple)):
            continue
        if math.prod(shape) * dtype.itemsize <= most:
            made += 1
            yield shape, dim, op, dtype


def sweep(options: argparse.Namespace) -> dict[str, Any]:
    """Times every point, --compiled of them beside torch.compile too; prints who is slower and the means."""
    cuda = options.device.startswith("cuda")
    timer = harness.Timer(options.device, evict=False, max_reps=20, seconds=0.0)
    longer = harness.Timer(options.device, evict=False, max_reps=60, seconds=0.5, min_reps=40)
    stop = time.monotonic() + options.limit
    done: list[dict[str, Any]] = []
    every = max(1, options.points // max(options.compiled, 1))
    for at, (shape, dim, op, dtype) in enumerate(points(options.points, 1 << 30 if cuda else 1 << 24)):
        if time.monotonic() > stop:
            print(f"stopped by --limit after {len(done)} of {options.points} points")
            break
        name = f"{op} {'x'.join(map(str, shape))} dim={dim} {str(dtype).removeprefix('torch.')}"
        x = make(shape, dtype, options.device)
        calls: dict[str, harness.Call] = {"ours": ours(x, op, dim), "torch": theirs(x, op, dim)}
        if options.compiled and at % every == 0:
            call = compiled(x, op, dim)
            if call:
                calls["compile"] = call
        row = {"name": name, **timer.measure(calls)}
        if lost(row):
            row = {"name": name, **longer.measure(calls)}
        done.append({key: round(v, 2) if isinstance(v, float) else v for key, v in row.items()})
        del x, calls
    return summary(done)


def lost(row: dict[str, Any]) -> bool:
    return any(key in row and harness.slower(row["ours"], row[key]) for key in ("torch", "compile"))


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {"points": len(done)}
    for rival in ("torch", "compile"):
        beside = [row for row in done if rival in row]
        if not beside:
            continue
        slower = [row for row in beside if harness.slower(row["ours"], row[rival])]
        mean = math.exp(sum(math.log(row[rival] / row["ours"]) for row in beside) / len(beside))
        result[f"slower_than_{rival}"] = f"{len(slower)} of {len(beside)}"
        result[f"geometric_mean_over_{rival}"] = round(mean, 2)

    def gain(row: dict[str, Any]) -> float:
        return min(row[key] for key in ("torch", "compile") if key in row) / row["ours"]

    losers = [row for row in done if lost(row)]
    print(f"{len(losers)} points slower than a rival, then the least gains (us):")
    for row in sorted(done, key=gain)[: max(30, len(losers))]:
        times = "  ".join(f"{key} {us:10.1f}" for key, us in row.items() if key != "name")
        print(f"{row['name']:>48}  {times}  {gain(row):6.2f}x {'slower' if lost(row) else ''}")
    print("  ".join(f"{name}={value}" for name, value in result.items()))
    return {**result, "slower": losers}
