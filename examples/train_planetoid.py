"""GCN, SAGE or GAT on Cora, CiteSeer or PubMed: torch_gpuprims beside PyTorch Geometric.

    python examples/train_planetoid.py --layer gat --plot gat_cora.png
    GPUPRIMS_DATA=folder python examples/train_planetoid.py --dataset citeseer

Cora ships with the package; GPUPRIMS_DATA names a folder with citeseer.npz and pubmed.npz in the same form
(indptr, indices, labels, feat_indptr, feat_indices, feat_data, feat_shape, train_idx, test_idx). Public
split; accuracy is the mean over the seeds. Papers: GCN 81.5 and 70.3 (Kipf and Welling, 2017), GAT 83.0 and
72.5 (Velickovic and others, 2018).
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
from training import LIBRARIES, Net, Task, report, train  # noqa: E402

from torch_gpuprims import Graph  # noqa: E402


def load(name: str, device: torch.device) -> Task:
    folders = [ROOT / "torch_gpuprims/data", Path(os.environ.get("GPUPRIMS_DATA", "."))]
    file = next((f / f"{name}.npz" for f in folders if (f / f"{name}.npz").exists()), None)
    if file is None:
        raise SystemExit(f"{name}.npz is not at hand: GPUPRIMS_DATA names its folder")
    with np.load(file) as arrays:
        part = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    nodes, words = part["feat_shape"].tolist()
    counts = part["feat_indptr"].long().diff()
    rows = torch.arange(nodes).repeat_interleave(counts)
    x = torch.zeros(nodes, words)
    x[rows, part["feat_indices"].long()] = part["feat_data"].float()
    x /= x.sum(1, keepdim=True).clamp(min=1e-12)
    indptr, indices = part["indptr"].long().to(device), part["indices"].long().to(device)
    graph = Graph.from_csr(indptr, indices, nodes)
    owner = torch.arange(nodes, device=device).repeat_interleave(indptr.diff())
    edge_index = torch.stack([indices, owner])
    labels = part["labels"].long().to(device)
    return Task(
        x.to(device), labels, part["train_idx"].long().to(device), part["test_idx"].long().to(device),
        int(labels.max()) + 1, lambda library: graph if library == "torch_gpuprims" else edge_index,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dataset", default="cora", choices=("cora", "citeseer", "pubmed"))
    parser.add_argument("--layer", default="gat", choices=("gcn", "sage", "gat"))
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    task = load(options.dataset, torch.device(options.device))
    gat = options.layer == "gat"
    sizes = [task.x.shape[1], 8 if gat else 16, task.classes]

    def make(library: str) -> torch.nn.Module:
        return Net(library, options.layer, sizes, heads=8, dropout=0.6 if gat else 0.5)

    runs = []
    for library in LIBRARIES:
        rate = 0.005 if gat else 0.01
        each = [train(library, make, task, options.epochs, rate, 5e-4, seed) for seed in range(options.seeds)]
        run = each[0]
        run.accuracy = [sum(column) / len(each) for column in zip(*(r.accuracy for r in each), strict=True)]
        run.epoch_ms = sum(r.epoch_ms for r in each) / len(each)
        runs.append(run)
    report(
        f"{options.layer} on {options.dataset}, {options.seeds} seeds, {options.device}", runs, options.plot
    )


if __name__ == "__main__":
    main()
