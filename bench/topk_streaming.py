"""StreamingTopK fed from pinned host memory, beside the copy alone: python -m bench.topk_streaming.

A pinned buffer (2 GiB unless --gib says otherwise) is given again and again until 1e9 float32 elements have
passed, in chunks of --chunk MiB. `copy` moves the same chunks through the same two device buffers and selects
nothing; `copy in one` moves the whole buffer at a time, as fast as the bus allows. The goal is streaming at
90 % of the copy's own speed. Host clock, since the host takes part; the runs take turns, the median counts.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from torch_gpuprims import StreamingTopK, topk


def timed(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.topk_streaming", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--elements", type=float, default=1e9)
    parser.add_argument("--gib", type=float, default=2.0, help="of the pinned buffer")
    parser.add_argument("--chunk", type=int, default=256, help="MiB of one update")
    parser.add_argument("--staging", type=int, default=64, help="MiB of each device buffer")
    parser.add_argument("--k", type=int, nargs="+", default=[20, 2048])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    total, staging = int(options.elements), options.staging << 20
    host = torch.empty(int(options.gib * 2**30) // 4, pin_memory=True)
    host.copy_(torch.randn(len(host), device="cuda", generator=torch.Generator("cuda").manual_seed(0)))
    step = (options.chunk << 20) // 4
    chunks, left = [], total
    while left > 0:
        for begin in range(0, min(left, len(host)), step):
            chunks.append(host[begin : min(begin + step, left, len(host))])
        left -= len(host)
    buffers = [torch.empty(staging // 4, device="cuda") for _ in range(2)]
    whole = torch.empty_like(host, device="cuda")

    def copy() -> None:
        turn = 0
        for chunk in chunks:
            for piece in chunk.split(staging // 4):
                buffers[turn][: len(piece)].copy_(piece, non_blocking=True)
                turn = 1 - turn

    def copy_in_one() -> None:
        left = total
        while left > 0:
            part = min(left, len(host))
            whole[:part].copy_(host[:part], non_blocking=True)
            left -= part

    def streaming(k: int, non_blocking: bool) -> StreamingTopK:
        stream = StreamingTopK(k, device="cuda", staging_bytes=staging)
        for chunk in chunks:
            stream.update(chunk, non_blocking=non_blocking)
        return stream

    gigabytes = 4 * total / 1e9
    for k in options.k:
        found = streaming(k, True).result()
        repeats = torch.cat([whole[: len(host)].copy_(host)] * (-(-total // len(host))))[:total]
        expected = topk(repeats, k)
        assert torch.equal(found.values, expected.values), "values differ from one topk over the whole"
        assert torch.equal(found.indices, expected.indices), "indices differ from one topk over the whole"
        del repeats
        runs: dict[str, Callable[[], object]] = {
            "copy": copy,
            "copy in one": copy_in_one,
            "streaming": lambda k=k: streaming(k, True),
            "streaming, waiting for each copy": lambda k=k: streaming(k, False),
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(options.rounds):
            for name, run in runs.items():
                times[name].append(timed(run))
        base = statistics.median(times["copy"])
        print(f"k={k}, {total:.2e} float32, chunks of {options.chunk} MiB, staging 2 x {options.staging} MiB")
        for name, taken in times.items():
            middle = statistics.median(taken)
            print(f"{name:>34}{middle * 1e3:10.1f} ms{gigabytes / middle:8.1f} GB/s{base / middle:8.1%}")


if __name__ == "__main__":
    main()
