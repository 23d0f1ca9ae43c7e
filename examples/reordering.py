"""What the reordering examples share: options, kernels compiled at run time, times, tables."""

import argparse
import ctypes
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
from torch_gpuprims import _nvrtc  # noqa: E402

VARIANTS = ("original", "packed", "cached", "overlapped")


def options(doc: str | None, variants: Iterable[str] = VARIANTS) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--variant", default="all", choices=("all", *variants))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--seed", type=int, default=0)
    return parser


class Kernels:
    """The kernels of a CUDA source beside the examples, compiled by NVRTC for the device that runs them.

    Called as kernels(name, threads, *args): tensors go as pointers (None as null), ints as long long, floats
    as float; on the current stream.
    """

    def __init__(self, file: str, block: int = 128) -> None:
        self.source = (ROOT / "examples" / file).read_text()
        self.block = block
        self._module = functools.cache(self._load)

    def _load(self, index: int) -> _nvrtc.Module:
        cubin = _nvrtc.compile_cubin(self.source, torch.cuda.get_device_capability(index))
        return _nvrtc.Module(cubin, index)

    def __call__(self, name: str, threads: int, *args: torch.Tensor | int | float | None) -> None:
        if threads == 0:
            return
        device = next(a.device for a in args if isinstance(a, torch.Tensor))
        index = device.index if device.index is not None else torch.cuda.current_device()
        stream = torch.cuda.current_stream(device).cuda_stream
        blocks = -(-threads // self.block)
        self._module(index).launch(name, blocks, self.block, stream, *map(_argument, args))


def _argument(a: torch.Tensor | int | float | None) -> Any:
    if a is None:
        return ctypes.c_void_p(None)
    if isinstance(a, torch.Tensor):
        assert a.is_contiguous()
        return ctypes.c_void_p(a.data_ptr())
    return ctypes.c_longlong(a) if isinstance(a, int) else ctypes.c_float(a)


def synchronize(device: torch.device | str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def milliseconds(call: Callable[[], Any], device: torch.device | str, repeat: int = 11) -> float:
    """Median of `repeat` calls after two to warm up: device time between events, host time on the CPU."""
    call()
    call()
    times = []
    if torch.device(device).type == "cuda":
        for _ in range(repeat):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(200_000)  # the host gets ahead, so that launches are not timed
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    else:
        for _ in range(max(1, repeat // 4)):
            start = time.perf_counter()
            call()
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def whole(call: Callable[[], Any], device: torch.device | str) -> tuple[Any, float]:
    """(result, ms of wall time), the device included."""
    synchronize(device)
    start = time.perf_counter()
    result = call()
    synchronize(device)
    return result, 1000 * (time.perf_counter() - start)


def table(title: str, rows: list[dict[str, Any]]) -> None:
    """Rows of equal keys; floats with 4 digits."""
    if not rows:
        return

    def text(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    names = list(rows[0])
    cells = [[text(row.get(name, "")) for name in names] for row in rows]
    widths = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(names)]
    print(title)
    for row in (names, *cells):
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def finish(name: str, parameters: dict[str, Any], rows: list[dict[str, Any]], to: Path | None) -> None:
    """The table, and the same as JSON; the exit status tells whether every check held."""
    table(f"{name}: " + ", ".join(f"{k} {v}" for k, v in parameters.items()), rows)
    if to is not None:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(json.dumps({"example": name, "parameters": parameters, "rows": rows}, indent=1))
    wrong = [row["variant"] for row in rows if not row.get("right", True)]
    if wrong:
        raise SystemExit(f"{name}: wrong results: {', '.join(wrong)}")
