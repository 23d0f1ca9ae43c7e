"""segment_sort beside PyTorch, which sorts twice: by key, then by segment.

    python -m bench.sort_segment [--device cuda] [--seconds 0.2]

Columns: microseconds of ours (raw offsets, then Segments, then with a float32 payload), of the two sorts, and
of moving keys and indices once at the speed of a copy measured in the same run; medians of interleaved
repetitions, L2 warm.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch

from bench import harness
from bench.topk_segment import lengths_of
from torch_gpuprims import Segments, segment_sort


def by_two_sorts(keys: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    order = torch.sort(keys, stable=True).indices
    order = order[torch.sort(ids[order], stable=True).indices]
    return keys[order], order


def run(options: argparse.Namespace) -> bool:
    sound, scale = True, 1.0 if options.device.startswith("cuda") else 1e-3
    timer = harness.Timer(options.device, evict=False, seconds=options.seconds, min_reps=5)
    copied = torch.empty(1 << 26 if scale == 1 else 1 << 16, device=options.device)
    speed = 2 * copied.nbytes / timer.measure({"ours": lambda: copied.clone()})["ours"]
    names = ("raw", "Segments", "payload", "torch")
    print(f"{'segments':>34}" + "".join(f"{name:>11}" for name in (*names, "moved once")))
    seen = set()
    for title, lengths, _, dtype in lengths_of(options.device, scale):
        name = f"{title.split(', k=')[0]} {str(dtype).removeprefix('torch.')}"
        if name in seen:  # the cases differ in k alone
            continue
        seen.add(name)
        segments = Segments.from_lengths(lengths)
        indptr, n = segments.indptr, segments.numel
        g = torch.Generator(device=options.device).manual_seed(1)
        keys = torch.randn(n, device=options.device, generator=g).to(dtype)
        payload, ids = torch.rand(n, device=options.device, generator=g), segments.ids()
        ours, theirs = segment_sort(keys, segments, payload), by_two_sorts(keys, ids)
        if not (torch.equal(ours.indices, theirs[1]) and torch.equal(ours.values, payload[theirs[1]])):
            print(f"{name:>34}   WRONG: not the order of the two sorts")
            sound = False
            continue
        del ours, theirs
        calls: dict[str, Callable[[], object]] = {
            "raw": partial(segment_sort, keys, indptr),
            "Segments": partial(segment_sort, keys, segments),
            "payload": partial(segment_sort, keys, indptr, payload),
            "torch": partial(by_two_sorts, keys, ids),
        }
        times = timer.measure(calls)
        moved = n * (2 * keys.element_size() + 8) / speed
        print(f"{name:>34}" + "".join(f"{us:11.1f}" for us in (*map(times.get, names), moved)), flush=True)
        del keys, payload, ids, calls
    return sound


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sort_segment", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.2, help="time for one case's samples beyond 5")
    if not run(parser.parse_args()):
        raise SystemExit("sort_segment: some results are wrong; their times are left out")


if __name__ == "__main__":
    main()
