"""segment_topk beside PyTorch: a sort by (segment, value), and topk of a padded matrix where that fits.

    python -m bench.topk_segment [--device cuda] [--seconds 2]

Columns: microseconds of ours (raw offsets, then Segments), of the sort, of the padded topk (its gather
included), and of reading the values once at the speed of a copy measured in the same run; medians of
interleaved repetitions, L2 evicted.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import torch

from bench import harness
from torch_gpuprims import Segments, merge_topk, segment_topk, topk

Case = tuple[str, torch.Tensor, int, torch.dtype]
MOST_PADDED = 1 << 30  # elements of the padded matrix


def lengths_of(device: str, scale: float) -> Iterator[Case]:
    """(name, length of each segment, k, dtype); `scale` shrinks them all."""

    def some(count: float) -> int:
        return max(int(count * scale), 1)

    def equal(count: float, length: int) -> torch.Tensor:
        return torch.full((some(count),), length, device=device)

    g = torch.Generator(device=device).manual_seed(0)
    f32, bf16 = torch.float32, torch.bfloat16
    yield "1e6 of 10, k=5", equal(1e6, 10), 5, f32
    yield "1e6 of 32, k=8", equal(1e6, 32), 8, f32
    yield "4e5 of 100, k=10", equal(4e5, 100), 10, f32
    yield "4e5 of 100, k=40", equal(4e5, 100), 40, f32
    yield "1e5 of 500, k=20", equal(1e5, 500), 20, f32
    yield "5e4 of 2000, k=20", equal(5e4, 2000), 20, f32
    yield "1e4 of 10000, k=64", equal(1e4, 10_000), 64, f32
    yield "1e3 of 1e5, k=64", equal(1e3, some(1e5)), 64, f32
    yield "1 of 1e8, k=20", equal(0, some(1e8)), 20, f32
    yield "1 of 1e8, k=2048", equal(0, some(1e8)), 2048, f32
    yield "1 of 1e8, k=20 bfloat16", equal(0, some(1e8)), 20, bf16
    mixed = torch.cat([equal(0, some(1e8)), equal(1e6, 10)])
    yield "1 of 1e8 beside 1e6 of 10, k=20", mixed, 20, f32
    yield (
        "5e6, nine in ten empty, k=4",
        (
            torch.randint(1, 20, (some(5e6),), device=device, generator=g)
            * (torch.rand(some(5e6), device=device, generator=g) < 0.1)
        ),
        4,
        f32,
    )
    powers = (torch.rand(some(2e5), device=device, generator=g, dtype=torch.float64) ** -0.9).long() * 8
    yield "2e5 by a power law, k=16", powers.clamp(max=some(1e7)), 16, f32


def by_sort(x: torch.Tensor, ids: torch.Tensor, indptr: torch.Tensor, k: int) -> torch.Tensor:
    """Positions by two stable sorts, then the first k of each segment: what users write by hand."""
    order = torch.sort(x, descending=True, stable=True).indices
    order = order[torch.sort(ids[order], stable=True).indices]
    slots = indptr[:-1, None] + torch.arange(k, device=x.device)
    there = slots < indptr[1:, None]
    return torch.where(there, order[torch.where(there, slots, 0)], -1)


def by_padding(x: torch.Tensor, indptr: torch.Tensor, width: int, k: int) -> torch.Tensor:
    """Positions by topk of a matrix [segments, width] with -inf behind each segment."""
    slots = indptr[:-1, None] + torch.arange(width, device=x.device)
    there = slots < indptr[1:, None]
    padded = torch.where(there, x[slots.clamp(max=len(x) - 1)], -torch.inf)
    values, at = torch.topk(padded, min(k, width))
    return torch.where(values > -torch.inf, at + indptr[:-1, None], -1)


def run(options: argparse.Namespace) -> bool:
    sound, scale = True, 1.0 if options.device.startswith("cuda") else 1e-3
    timer = harness.Timer(options.device, evict=True, seconds=options.seconds)
    copied = torch.empty(1 << 26 if scale == 1 else 1 << 16, device=options.device)
    us = timer.measure({"ours": lambda: copied.clone()})["ours"]
    speed = 2 * copied.nbytes / us  # bytes a microsecond
    print(f"copy: {speed / 1e3:.0f} GB/s")
    print(f"{'case':>34}{'ours':>10}{'Segments':>10}{'sort':>11}{'padded':>10}{'read':>9}{'ours/read':>11}")
    for name, lengths, k, dtype in lengths_of(options.device, scale):
        segments = Segments.from_lengths(lengths)
        indptr, n = segments.indptr.long(), segments.numel
        g = torch.Generator(device=options.device).manual_seed(1)
        x = torch.randn(n, device=options.device, generator=g).to(dtype)
        ids, width = segments.ids(), int(lengths.max())
        calls: dict[str, Callable[[], object]] = {
            "ours": partial(segment_topk, x, indptr, k),
            "Segments": partial(segment_topk, x, segments, k),
            "sort": partial(by_sort, x, ids, indptr, k),
        }
        if width * len(lengths) <= MOST_PADDED:
            calls["padded"] = partial(by_padding, x, indptr, width, k)
        ours = segment_topk(x, segments, k)
        if not torch.equal(ours.indices, by_sort(x, ids, indptr, k)):
            print(f"{name:>34}   WRONG: indices differ from those of the sort")
            sound = False
            continue
        times = timer.measure(calls)
        read = x.nbytes / speed
        row = "".join(f"{times.get(call, float('nan')):{w}.1f}" for call, w in zip(
            ("ours", "Segments", "sort", "padded"), (10, 10, 11, 10), strict=True))  # fmt: skip
        print(f"{name:>34}{row}{read:9.1f}{times['ours'] / read:11.2f}", flush=True)
        del x, ids, calls, ours
    return sound


def run_merge(options: argparse.Namespace) -> None:
    """Lists of shards, beside a stable sort by index and a stable sort by value."""
    timer = harness.Timer(options.device, evict=True, seconds=options.seconds)
    print(f"\n{'merge_topk':>34}{'ours':>10}{'sorts':>11}{'topk':>10}")
    for rows, parts, k in ((1, 8, 20), (1, 8, 512), (64, 8, 100), (4096, 8, 8), (16, 16, 1024)):
        m = parts * k
        x = torch.randn(rows, m, device=options.device)
        ids = torch.stack([torch.randperm(16 * m, device=options.device)[:m] for _ in range(rows)])

        def sorts(x: torch.Tensor = x, ids: torch.Tensor = ids, k: int = k) -> torch.Tensor:
            by_index = torch.sort(ids, dim=-1, stable=True)
            values = x.gather(-1, by_index.indices)
            best = torch.sort(values, dim=-1, descending=True, stable=True).indices[..., :k]
            return by_index.values.gather(-1, best)

        if not torch.equal(merge_topk(x, ids, k).indices, sorts()):
            print(f"{rows} x {m}   WRONG")
            continue
        times = timer.measure(
            {"ours": partial(merge_topk, x, ids, k), "sorts": sorts, "topk": partial(topk, x, k)}
        )
        name = f"{rows} x {parts} lists of {k}"
        print(f"{name:>34}{times['ours']:10.1f}{times['sorts']:11.1f}{times['topk']:10.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.topk_segment", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for one case's samples beyond 20")
    options = parser.parse_args()
    sound = run(options)
    run_merge(options)
    if not sound:
        raise SystemExit("topk_segment: some results are wrong; their times are left out")


if __name__ == "__main__":
    main()
