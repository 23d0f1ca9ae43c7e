"""topk with a mask, beside topk without one and beside PyTorch: masked_fill, then torch.topk.

    python -m bench.topk_mask [--device cuda] [--seconds 0.2]

Microseconds, medians of interleaved repetitions, L2 evicted; half of the elements are dropped. `both read` is
the time to read input and mask once at the speed of a copy measured in the same run.
"""

import argparse
from functools import partial

import torch

from bench import harness
from bench.topk_data import random_input
from torch_gpuprims import topk

#: (rows, n, k)
SHAPES = [
    (1, 1_000_000, 20), (1, 100_000_000, 20), (64, 1_000_000, 100), (1024, 32_768, 64), (128, 152_064, 50),
    (4096, 4096, 32), (16_384, 256, 8), (100_000, 100, 5), (64, 131_072, 2048),
]  # fmt: skip


def by_torch(x: torch.Tensor, mask: torch.Tensor, k: int) -> torch.return_types.topk:
    return torch.topk(x.masked_fill(~mask, -torch.inf), k)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.topk_mask", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=0.2, help="time for one case's samples beyond 20")
    options = parser.parse_args()
    timer = harness.Timer(options.device, evict=True, seconds=options.seconds)
    cuda = options.device.startswith("cuda")
    copied = torch.empty(1 << 26 if cuda else 1 << 16, device=options.device)
    speed = 2 * copied.nbytes / timer.measure({"ours": lambda: copied.clone()})["ours"]
    names = ("masked", "one for all", "unmasked", "torch")
    print(f"{'':>26}" + "".join(f"{name:>14}" for name in (*names, "both read")))
    for rows, n, k in SHAPES:
        if not cuda:
            rows, n = min(rows, 64), min(n, 10_000)
        x = random_input(rows, n, torch.float32, options.device)
        mask = random_input(rows, n, torch.float32, options.device, seed=2) > 0
        shared = mask[0]  # broadcast to every row
        assert torch.equal(topk(x, k, mask=mask).values, by_torch(x, mask, k).values), "values differ"
        times = timer.measure(
            {
                "masked": partial(topk, x, k, mask=mask),
                "one for all": partial(topk, x, k, mask=shared),
                "unmasked": partial(topk, x, k),
                "torch": partial(by_torch, x, mask, k),
            }
        )
        read = (x.nbytes + mask.nbytes) / speed
        row = "".join(f"{us:14.1f}" for us in (*map(times.get, names), read))
        print(f"{f'{rows}x{n} k={k}':>26}{row}", flush=True)
        del x, mask


if __name__ == "__main__":
    main()
