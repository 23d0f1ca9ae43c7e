"""What the examples share: a model of either library, training with times and memory, a table and a plot."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from torch_gpuprims import nn as ours

try:
    import torch_geometric.nn as theirs
except ImportError:
    theirs = None

LIBRARIES = {"torch_gpuprims": ours, **({"PyG": theirs} if theirs is not None else {})}


@dataclass
class Task:
    """Node classification: a Graph for ours or an edge_index for PyG is made by `edges`."""

    x: torch.Tensor
    labels: torch.Tensor
    train: torch.Tensor
    test: torch.Tensor
    classes: int
    edges: Callable[[str], Any]


@dataclass
class Run:
    library: str
    epoch_ms: float = float("nan")
    peak_gib: float = float("nan")
    accuracy: list[float] = field(default_factory=list)  # of the test nodes, %, every `every` epochs
    every: int = 1
    failed: str = ""


class Net(torch.nn.Module):
    """Layers of one library with dropout between them; `kind` is gcn, sage or gat."""

    def __init__(
        self, library: str, kind: str, sizes: list[int], heads: int = 1, dropout: float = 0.5,
        final_heads: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        nn, self.dropout, self.kind = LIBRARIES[library], dropout, kind
        layers: list[torch.nn.Module] = []
        wide = sizes[0]
        for number, size in enumerate(sizes[1:], 2):
            last = number == len(sizes)
            if kind == "gat":
                count = final_heads if last else heads
                layers.append(nn.GATConv(wide, size, count, concat=not last, dropout=dropout))
                wide = size * (1 if last else count)
            else:
                layers.append((nn.GCNConv if kind == "gcn" else nn.SAGEConv)(wide, size))
                wide = size
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, edges: Any) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(F.dropout(x, self.dropout, self.training), edges)
            if number + 1 < len(self.layers):
                x = F.elu(x) if self.kind == "gat" else F.relu(x)
        return x


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def train(
    library: str, make: Callable[[str], torch.nn.Module], task: Task, epochs: int, rate: float, decay: float,
    seed: int = 0, every: int = 5,
) -> Run:  # fmt: skip
    """Full-batch training; the time of an epoch is without evaluation and the first three epochs."""
    run, device = Run(library, every=every), task.x.device
    torch.manual_seed(seed)
    model = make(library).to(device)
    optimizer = torch.optim.Adam(model.parameters(), rate, weight_decay=decay)
    times = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    try:
        edges = task.edges(library)
        for epoch in range(epochs):
            model.train()
            synchronize(device)
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(task.x, edges)[task.train], task.labels[task.train])
            loss.backward()
            optimizer.step()
            synchronize(device)
            times.append(time.perf_counter() - start)
            if epoch % every == every - 1 or epoch + 1 == epochs:
                model.eval()
                with torch.no_grad():
                    right = model(task.x, edges)[task.test].argmax(1) == task.labels[task.test]
                run.accuracy.append(100 * right.double().mean().item())
    except torch.OutOfMemoryError:
        run.failed = "out of memory"
    if device.type == "cuda":
        run.peak_gib = (torch.cuda.max_memory_allocated(device) - before) / 2**30
    if len(times) > 3:
        run.epoch_ms = 1000 * sorted(times[3:])[len(times[3:]) // 2]
    return run


def report(title: str, runs: list[Run], plot: Path | None) -> None:
    print(f"{title}\n{'':>16}{'epoch ms':>10}{'peak GiB':>10}{'accuracy %':>12}")
    for run in runs:
        last = f"{run.accuracy[-1]:.1f}" if run.accuracy and not run.failed else run.failed or "-"
        print(f"{run.library:>16}{run.epoch_ms:>10.2f}{run.peak_gib:>10.2f}{last:>12}")
    if plot is None:
        return
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for run in runs:
        steps = [run.every * (i + 1) for i in range(len(run.accuracy))]
        left.plot(steps, run.accuracy, label=run.library)
    left.set(xlabel="epoch", ylabel="test accuracy, %", title=title)
    left.legend()
    right.bar([run.library for run in runs], [0 if run.failed else run.epoch_ms for run in runs])
    right.set(ylabel="median epoch, ms", title="training time")
    for number, run in enumerate(runs):
        words = run.failed or f"{run.epoch_ms:.1f} ms, {run.peak_gib:.1f} GiB"
        right.annotate(words, (number, 0 if run.failed else run.epoch_ms), ha="center", va="bottom")
    figure.savefig(plot, dpi=120)
    print(f"plot: {plot}")
