"""The demo: a graph network trained on Cora with our layers, and every op beside PyTorch's."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from . import _compare
from ._screen import progress
from .graph import Graph
from .nn import GCNConv
from .topk import topk

GOAL = 80.5  # % of the test papers, averaged over the seeds; 81.0-82.0 is usual
EPOCHS, HIDDEN, DROPOUT, RATE, DECAY = 200, 16, 0.5, 0.01, 5e-4  # Kipf & Welling, ICLR 2017
#: The file holds class numbers; the sizes of Cora's classes (all different) tell which is which.
CLASSES = (
    "theory", "reinforcement learning", "genetic algorithms", "neural networks",
    "probabilistic methods", "case-based", "rule learning",
)  # fmt: skip


class Cora:
    """The citation graph, its bag-of-words features (sparse, rows summing to 1) and the public split."""

    def __init__(self, device: torch.device) -> None:
        with np.load(Path(__file__).parent / "data" / "cora.npz") as file:
            data = {
                name: torch.from_numpy(file[name].astype(np.float32 if name == "feat_data" else np.int64)).to(
                    device
                )
                for name in file.files
            }
        self.indptr, self.indices, self.labels = data["indptr"], data["indices"], data["labels"]
        self.train, self.test = data["train_idx"], data["test_idx"]
        self.nodes, self.words = data["feat_shape"].tolist()
        self.classes = len(CLASSES)
        self.word_indptr, self.word_indices = data["feat_indptr"], data["feat_indices"]
        counts = self.word_indptr.diff()
        self.word_values = data["feat_data"] / counts.clamp(min=1).float().repeat_interleave(counts)

    def features(self, dropout: float) -> torch.Tensor:
        """[nodes, words] in CSR; dropout falls on the stored values, the zeros have nothing to lose."""
        values = F.dropout(self.word_values, dropout, training=dropout > 0)
        return _compare.csr_tensor(self.word_indptr, self.word_indices, values, self.words)


class GCN(torch.nn.Module):
    """Two GCNConv layers with dropout between them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = GCNConv(inputs, HIDDEN)
        self.second = GCNConv(HIDDEN, outputs)

    def forward(self, x: torch.Tensor, graph: Graph) -> torch.Tensor:
        hidden = self.first(x, graph).relu()
        return self.second(F.dropout(hidden, DROPOUT, self.training), graph)


@contextmanager
def one_thread() -> Iterator[None]:
    """Cora is too small for more: threads that wait for a busy core cost far more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def train(data: Cora, graph: Graph, seed: int, advance: Callable[[], None]) -> torch.Tensor:
    """Train one network from this seed; returns its class probabilities, [nodes, classes]."""
    torch.manual_seed(seed)
    model = GCN(data.words, data.classes).to(data.labels.device)
    optimizer = torch.optim.Adam(
        [
            {"params": model.first.parameters(), "weight_decay": DECAY},
            {"params": model.second.parameters(), "weight_decay": 0.0},
        ],
        lr=RATE,
    )
    target = data.labels[data.train]
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        F.cross_entropy(model(data.features(DROPOUT), graph)[data.train], target).backward()
        optimizer.step()
        advance()
    model.eval()
    with torch.no_grad():
        return model(data.features(0.0), graph).softmax(-1)


def rank_surest(data: Cora, probability: torch.Tensor, k: int = 100) -> dict[str, Any]:
    """The k test papers the networks are surest of: a top-k over all papers, masked to the test set."""
    confidence, predicted = probability.max(-1)
    is_test = torch.zeros(data.nodes, dtype=torch.bool, device=confidence.device)
    is_test[data.test] = True
    surest = topk(confidence, k, mask=is_test)
    expected = confidence.masked_fill(~is_test, -torch.inf).sort(descending=True, stable=True)
    right = predicted == data.labels
    return {
        "k": k,
        "right": int(right[surest.indices].sum()),
        "same_as_torch_sort": torch.equal(surest.indices, expected.indices[:k])
        and torch.equal(surest.values, expected.values[:k]),
        "first": [
            {
                "paper": node,
                "class": CLASSES[int(predicted[node])],
                "confidence": round(float(confidence[node]), 4),
                "right": bool(right[node]),
            }
            for node in surest.indices[:5].tolist()
        ],
    }


def op_cases(data: Cora, device: torch.device) -> list[_compare.Case]:
    """A few shapes of each op: the real graph, and sizes on which a GPU shows."""
    cases = [
        _compare.topk_case(rows, n, k, device)
        for rows, n, k in ((1, 2708, 10), (100, 10_000, 10), (16_384, 256, 8), (1, 1_000_000, 20))
    ]
    cases += [
        _compare.aggregate_case("Cora", data.indptr, data.indices, features, device) for features in (16, 128)
    ]
    indptr, indices = _compare.random_graph(50_000, 500_000)
    return [*cases, _compare.aggregate_case("50k nodes 500k edges", indptr, indices, 64, device)]


def run(seeds: int, device: torch.device) -> dict[str, Any]:
    """Everything the screen shows, as plain data; `ok` says whether every check passed."""
    start = time.perf_counter()
    data = Cora(device)
    loaded = time.perf_counter()
    graph = Graph.from_csr(data.indptr, data.indices, num_src=data.nodes).prepare()
    built = time.perf_counter()
    with one_thread(), progress(f"training {seeds} x {EPOCHS} epochs", seeds * EPOCHS) as advance:
        probabilities = [train(data, graph, seed, advance) for seed in range(seeds)]
    trained = time.perf_counter()
    truth = data.labels[data.test]
    accuracy = [100 * float((p[data.test].argmax(-1) == truth).float().mean()) for p in probabilities]
    surest = rank_surest(data, torch.stack(probabilities).mean(0))

    ops = []
    cases = op_cases(data, device)
    with progress("comparing with PyTorch", len(cases)) as advance:
        for case in cases:
            outcome = _compare.compare(case)
            ours, theirs = _compare.median_times(case, device)
            advance()
            ops.append(
                {
                    "op": case.op,
                    "case": case.name,
                    "same_values": outcome.same_values,
                    "same_indices": outcome.same_indices,
                    "worst_difference": outcome.worst,
                    "us": round(ours, 1),
                    "torch_us": round(theirs, 1),
                    "ok": outcome.ok,
                }
            )
    reached = mean(accuracy) >= GOAL
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "graph": {
            "nodes": data.nodes,
            "edges": len(data.indices),
            "features": data.words,
            "classes": data.classes,
            "load_ms": round(1e3 * (loaded - start), 1),
            "build_ms": round(1e3 * (built - loaded), 1),
        },
        "training": {
            "seeds": seeds,
            "accuracy": [round(a, 1) for a in accuracy],
            "mean": round(mean(accuracy), 2),
            "spread": round(pstdev(accuracy), 2),
            "goal": GOAL,
            "reached": reached,
            "seconds": round(trained - built, 1),
        },
        "surest": surest,
        "ops": ops,
        "seconds": round(time.perf_counter() - start, 1),
        "ok": reached and surest["same_as_torch_sort"] and all(op["ok"] for op in ops),
    }
