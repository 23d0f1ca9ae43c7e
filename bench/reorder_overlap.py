"""What overlap is worth: aggregation out of core with and without, and a timeline of it from the profiler.

    python -m bench.reorder_overlap --svg docs/images/reorder_overlap.svg
    python -m bench.reorder_overlap --device cpu --nodes 2000      # to try it out

Features of `nodes` x 64 float32 lie in pinned memory; the graph is a band (each node reads a run of its
neighbours) or communities with shuffled ids, as given and with a schedule. "off" runs each range's gather,
copy, kernel and copy back before the next one's.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torch_gpuprims.reorder_out_of_core as module
from torch_gpuprims import Graph, aggregate_out_of_core, neighbor_aggregate

COLUMNS = 64


def band(nodes: int, device: str) -> Graph:
    """16 neighbours within 64 ids."""
    g = torch.Generator().manual_seed(1)
    dst = torch.arange(nodes).repeat_interleave(16)
    src = (dst + torch.randint(-64, 65, (len(dst),), generator=g)) % nodes
    return Graph.from_coo(torch.stack([src, dst]).to(device), nodes)


def communities(nodes: int, device: str) -> Graph:
    """16 neighbours within 1,000 nodes whose ids are shuffled."""
    g = torch.Generator().manual_seed(2)
    size = min(1000, nodes)
    dst = torch.arange(nodes).repeat_interleave(16)
    src = (dst // size * size + torch.randint(size, (len(dst),), generator=g)).clamp(max=nodes - 1)
    name = torch.randperm(nodes, generator=g)
    return Graph.from_coo(torch.stack([name[src], name[dst]]).to(device), nodes)


def in_order(
    chunks: Any, reorder: Callable[[Any], Any], compute: Callable[[Any], Any], *_: Any, **__: Any
) -> Any:
    """`overlapped` without overlap: the device is waited for after each step."""
    results = []
    for chunk in chunks:
        block = reorder(chunk)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        results.append(compute(block))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return results


def seconds(call: Callable[[], Any], repeat: int = 5) -> float:
    call()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def measure(name: str, graph: Graph, x: torch.Tensor, budget: int, device: str) -> dict[str, Any]:
    row: dict[str, Any] = {"case": name}
    expected = neighbor_aggregate(x.to(device), graph).cpu()
    on = module.overlapped

    def call(streams: int) -> torch.Tensor:
        return aggregate_out_of_core(x, graph, budget_bytes=budget, device=device, streams=streams)

    for label, streams in (("off", 2), ("1 stream", 1), ("2 streams", 2), ("4 streams", 4)):
        module.overlapped = in_order if label == "off" else on  # type: ignore[assignment]
        try:
            row[label + "_ms"] = 1000 * seconds(lambda s=streams: call(s))
            row["right"] = row.get("right", True) and torch.equal(call(streams), expected)
        finally:
            module.overlapped = on
    parts = next(iter(module._kept[graph].values()))
    row["ranges"] = len(parts)
    row["read_MB"] = sum(part.graph.num_src for part in parts) * COLUMNS * 4 / 1e6
    return row


def copies(x: torch.Tensor, device: str) -> float:
    """ms of the copies alone: x there, and a result back at the same time."""
    on_device, out = torch.empty_like(x, device=device), torch.empty_like(x, pin_memory=device != "cpu")
    other = torch.empty_like(on_device)

    def both() -> None:
        if device == "cpu":
            on_device.copy_(x)
            return
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            out.copy_(other, non_blocking=True)
        on_device.copy_(x, non_blocking=True)
        torch.cuda.synchronize()

    return 1000 * seconds(both)


# The timeline ------------------------------------------------------------------------------------


def trace(call: Callable[[], Any]) -> list[dict[str, Any]]:
    """Kernels and copies of one call: name, stream, start and duration in us."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    wanted = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy") and "dur" in e]
    return [
        {"name": e["name"], "stream": e["args"].get("stream", e["tid"]), "start": e["ts"], "us": e["dur"]}
        for e in wanted
    ]


def svg(events: list[dict[str, Any]], title: str) -> str:
    """A lane a stream; copies to the device, copies back, and kernels each in a colour."""
    begin = min(e["start"] for e in events)
    end = max(e["start"] + e["us"] for e in events)
    streams = sorted(
        {e["stream"] for e in events}, key=lambda s: min(e["start"] for e in events if e["stream"] == s)
    )
    width, lane, left, top = 960, 26, 90, 44
    scale = (width - left - 10) / (end - begin)
    colours = {
        "HtoD": ("#4477aa", "copy to the device"),
        "DtoH": ("#ccbb44", "copy back"),
        "": ("#ee6677", "kernel"),
    }
    height = top + lane * len(streams) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/><text x="10" y="18">{title}</text>'
    ]
    for i, (colour, words) in enumerate(colours.values()):
        lines.append(f'<rect x="{10 + 160 * i}" y="26" width="12" height="10" fill="{colour}"/>')
        lines.append(f'<text x="{26 + 160 * i}" y="35">{words}</text>')
    for number, stream in enumerate(streams):
        y = top + lane * number
        lines.append(f'<text x="10" y="{y + 16}">stream {stream}</text>')
        for e in events:
            if e["stream"] == stream:
                kind = next(k for k in colours if k in e["name"])
                x, w = left + (e["start"] - begin) * scale, max(e["us"] * scale, 0.4)
                box = f'x="{x:.1f}" y="{y + 3}" width="{w:.1f}" height="{lane - 6}"'
                lines.append(f'<rect {box} fill="{colours[kind][0]}"/>')
    y = top + lane * len(streams) + 6
    for i in range(5):
        x = left + (width - left - 10) * i / 4
        lines.append(
            f'<text x="{x:.0f}" y="{y + 14}" text-anchor="middle">{(end - begin) * i / 4000:.2f} ms</text>'
        )
    return "\n".join([*lines, "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--budget", type=float, default=0.125, help="of the features' bytes")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--json", type=Path)
    option = parser.parse_args()
    x = torch.randn(option.nodes, COLUMNS, generator=torch.Generator().manual_seed(3))
    if option.device != "cpu":
        x = x.pin_memory()
    budget = int(option.budget * x.nbytes)
    print(
        f"{x.nbytes / 1e6:.0f} MB of features, a budget of {budget / 1e6:.0f} MB, "
        f"copies alone {copies(x, option.device):.2f} ms"
    )
    rows, plain = [], communities(option.nodes, option.device)
    ordered = plain.reorder("community")
    banded = band(option.nodes, option.device)
    for name, graph in (("band", banded), ("communities", plain), ("communities, scheduled", ordered)):
        rows.append(measure(name, graph, x, budget, option.device))
        print(
            "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()),
            flush=True,
        )
    if option.json:
        option.json.write_text(json.dumps(rows, indent=1))
    if option.svg and option.device != "cpu":
        budget = int(0.4 * x.nbytes)  # ranges long enough for the profiler's own cost not to be what is seen
        aggregate_out_of_core(x, banded, budget_bytes=budget, streams=4)
        events = trace(lambda: aggregate_out_of_core(x, banded, budget_bytes=budget, streams=4))
        option.svg.parent.mkdir(parents=True, exist_ok=True)
        option.svg.write_text(
            svg(events, "Aggregation out of core: ranges are copied on four streams while others are summed")
        )
        print(f"{option.svg}: {len(events)} events")


if __name__ == "__main__":
    main()
