"""Times the ladder and prints the table of docs/reduce_ladder.md.

    python -m bench.ladder [--seconds 1] [--sizes 24 28]
    python -m bench.ladder --build 90        # compiles for sm_90, without a GPU

A time is that of the whole sum, all launches, L2 warm (2^24 numbers fit in it; 2^28 do not). Steps 1 and 2
work in place, so that their input is other numbers after the first call: the result is checked before.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch

import torch_gpuprims
from bench import harness
from bench.ladder import library

Row = dict[str, float]


def ours(x: torch.Tensor) -> tuple[Callable[[], Any], Callable[[], torch.Tensor]]:
    reduce = getattr(torch_gpuprims, "reduce", None)
    if reduce is None:  # the sum of one segment
        ends = torch_gpuprims.Segments(torch.tensor([0, x.numel()], device=x.device))
        return (lambda: torch_gpuprims.segment_reduce(x, ends)), (
            lambda: torch_gpuprims.segment_reduce(x, ends)[0]
        )
    return (lambda: reduce(x, "sum")), (lambda: reduce(x, "sum"))


def column(log2: int, dtype: torch.dtype, seconds: float) -> Row:
    """Microseconds by name."""
    n = 1 << log2
    g = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randint(0, 8, (n,), device="cuda", generator=g, dtype=torch.int32).to(dtype)
    want = int(x.sum(dtype=torch.int64))
    calls: dict[str, tuple[Callable[[], Any], Callable[[], torch.Tensor]]] = {}
    for number, name in library.STEPS.items():
        own = x.clone() if number <= 2 else x
        calls[f"{number}. {name}"] = library.step(number, own)
    calls["torch.sum"] = (lambda: torch.sum(x)), (lambda: torch.sum(x))
    if (rival := library.asum(x)) is not None:
        calls["cuBLAS asum"] = rival
    calls["CUB DeviceReduce::Sum"] = library.cub(x)
    calls["torch_gpuprims"] = ours(x)
    for name, (run, result) in calls.items():
        run()
        got = float(result())
        if abs(got - want) > 1e-5 * want:
            raise SystemExit(f"{name} gives {got} for {want}")
    timer = harness.Timer("cuda", evict=False, seconds=seconds)
    return timer.measure({name: run for name, (run, _) in calls.items()})


def table(columns: dict[str, Row], bytes_: dict[str, int]) -> str:
    heads = list(columns)
    lines = [
        "| step | " + " | ".join(f"{head}, us" for head in heads) + " | GB/s of the last |",
        "| --- |" + " ---: |" * (len(heads) + 1),
    ]
    names = list(dict.fromkeys(name for times in columns.values() for name in times))
    for name in names:
        cells = [f"{columns[head][name]:.1f}" if name in columns[head] else "-" for head in heads]
        last = heads[-1]
        speed = f"{bytes_[last] / columns[last][name] / 1e3:.0f}" if name in columns[last] else "-"
        lines.append(f"| {name} | {' | '.join(cells)} | {speed} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ladder", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--build", metavar="ARCH", help="compile for an architecture such as 90, nothing else"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="time for one column beyond 20 repetitions"
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[24, 28], help="powers of two")
    options = parser.parse_args()
    if options.build:
        print(library.build(options.build))
        return
    if not torch.cuda.is_available():
        raise SystemExit("the ladder needs a GPU; --build 90 compiles it without one")
    columns, bytes_ = {}, {}
    for dtype in (torch.int32, torch.float32):
        for log2 in options.sizes:
            head = f"2^{log2} {str(dtype).removeprefix('torch.')}"
            columns[head], bytes_[head] = column(log2, dtype, options.seconds), 4 << log2
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n\n{table(columns, bytes_)}")


if __name__ == "__main__":
    main()
