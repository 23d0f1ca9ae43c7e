"""Three layers of SAGE or GAT on a graph of the size of ogbn-products: torch_gpuprims beside PyTorch
Geometric.

    python examples/train_products.py --layer sage --plot sage.png
    python examples/train_products.py --layer gat --small --device cpu      # 1/1000 of the size, to try it
    out

The graph is bench/graphs.py's: 2.45 M nodes, 118 M edges, power-law degrees inside planted communities. The
classes are 47 groups of communities and the features a weak, noisy picture of them, so that a node needs its
neighbours. Full batches. PyG stores a message for each edge and may run out of memory: the table says so.
"""

import argparse
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
from training import LIBRARIES, Net, Task, report, train  # noqa: E402

from bench import graphs  # noqa: E402
from torch_gpuprims import Graph  # noqa: E402

CLASSES, FEATURES, SIGNAL = 47, 100, 0.12


def planted_labels(nodes: int, device: str, small: bool) -> torch.Tensor:
    """The class of each node: its community's number (as bench/graphs.py draws them) modulo CLASSES."""
    generator = graphs._gen(device, graphs.SEED + 3)
    bounds = graphs._community_bounds(nodes, 100 if small else 1000, generator, device)
    every = torch.arange(nodes, device=device)
    community = torch.searchsorted(bounds, every, right=True) - 1
    names = torch.randperm(nodes, generator=graphs._gen(device, graphs.SEED + 9), device=device)
    return torch.empty_like(community).scatter(0, names, community % CLASSES)  # the graph's ids are shuffled


def load(device: str, small: bool) -> Task:
    indptr, indices = graphs.make("products", device, small=small)
    nodes = len(indptr) - 1
    labels = planted_labels(nodes, device, small)
    g = torch.Generator(device=device).manual_seed(3)
    pictures = torch.randn(CLASSES, FEATURES, generator=g, device=device)
    x = torch.randn(nodes, FEATURES, generator=g, device=device) + SIGNAL * pictures[labels]
    order = torch.randperm(nodes, generator=g, device=device)
    graph = Graph.from_csr(indptr, indices, nodes)

    def edges(library: str) -> object:
        if library == "torch_gpuprims":
            return graph
        owner = torch.arange(nodes, device=device).repeat_interleave(indptr.diff())
        return torch.stack([indices, owner])

    return Task(x, labels, order[: nodes // 10], order[nodes // 10 :], CLASSES, edges)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layer", default="sage", choices=("sage", "gat", "gcn"))
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4, help="of GAT; each has hidden / heads channels")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", choices=tuple(LIBRARIES), help="one library alone")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    task = load(options.device, options.small)
    width = options.hidden // options.heads if options.layer == "gat" else options.hidden

    def make(library: str) -> torch.nn.Module:
        return Net(library, options.layer, [FEATURES, width, width, CLASSES], options.heads, dropout=0.1)

    libraries = [options.only] if options.only else list(LIBRARIES)
    runs = [train(library, make, task, options.epochs, 0.01, 0.0) for library in libraries]
    report(f"3 layers of {options.layer}, {len(task.x)} nodes, {options.device}", runs, options.plot)


if __name__ == "__main__":
    main()
