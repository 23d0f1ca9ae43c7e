"""The layers that targets.json does not name, forward and backward beside PyTorch Geometric's.

    python -m bench.layers_others [--nodes 100000] [--degree 20] [--seconds 0.3]

A uniform graph, 64 features. Results are compared before they are timed. MaxKConv has no counterpart in PyG.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench import harness
from bench.layers import differs
from torch_gpuprims import Graph, nn

try:
    import torch_geometric.nn as pyg
except ImportError:
    pyg = None

WIDTH = 64
WORDS = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
Layer = tuple[str, Callable[[Any], torch.nn.Module]]


def layers(deg: torch.Tensor) -> Iterator[Layer]:
    """(name, how to make it of a library)"""
    yield "GINConv", lambda where: where.GINConv(torch.nn.Linear(WIDTH, WIDTH))
    yield "GATv2Conv 4x16", lambda where: where.GATv2Conv(WIDTH, WIDTH // 4, 4)
    yield "PNAConv", lambda where: where.PNAConv(WIDTH, WIDTH, *WORDS, deg)
    yield "MaxKConv k=16", lambda where: where.MaxKConv(WIDTH, WIDTH, 16)


def step(run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, parameters: list[Any]) -> harness.Call:
    def call() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(run(x).square().sum(), [x, *parameters])

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.3, help="time for one case's samples beyond 10")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    nodes, device = options.nodes, options.device
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(nodes, (2, nodes * options.degree), generator=g).to(device)
    graph = Graph.from_coo(ends, nodes)
    x = torch.randn(nodes, WIDTH, generator=g).to(device).requires_grad_()
    deg = torch.bincount(graph.degree().long()).cpu()
    timer = harness.Timer(device, evict=False, seconds=options.seconds, min_reps=10, max_reps=50)

    def report(name: str, calls: dict[str, harness.Call]) -> None:
        wrong = differs(calls["ours"](), calls["PyG"]()) if "PyG" in calls else None
        times = {} if wrong else timer.measure(calls)
        print(f"{name:>20}   {wrong or '  '.join(f'{k} {us:.0f} us' for k, us in times.items())}", flush=True)

    for name, make in layers(deg):
        torch.manual_seed(1)
        ours = make(nn).to(device)
        if hasattr(ours, "prepare"):
            ours.prepare(graph)
        parameters = [p for _, p in sorted(ours.named_parameters())]
        calls = {"ours": step(lambda t, layer=ours: layer(t, graph), x, parameters)}
        if pyg is not None and hasattr(pyg, name.split()[0]):
            theirs = make(pyg).to(device)
            theirs.load_state_dict(ours.state_dict())
            same = [p for _, p in sorted(theirs.named_parameters())]
            calls["PyG"] = step(lambda t, layer=theirs: layer(t, ends), x, same)
        report(name, calls)
        del calls
    batch = (torch.arange(nodes, device=device) * 1000 // nodes).contiguous()
    for name in ("global_add_pool", "global_max_pool"):
        libraries = {"ours": nn, **({"PyG": pyg} if pyg is not None else {})}
        pools = {key: getattr(where, name) for key, where in libraries.items()}
        report(name, {key: step(lambda t, p=pool: p(t, batch), x, []) for key, pool in pools.items()})


if __name__ == "__main__":
    main()
