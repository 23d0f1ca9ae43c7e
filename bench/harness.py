"""Times implementations of one case side by side, by the GPU's own clock.

A sample is: a spin kernel (so that the host has queued everything before the GPU begins), a read of a buffer
larger than L2 where the case wants a cold cache, an event, the call, an event. Implementations take turns, so
that a drift of the clocks falls on all of them alike; the median counts. Without a GPU the host's clock is
used, which serves to try the benchmarks out and for nothing else.
"""

import argparse
import fnmatch
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from bench import record

Call = Callable[[], Any]
MIN_REPS = 20
COLUMNS = ("case", "us", "torch", "best", "target", "x torch", "target met")


class Timer:
    def __init__(
        self, device: str, evict: bool, max_reps: int = 100, seconds: float = 3.0, min_reps: int = MIN_REPS
    ):
        """evict: a cold L2 before every call. min_reps samples a call, and more until `seconds` are up."""
        self.cuda = device.startswith("cuda")
        self.min_reps, self.max_reps, self.seconds = min_reps, max_reps, seconds
        self.cold: torch.Tensor | None = None
        if self.cuda:
            properties = torch.cuda.get_device_properties(device)
            self.cycles_per_us = getattr(properties, "clock_rate", 1_980_000) / 1000
            if evict:
                size = max(256 << 20, 4 * properties.L2_cache_size)
                self.cold = torch.zeros(size // 4, device=device)

    def _sample(self, call: Call, spin_us: float) -> tuple[float, float]:
        """(time of the call, host time of queuing it), microseconds."""
        if not self.cuda:
            start = time.perf_counter_ns()
            call()
            elapsed = (time.perf_counter_ns() - start) / 1000
            return elapsed, elapsed
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start = time.perf_counter_ns()
        torch.cuda._sleep(int(spin_us * self.cycles_per_us))
        if self.cold is not None:
            self.cold.amax()  # a read: lines written would be written back inside the timed call
        begin.record()
        call()
        end.record()
        queued = (time.perf_counter_ns() - start) / 1000
        end.synchronize()
        return begin.elapsed_time(end) * 1000, queued

    def measure(self, calls: Mapping[str, Call]) -> dict[str, float]:
        """Median microseconds of each call."""
        spin = {}
        for name, call in calls.items():
            queued: list[float] = []
            late = time.monotonic() + self.seconds / 8
            try:
                while len(queued) < 2 or (len(queued) < 4 and time.monotonic() < late):
                    queued.append(self._sample(call, 50.0)[1])
            except NotImplementedError as error:
                if name == "ours":
                    raise
                print(f"{name} is left out: {error}")  # a rival without a kernel for this dtype
                continue
            # A call that waits for the GPU cannot be hidden: the bound keeps its spin from growing with it.
            spin[name] = min(2 * min(queued[1:]) + 50, 2000.0)
        samples: dict[str, list[float]] = {name: [] for name in spin}
        stop = time.monotonic() + self.seconds
        for rep in range(self.max_reps):
            if rep >= self.min_reps and time.monotonic() > stop:
                break
            for name in spin:
                samples[name].append(self._sample(calls[name], spin[name])[0])
        return {name: statistics.median(times) for name, times in samples.items()}


def slower(us: float, torch_us: float) -> bool:
    """The rule of 'never slower': more than 3 % above, and not within 1 us below 30 us."""
    return us > 1.03 * torch_us and not (torch_us < 30 and us <= torch_us + 1)


def case_row(target: dict[str, Any], times: dict[str, float]) -> dict[str, Any]:
    """One case of the record from {'ours': us, 'torch': us, rival: us}."""
    rivals = {name: us for name, us in times.items() if name != "ours"}
    best = min(rivals, key=lambda name: rivals[name]) if rivals else None
    row = {"op": target["op"], "name": target["name"], "us": round(times["ours"], 2)}
    row["torch_us"] = round(times["torch"], 2) if "torch" in times else None
    row["best_us"] = round(rivals[best], 2) if best else None
    return {**row, "best": best, "target_us": target.get("target_us")}


def print_row(row: dict[str, Any] | None = None) -> None:
    """A line of the table; its head without a row."""
    if row is None:
        print("".join(f"{name:>{36 if name == 'case' else 11}}" for name in COLUMNS))
        return
    text = [
        f"{value:11.1f}" if value else f"{'-':>11}" for value in (row["us"], row["torch_us"], row["best_us"])
    ]
    target = row.get("target_us")
    gain = f"{row['torch_us'] / row['us']:10.2f}x" if row["torch_us"] else f"{'-':>11}"
    met = "-" if not target else "yes" if row["us"] <= target else f"{row['us'] / target:.2f}x"
    print(f"{row['name']:>36}{''.join(text)}{target or 0:11.1f}{gain}{met:>11}", flush=True)


def selected(op: str, pattern: str) -> list[dict[str, Any]]:
    """Cases of targets.json whose name matches a glob, or contains it."""
    matches = (fnmatch.fnmatch, lambda name, text: text in name)
    return [case for case in record.targets(op) if any(match(case["name"], pattern) for match in matches)]


def driver_version() -> str | None:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.split("\n")[0] or None
    except (OSError, subprocess.TimeoutExpired):
        return None


@functools.cache
def environment(device: str = "cuda") -> dict[str, Any]:
    """What the record says of machine and files; libraries are the files this process has loaded."""
    from torch_gpuprims import _native

    cuda = device.startswith("cuda")
    libraries = {name: record.sha256(Path(info["file"])) for name, info in _native.loaded.items()}
    return {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": driver_version() if cuda else None,
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d"),
        "libraries": libraries,
    }


def arguments(op: str) -> argparse.ArgumentParser:
    """The options that every op's benchmark shares."""
    parser = argparse.ArgumentParser(prog=f"python -m bench {op}", description=f"Benchmark of {op}.")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--cases", default="*", metavar="GLOB", help="names of targets.json (glob or part)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results there as JSON")
    parser.add_argument("--record", action="store_true", help="merge into bench/results/h200 (needs a GPU)")
    parser.add_argument("--device", default=default)
    parser.add_argument("--seconds", type=float, default=3.0, help="time for one case's samples beyond 20")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no new case starts")
    parser.add_argument("--host", action="store_true", help="host time of a small call, nothing else")
    return parser


class Results:
    """Collects rows and writes them after every case, so that a run cut short leaves what it measured."""

    def __init__(self, op: str, options: argparse.Namespace):
        self.op, self.options = op, options
        self.parts: dict[str, Any] = {}
        self.stop = time.monotonic() + options.limit
        if options.record and not options.device.startswith("cuda"):
            raise SystemExit("--record needs a CUDA GPU")

    def add(self, part: str, value: Any) -> None:
        if isinstance(value, list):
            self.parts.setdefault(part, []).extend(value)
        else:
            self.parts.setdefault(part, {}).update(value)
        environ = environment(self.options.device)
        if self.options.out:
            self.options.out.write_text(json.dumps({**environ, **self.parts}, indent=1) + "\n")
        if self.options.record:
            record.merge(self.op, environ, **{part: value})

    def out_of_time(self, name: str) -> bool:
        late = time.monotonic() > self.stop
        if late:
            print(f"{name:>36}   not run: --limit {self.options.limit:.0f} s is over")
        return late
