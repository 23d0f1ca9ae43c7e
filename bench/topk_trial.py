"""topk's candidates (csrc/topk/trial.h) beside what is there, interleaved in one process.

`python -m bench.topk_trial` times every case with trial 0 and with the bits that concern it; `--data` does so
on every distribution. A wrong result is printed instead of a time.
"""

import argparse
import ctypes
from functools import partial

import torch

import torch_gpuprims
from bench import harness
from bench.topk import verify
from bench.topk_data import DISTRIBUTIONS, fill, random_input

FEW, MANY, EARLY = 1, 2, 4  # topk_tuning::kTryParts, kTryManyParts, kTryEarly
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
#: (rows, n, k, dtype, trials): the targets first.
CASES = [
    (1, 1_000_000, 20, F32, (FEW, EARLY)), (1, 10_000_000, 20, F32, (FEW, EARLY)),
    (1, 100_000_000, 20, F32, (FEW,)), (1, 100_000_000, 20, BF16, (FEW,)),
    (64, 1_000_000, 100, F32, (FEW, EARLY)), (64, 131_072, 2048, F32, (EARLY,)),
    (1024, 32_768, 64, F32, (MANY,)), (1024, 32_768, 64, BF16, (MANY,)),
    (128, 152_064, 50, F32, (FEW,)), (1, 2_000_000, 20, F32, (FEW, EARLY)), (1, 2_000_000, 20, F16, (FEW,)),
    (1, 300_000, 10, F32, (FEW,)), (8, 1_000_000, 64, BF16, (FEW,)), (32, 250_000, 64, F32, (FEW,)),
    (1, 10_000_000, 100, F32, (EARLY,)), (100, 60_000, 64, F32, (FEW,)),
    (4096, 8192, 32, F32, (MANY,)), (4096, 8192, 64, F32, (MANY,)), (2048, 16_384, 64, F32, (MANY,)),
    (300, 32_768, 64, BF16, (MANY,)), (4096, 32_768, 10, BF16, (MANY,)), (1024, 32_768, 96, F16, (MANY,)),
    # 16-bit kernels that now serve two types, to compare with the record: no trial
    (100, 10_000, 10, BF16, ()), (8, 131_072, 64, BF16, ()), (4096, 4096, 32, BF16, ()),
    (4096, 4096, 32, F16, ()),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", action="store_true", help="every distribution")
    parser.add_argument("--cases", default="", help="part of a name, as 1x1000000")
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    library = ctypes.CDLL(torch_gpuprims._native.loaded["_C_cuda.so"]["file"])
    choose = library.gpuprims_topk_trial
    timer = harness.Timer("cuda", evict=True, seconds=options.seconds)

    def call(trial: int, x: torch.Tensor, k: int) -> None:
        choose(trial)
        torch_gpuprims.topk(x, k)

    for rows, n, k, dtype, trials in CASES:
        name = f"{rows}x{n} k={k} {str(dtype).removeprefix('torch.')}"
        if options.cases not in name:
            continue
        x = random_input(rows, n, dtype, "cuda")
        for kind in DISTRIBUTIONS if options.data else ("normal",):
            if options.data:
                fill(x, kind)
            calls = {}
            text = f"{name:>34} {kind:>9}"
            for trial in (0, *trials):
                choose(trial)
                if wrong := verify(x, k):
                    text += f"  {trial}: WRONG: {wrong}"
                else:
                    calls[str(trial)] = partial(call, trial, x, k)
            times = timer.measure(calls)
            print(text + "".join(f"  trial {trial}: {us:8.1f}" for trial, us in times.items()), flush=True)
        del x
    choose(0)


if __name__ == "__main__":
    main()
