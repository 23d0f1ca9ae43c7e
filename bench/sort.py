"""The sorts beside torch.sort and CUB: the cases of targets.json, a sweep, host time."""

import argparse
from functools import partial
from typing import Any

import torch

import torch_gpuprims
from bench import harness
from bench.rivals import cub_sort
from bench.sort_data import case_input
from bench.sort_sweep import sweep


def order_key(x: torch.Tensor) -> torch.Tensor:
    """What torch can compare: unsigned keys as signed ones in the same order."""
    twin = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}.get(x.dtype)
    return x if twin is None else x.view(twin) ^ torch.iinfo(twin).min


def verify(x: torch.Tensor, keys_only: bool) -> str | None:
    """What is wrong with our result, or None: in order, a permutation, ties by index."""
    if keys_only:
        values = order_key(torch_gpuprims.sort_keys(x))
        if bool((values[..., 1:] < values[..., :-1]).any()):
            return "keys are not in order"
        was, now = order_key(x).long(), values.long()
        if not torch.equal(was.sum(-1), now.sum(-1)) or not torch.equal(
            (was * was).sum(-1), (now * now).sum(-1)
        ):
            return "keys are not those of the input"
        return None
    values, indices = torch_gpuprims.sort(x)
    at = 0
    rows_v, rows_i, rows_x = (t.reshape(-1, x.shape[-1]) for t in (values, indices, x))
    step = max(1, (1 << 27) // x.shape[-1])
    for at in range(0, len(rows_x), step):
        v, i, source = (t[at : at + step] for t in (rows_v, rows_i, rows_x))
        later, earlier = v[..., 1:], v[..., :-1]
        if bool((later < earlier).any()):
            return "values are not in order"
        if bool(((later == earlier) & (i[..., 1:] <= i[..., :-1])).any()):
            return "ties are not in index order"
        if not torch.equal(source.gather(-1, i), v):
            return "input[indices] is not values"
        seen = torch.zeros(v.shape, dtype=torch.bool, device=x.device).scatter_(-1, i, True)
        if not bool(seen.all()):
            return "indices are not a permutation"
    return None


def calls_for(x: torch.Tensor, keys_only: bool, cub: bool) -> dict[str, harness.Call]:
    calls: dict[str, harness.Call] = {}
    if keys_only:
        calls["ours"] = partial(torch_gpuprims.sort_keys, x)
    else:
        calls["ours"] = partial(torch_gpuprims.sort, x)
        calls["torch"] = partial(torch.sort, x, stable=True)
    rival = cub_sort.call(x, keys_only) if cub else None
    if rival:
        calls["cub"] = rival
    return calls


def run_cases(options: argparse.Namespace, results: harness.Results) -> bool:
    timer = harness.Timer(options.device, evict=False, seconds=options.seconds)
    sound = True
    harness.print_row()
    for target in harness.selected("sort", options.cases):
        if results.out_of_time(target["name"]):
            continue
        args = dict(target["args"])
        if options.device == "cpu":
            args = {**args, **{k: min(args[k], 2000) for k in ("n", "rows") if k in args}}
        keys_only = args.get("keys_only", False)
        x = case_input(args, options.device)
        wrong = None if options.unverified else verify(x, keys_only)
        if wrong:  # a time of a wrong result is no result
            print(f"{target['name']:>36}   WRONG: {wrong}", flush=True)
            sound = False
            continue
        torch.cuda.empty_cache()
        times = timer.measure(calls_for(x, keys_only, not options.no_cub))
        row = harness.case_row(target, times)
        harness.print_row(row)
        if "cub" in times:
            rates = {name: x.numel() / us / 1e3 for name, us in times.items()}
            print(f"{'':>36}  {rates['ours']:.1f} GKey/s, CUB {rates['cub']:.1f}")
            row["cub_us"] = round(times["cub"], 2)
        results.add("cases", [row])
        del x
        torch.cuda.empty_cache()
    return sound


def from_coo(device: str) -> dict[str, float]:
    """Graph.from_coo beside its steps in PyTorch, 1e6 nodes and 3e7 random edges: microseconds."""
    nodes, edges = (1_000_000, 30_000_000) if device != "cpu" else (1000, 30_000)
    g = torch.Generator(device=device).manual_seed(1)
    ends = torch.randint(nodes, (2, edges), generator=g, device=device)

    def steps() -> torch.Tensor:
        rows, order = torch.sort(ends[1], stable=True)
        offsets = torch.searchsorted(rows, torch.arange(nodes + 1, device=device))
        return torch.cat([offsets, ends[0].index_select(0, order)])

    def ours() -> torch.Tensor:
        graph = torch_gpuprims.Graph.from_coo(ends, num_nodes=nodes)
        return torch.cat([graph.indptr, graph.indices])

    assert torch.equal(steps(), ours().long()), "from_coo: the graphs differ"
    timer = harness.Timer(device, evict=False, seconds=0.5)
    calls = {"ours": lambda: torch_gpuprims.Graph.from_coo(ends, num_nodes=nodes), "torch": steps}
    times = {name: round(us, 1) for name, us in timer.measure(calls).items()}
    print(f"Graph.from_coo, {nodes} nodes, {edges} edges (us): {times}")
    return times


def host_calls(device: str) -> dict[str, Any]:
    """The small call of the contract's point 9: x [8, 16]."""
    x = torch.randn(8, 16, device=device)
    y = x.clone().requires_grad_()
    op = torch.ops.gpuprims.sort
    return {
        "ours": lambda: torch_gpuprims.sort(x),
        "torch": lambda: torch.sort(x),
        "torch.ops": lambda: op(x),
        "ours, grad": lambda: torch_gpuprims.sort(y),
        "torch, grad": lambda: torch.sort(y),
        "torch.ops, grad": lambda: op(y),
    }


def main(argv: list[str]) -> None:
    from bench import host

    parser = harness.arguments("sort")
    parser.add_argument("--sweep", action="store_true", help="n x rows x dtype x kind of data")
    parser.add_argument("--points", type=int, default=200, help="points of the sweep")
    parser.add_argument("--no-cub", action="store_true", help="leave CUB out (it is compiled on first use)")
    parser.add_argument("--unverified", action="store_true", help="time without looking at the results")
    options = parser.parse_args(argv)
    results = harness.Results("sort", options)
    if options.sweep:
        results.add("sweep", sweep(options, calls_for))
        return
    if not options.host:
        results.add("from_coo_us", from_coo(options.device))
    results.add("host_us", host.report("sort, x [8, 16]", host_calls, options.device))
    if not options.host and not run_cases(options, results):
        raise SystemExit("sort: some results are wrong; their times are left out")
