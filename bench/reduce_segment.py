"""segment_reduce, segment_expand and histogram beside PyTorch.

    python -m bench.reduce_segment [--device cuda] [--seconds 1] [--only segments|rows|histogram|compiled]

The first two cases are those of targets.json. Columns: microseconds of ours (raw offsets, then Segments), of
torch.segment_reduce (offsets validated beforehand), of a sum by index_add_ where torch has no such op, and of
moving the bytes at the speed of a copy measured in the same run. Medians of interleaved repetitions, L2 warm.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from bench import harness
from torch_gpuprims import Segments, bincount, compile_reduction, histogram, segment_expand, segment_reduce

TARGETS = {"1e5 of 1000": 102.0, "1e7 of 10": 150.0}


def lengths_of(
    device: str, scale: float
) -> Iterator[tuple[str, torch.Tensor, tuple[int, ...], torch.dtype, str]]:
    """(name, lengths, shape of a row, dtype, op); `scale` shrinks them all."""

    def some(count: float) -> int:
        return max(int(count * scale), 1)

    def equal(count: float, length: int) -> torch.Tensor:
        return torch.full((some(count),), length, device=device)

    g = torch.Generator(device=device).manual_seed(0)
    f32, f16 = torch.float32, torch.float16
    yield "1e5 of 1000", equal(1e5, 1000), (), f32, "sum"
    yield "1e7 of 10", equal(1e7, 10), (), f32, "sum"
    yield "1e7 of 10, max", equal(1e7, 10), (), f32, "max"
    yield "1e7 of 10, logsumexp", equal(1e7, 10), (), f32, "logsumexp"
    yield "1e7 of 10, float16", equal(1e7, 10), (), f16, "sum"
    yield "6.25e6 of 16", equal(6.25e6, 16), (), f32, "sum"
    yield "3e6 of 32", equal(3e6, 32), (), f32, "sum"
    yield "1e6 of 100", equal(1e6, 100), (), f32, "sum"
    yield "1e5 of 1000, float16", equal(1e5, 1000), (), f16, "mean"
    yield "1e5 of 1000, logsumexp", equal(1e5, 1000), (), f32, "logsumexp"
    yield "1e5 of 1000, int32", equal(1e5, 1000), (), torch.int32, "sum"
    yield "1e4 of 10000", equal(1e4, 10_000), (), f32, "sum"
    yield "1 of 1e8", equal(0, some(1e8)), (), f32, "sum"
    yield "1 of 5e7 beside 5e6 of 10", torch.cat([equal(0, some(5e7)), equal(5e6, 10)]), (), f32, "sum"
    empty = torch.rand(some(1e7), device=device, generator=g) < 0.9
    some_lengths = torch.randint(1, 100, (some(1e7),), device=device, generator=g)
    yield "1e7, nine in ten empty", some_lengths.masked_fill(empty, 0), (), f32, "sum"
    powers = (torch.rand(some(5e5), device=device, generator=g, dtype=torch.float64) ** -0.9).long() * 8
    yield "5e5 by a power law", powers.clamp(max=some(1e7)), (), f32, "sum"
    yield "1e5 of 16 rows of 64", equal(1e5, 16), (64,), f32, "sum"
    yield "1e5 of 16 rows of 64, float16", equal(1e5, 16), (64,), f16, "sum"
    yield "1e6 of 10 rows of 8", equal(1e6, 10), (8,), f32, "sum"
    yield "1e6 of 10 rows of 3", equal(1e6, 10), (3,), f32, "sum"
    yield "1e3 of 1000 rows of 128, max", equal(1e3, 1000), (128,), f32, "max"
    yield "10 of 1e5 rows of 64", equal(10, some(1e5)), (64,), f32, "sum"


def by_index_add(x: torch.Tensor, ids: torch.Tensor, segments: int) -> torch.Tensor:
    return x.new_zeros(segments, *x.shape[1:]).index_add_(0, ids, x)


def by_torch(x: torch.Tensor, indptr: torch.Tensor, op: str) -> torch.Tensor:
    return torch.segment_reduce(x, op, offsets=indptr, unsafe=True)


def run_segments(options: argparse.Namespace, timer: harness.Timer, speed: float, rows: bool) -> bool:
    sound, scale = True, 1.0 if timer.cuda else 1e-3
    heads = (("case", 32), ("ours", 9), ("Segments", 10), ("torch", 10), ("index_add", 11), ("expand", 9))
    print("\n" + "".join(f"{head:>{w}}" for head, w in (*heads, ("bytes", 8), ("target", 8))))
    for name, lengths, shape, dtype, op in lengths_of(options.device, scale):
        if bool(shape) != rows:
            continue
        segments = Segments.from_lengths(lengths)
        indptr, n = segments.indptr.long(), segments.numel
        g = torch.Generator(device=options.device).manual_seed(1)
        x = torch.randint(-4, 5, (n, *shape), device=options.device, generator=g).to(dtype)
        calls: dict[str, Callable[[], Any]] = {
            "ours": partial(segment_reduce, x, indptr, op),
            "Segments": partial(segment_reduce, x, segments, op),
        }  # fmt: skip
        out = segment_reduce(x, indptr, op)
        if op in ("sum", "max", "mean") and dtype.is_floating_point:
            calls["torch"] = partial(by_torch, x, indptr, op)
            want = by_torch(x.float(), indptr, op).to(dtype)
            if not torch.allclose(
                out, want, rtol=1e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-2, equal_nan=True
            ):
                print(f"{name:>32}   WRONG")
                sound = False
                continue
        if op == "sum" and dtype.is_floating_point:
            calls["index_add"] = partial(by_index_add, x, segments.ids(), len(lengths))
        calls["expand"] = partial(segment_expand, out, indptr, n)
        times = timer.measure(calls)
        moved = (x.nbytes + indptr.nbytes + out.nbytes) / speed
        cells = "".join(f"{times.get(head, float('nan')):{w}.1f}" for head, w in heads[1:])
        print(f"{name:>32}{cells}{moved:8.1f}{TARGETS.get(name, 0):8.0f}", flush=True)
        del x, out, calls
    return sound


def run_histogram(options: argparse.Namespace, timer: harness.Timer, speed: float) -> bool:
    sound, n = True, 100_000_000 if timer.cuda else 100_000
    print(f"\n{'histogram of 1e8':>32}{'ours':>9}{'torch':>10}{'bytes':>8}")
    uniform = torch.rand(n, device=options.device)
    for name, x, bins in (
        ("100 bins", uniform, 100), ("10000 bins", uniform, 10_000), ("100000 bins", uniform, 100_000),
        ("100 bins, one value", torch.full_like(uniform, 0.5), 100),
        ("100 bins, float64", uniform.double(), 100),
        ("100 bins, float16", uniform.half(), 100),
    ):  # fmt: skip
        calls = {"ours": partial(histogram, x, bins, 0, 1), "torch": partial(torch.histc, x, bins, 0, 1)}
        if x.dtype == torch.float16:
            del calls["torch"]
        times = timer.measure(calls)
        sound &= int(histogram(x, bins, 0, 1).sum()) == n
        print(
            f"{name:>32}{times['ours']:9.1f}{times.get('torch', float('nan')):10.1f}{x.nbytes / speed:8.1f}",
            flush=True,
        )
    for dtype in (torch.uint8, torch.int32, torch.int64):
        x = (uniform * 100).to(dtype)
        times = timer.measure(
            {"ours": partial(bincount, x, 100), "torch": partial(torch.bincount, x, minlength=100)}
        )
        sound &= torch.equal(bincount(x, 100), torch.bincount(x, minlength=100))
        name = f"bincount {str(dtype).removeprefix('torch.')}"
        print(f"{name:>32}{times['ours']:9.1f}{times['torch']:10.1f}{x.nbytes / speed:8.1f}", flush=True)
    return sound


def run_compiled(options: argparse.Namespace, timer: harness.Timer, speed: float) -> bool:
    scale = 1 if timer.cuda else 256
    norm = compile_reduction("bench_norm", "x * x", "a + b", "0", "sqrt(a)")
    print(f"\n{'compile_reduction, 2-norm':>32}{'ours':>9}{'torch':>10}{'bytes':>8}")
    for shape, dim in (
        ((1 << 24,), 0),
        ((1 << 28,), 0),
        ((4096, 32768), 1),
        ((32768, 4096), 0),
        ((1000000, 64), 1),
    ):
        x = torch.randn((shape[0] // scale, *shape[1:]), device=options.device)
        torch.testing.assert_close(norm(x, dim), torch.linalg.vector_norm(x, dim=dim), rtol=1e-4, atol=1e-4)
        times = timer.measure(
            {"ours": partial(norm, x, dim), "torch": partial(torch.linalg.vector_norm, x, dim=dim)}
        )
        name = f"{list(x.shape)} dim {dim}"
        print(f"{name:>32}{times['ours']:9.1f}{times['torch']:10.1f}{x.nbytes / speed:8.1f}", flush=True)
        del x
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.reduce_segment", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for one case's samples beyond 20")
    parser.add_argument("--only", choices=("segments", "rows", "histogram", "compiled"))
    options = parser.parse_args()
    timer = harness.Timer(options.device, evict=False, seconds=options.seconds)
    copied = torch.empty(1 << 28 if timer.cuda else 1 << 20, dtype=torch.uint8, device=options.device)
    speed = 2 * copied.nbytes / timer.measure({"ours": lambda: copied.clone()})["ours"]  # bytes a microsecond
    print(f"copy: {speed / 1e3:.0f} GB/s")
    parts = {
        "segments": lambda: run_segments(options, timer, speed, False),
        "rows": lambda: run_segments(options, timer, speed, True),
        "histogram": lambda: run_histogram(options, timer, speed),
        "compiled": lambda: run_compiled(options, timer, speed),
    }
    sound = [part() for name, part in parts.items() if options.only in (None, name)]
    if not all(sound):
        raise SystemExit("reduce_segment: some results are wrong")


if __name__ == "__main__":
    main()
