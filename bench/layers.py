"""Whole layers beside PyTorch Geometric's: the cases "layer" of targets.json, with the peak of memory.

    python -m bench attention [--cases GAT] [--compile] [--edge-index] [--record]

PyG is called with an edge_index, with its cache and a CSR matrix where it takes them; with --edge-index also
with an EdgeIndex (sorted, its caches filled), and with --compile also under torch.compile (minutes). Without
torch_geometric ours is timed alone. Forward+backward is the gradient in every parameter and in x. Results are
compared with PyG's.
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch

from bench import graphs, harness
from torch_gpuprims import Graph, edge_softmax, neighbor_attention, nn

try:
    import torch_geometric.nn as pyg
except ImportError:
    pyg = None

#: Arguments of both libraries' layers; 4 heads of 16 for attention.
LAYERS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "GCNConv": ("GCNConv", lambda width: {"in_channels": width, "out_channels": width}),
    "SAGEConv": ("SAGEConv", lambda width: {"in_channels": width, "out_channels": width, "aggr": "mean"}),
    "SAGEConv_max": ("SAGEConv", lambda width: {"in_channels": width, "out_channels": width, "aggr": "max"}),
    "GATConv": ("GATConv", lambda width: {"in_channels": width, "out_channels": width // 4, "heads": 4}),
}


def call_of(layer: torch.nn.Module, x: torch.Tensor, edges: Any, backward: bool) -> harness.Call:
    parameters = [x, *(p for _, p in sorted(layer.named_parameters()))]
    if not backward:

        def forward() -> torch.Tensor:
            with torch.no_grad():
                return layer(x, edges)

        return forward
    with torch.no_grad():
        out = layer(x, edges)
    g = torch.Generator(device=x.device).manual_seed(2)  # the same gradient for every library
    grad = torch.randn(out.shape, generator=g, dtype=out.dtype, device=x.device)

    def both() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(layer(x, edges), parameters, grad)

    return both


def rivals(
    args: dict[str, Any], state: dict[str, Any], x: torch.Tensor, csr: tuple[torch.Tensor, torch.Tensor],
    compiled: bool, wrapped: bool = False,
) -> dict[str, harness.Call]:  # fmt: skip
    """PyG's layer with the same parameters, as it may be called."""
    if pyg is None:
        return {}
    name, options = LAYERS[args["layer"]]
    indptr, indices = csr
    nodes = len(indptr) - 1
    owner = torch.repeat_interleave(torch.arange(nodes, device=x.device), indptr.diff())
    edge_index = torch.stack([indices.long(), owner])
    given = options(args["F"])

    def make(edges: Any, compiled: bool = False, **more: Any) -> harness.Call:
        layer = getattr(pyg, name)(**given, **more).to(x.device)
        layer.load_state_dict(state)
        return call_of(torch.compile(layer) if compiled else layer, x, edges, args["backward"])

    calls = {"torch": make(edge_index)}
    if name == "GCNConv":
        calls["PyG, cached"] = make(edge_index, cached=True)
    if name == "GCNConv" or given.get("aggr") == "mean":
        ones = torch.ones(len(indices), device=x.device)
        matrix = torch.sparse_csr_tensor(indptr, indices.long(), ones, (nodes, nodes), check_invariants=False)
        cached = {"cached": True} if name == "GCNConv" else {}
        calls["PyG, CSR"] = make(matrix, **cached)
    if wrapped:
        from torch_geometric import EdgeIndex

        sorted_edges = EdgeIndex(edge_index, sparse_size=(nodes, nodes), sort_order="col")
        calls["PyG, EdgeIndex"] = make(sorted_edges.fill_cache_())
    if compiled:
        calls["PyG, compiled"] = make(edge_index, compiled=True)
    return calls


def peak(call: harness.Call) -> float:
    """GiB above what was allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def differs(ours: Any, theirs: Any) -> str | None:
    pairs = [(ours, theirs)] if isinstance(ours, torch.Tensor) else zip(ours, theirs, strict=True)
    for number, (a, b) in enumerate(pairs):
        # As a whole: where features tie for the maximum, or a score is at leaky_relu's kink to the last bit,
        # single elements may go another way.
        error = float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-12))
        if not error < 1e-3:
            return f"result {number} differs from PyG's by {error:.1e} of its norm"
    return None


def parts(graph: Graph, x: torch.Tensor) -> dict[str, harness.Call]:
    """Pieces of GATConv, for the log of docs/attention.md: not cases."""
    hidden = x.detach().view(-1, 4, x.shape[1] // 4).requires_grad_()
    terms = [torch.randn(hidden.shape[:2], device=x.device).requires_grad_() for _ in range(2)]
    leaves = [hidden, *terms]
    grad = torch.randn_like(hidden)
    raw = torch.ops.gpuprims.neighbor_attention_grad
    args = (*leaves, None, None, *graph.csr, *graph.transpose(), 0.2, 0.0, graph.promises)
    with torch.no_grad():
        out, lse, _ = torch.ops.gpuprims.neighbor_attention(*args)
        scores = torch.randn(graph.num_edges, 4, device=x.device)

    def plain(function: Callable[..., Any], *args: Any) -> harness.Call:
        def call() -> Any:
            with torch.no_grad():
                return function(*args)

        return call

    return {
        "attention forward": plain(neighbor_attention, hidden, graph, *terms),
        "gradient by source (x, a_src)": plain(raw, grad, None, out, lse, *args, 3),
        "gradient by destination (a_dst alone)": plain(raw, grad, None, out, lse, *args, 4),
        "gradient in x, a_src and a_dst": plain(raw, grad, None, out, lse, *args, 7),
        "edge_softmax": plain(edge_softmax, graph, scores),
        "linear 64 -> 64": plain(torch.nn.functional.linear, x, torch.randn(64, x.shape[1], device=x.device)),
    }


def run_cases(options: argparse.Namespace, results: harness.Results) -> bool:
    timer = harness.Timer(options.device, evict=False, seconds=options.seconds, max_reps=50)
    sound, made = True, ""
    harness.print_row()
    targets = sorted(harness.selected("layer", options.cases), key=lambda case: case["args"]["graph"])
    for target in targets:
        args, name = target["args"], target["name"]
        if results.out_of_time(name):
            continue
        if args["graph"] != made:
            made = args["graph"]
            csr = graphs.make(made, options.device, small=options.small)
            graph = Graph.from_csr(csr[0], csr[1].int(), num_src=len(csr[0]) - 1)
        torch.manual_seed(1)
        kind, arguments = LAYERS[args["layer"]]
        layer = getattr(nn, kind)(**arguments(args["F"])).to(options.device)
        layer.prepare(graph)
        x = torch.randn(len(csr[0]) - 1, args["F"], device=options.device).requires_grad_(args["backward"])
        calls = {"ours": call_of(layer, x, graph, args["backward"])}
        calls.update(rivals(args, layer.state_dict(), x, csr, options.compile, options.edge_index))
        if "torch" in calls:
            wrong = differs(calls["ours"](), calls["torch"]())
            if wrong:
                print(f"{name:>36}   WRONG: {wrong}")
                sound = False
                continue
        row = harness.case_row(target, timer.measure(calls))
        if options.device.startswith("cuda"):
            row["peak_gib"] = {which: round(peak(call), 2) for which, call in calls.items()}
        harness.print_row(row)
        if "peak_gib" in row:
            print(f"{'peak GiB':>36}   " + ", ".join(f"{k} {v}" for k, v in row["peak_gib"].items()))
        results.add("cases", [row])
        if options.parts and args["layer"] == "GATConv" and args["backward"]:
            for which, us in timer.measure(parts(nn._edges.with_attention_loops(graph)[0], x)).items():
                print(f"{which:>36}{us:11.1f}")
        del calls
    return sound


def host_calls(device: str) -> dict[str, Any]:
    """Whole calls on Cora: here the host is slower than the GPU."""
    from bench.aggregate import real_graph

    csr = real_graph("cora", device)
    assert csr is not None, "torch_gpuprims/data/cora.npz is missing"
    graph = Graph.from_csr(csr[0], csr[1].int(), num_src=len(csr[0]) - 1)
    x = torch.randn(len(csr[0]) - 1, 64, device=device, requires_grad=True)
    layer = nn.GATConv(64, 8, heads=8).to(device)
    layer.prepare(graph)
    calls: dict[str, Any] = {
        "ours": call_of(layer, x, graph, False),
        "ours, grad": call_of(layer, x, graph, True),
    }
    if pyg is not None:
        owner = torch.repeat_interleave(torch.arange(len(x), device=device), csr[0].diff())
        edge_index = torch.stack([csr[1].long(), owner])
        theirs = pyg.GATConv(64, 8, heads=8).to(device)
        calls["torch"] = call_of(theirs, x, edge_index, False)
        calls["torch, grad"] = call_of(theirs, x, edge_index, True)
    return calls


def main(argv: list[str]) -> None:
    from bench import host

    parser = harness.arguments("attention")
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    parser.add_argument("--small", action="store_true", help="graphs of 1/1000 of the size, to try it out")
    parser.add_argument("--compile", action="store_true", help="PyG under torch.compile as well")
    parser.add_argument("--edge-index", action="store_true", help="PyG with an EdgeIndex as well")
    parser.add_argument("--parts", action="store_true", help="the pieces of GATConv one by one")
    options = parser.parse_args(argv)
    if options.small and options.record:
        parser.error("--small measures other graphs than the record's")
    results = harness.Results("attention", options)
    if options.host:  # not with the cases: thousands of calls of layers take their time on a CPU
        results.add("host_us", host.report("GATConv 8x8, cora", host_calls, options.device))
    elif not run_cases(options, results):
        raise SystemExit("attention: some results are wrong; their times are left out")
