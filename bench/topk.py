"""topk beside torch.topk: the cases of targets.json, a sweep over sizes, input distributions, host time."""

import argparse
import os
import sys
from functools import partial
from typing import Any

import torch

import torch_gpuprims
from bench import harness, topk_gate
from bench.topk_data import DISTRIBUTIONS, fill, random_input
from bench.topk_sweep import sweep

#: Shapes of the distribution table: (rows, n, k, dtype).
SHAPES = [
    (1, 100_000_000, 20, torch.float32),
    (64, 1_000_000, 100, torch.float32),
    (1024, 32_768, 64, torch.bfloat16),
    (16_384, 256, 8, torch.float32),
]


def verify(x: torch.Tensor, k: int) -> str | None:
    """What is wrong with our result, or None: torch's values, at indices that hold them, lowest first."""
    values, indices = torch_gpuprims.topk(x, k)
    expected = torch.topk(x, k).values
    if not torch.equal(values.nan_to_num(), expected.nan_to_num()) or not torch.equal(
        values.isnan(), expected.isnan()
    ):
        return "values differ from torch.topk"
    if not torch.equal(x.gather(-1, indices).nan_to_num(), values.nan_to_num()):
        return "input[indices] is not values"
    tie = values[..., 1:] == values[..., :-1]
    if bool((tie & (indices[..., 1:] <= indices[..., :-1])).any()):
        return "ties are not in index order"
    return None


def run_cases(options: argparse.Namespace, results: harness.Results) -> bool:
    timer = harness.Timer(options.device, evict=True, seconds=options.seconds)
    sound = True
    harness.print_row()
    for target in harness.selected("topk", options.cases):
        if results.out_of_time(target["name"]):
            continue
        args = target["args"]
        k, dtype = args["k"], getattr(torch, args["dtype"])
        x = random_input(args["rows"], args["n"], dtype, options.device)
        wrong = verify(x, k)
        if wrong:  # a time of a wrong result is no result
            print(f"{target['name']:>36}   WRONG: {wrong}")
            sound = False
            continue
        calls: dict[str, harness.Call] = {
            "ours": partial(torch_gpuprims.topk, x, k),
            "torch": partial(torch.topk, x, k),
        }
        if options.int32:
            calls["int32"] = partial(torch_gpuprims.topk, x, k, index_dtype=torch.int32)
        times = timer.measure(calls)
        int32 = times.pop("int32", None)
        row = harness.case_row(target, times)
        harness.print_row(row)
        if int32 is not None:
            print(f"{'with int32 indices':>36}{int32:11.1f}")
        results.add("cases", [row])
        del x, calls
    return sound


def run_distributions(options: argparse.Namespace, results: harness.Results) -> None:
    """Time on each kind of data over the time on normal data, ours alone."""
    print(f"{'':>28}{'normal us':>11}" + "".join(f"{name:>10}" for name in DISTRIBUTIONS[1:]))
    timer = harness.Timer(options.device, evict=True, seconds=min(options.seconds, 1.0))
    for rows, n, k, dtype in SHAPES:
        if options.device == "cpu":
            n = min(n, 1_000_000)
        name = f"{rows}x{n} k={k} {str(dtype).removeprefix('torch.')}"
        x = torch.empty(rows, n, dtype=dtype, device=options.device)
        times: dict[str, float] = {}
        for kind in DISTRIBUTIONS:
            fill(x, kind)
            wrong = verify(x, k)
            if wrong:
                print(f"{name}, {kind}: WRONG: {wrong}")
                continue
            times[kind] = timer.measure({"ours": partial(torch_gpuprims.topk, x, k)})["ours"]
        base = times.get("normal", float("nan"))
        ratios = {kind: times.get(kind, float("nan")) / base for kind in DISTRIBUTIONS[1:]}
        print(f"{name:>28}{base:11.1f}" + "".join(f"{ratio:9.2f}x" for ratio in ratios.values()), flush=True)
        results.add("distributions", {name: {kind: round(us, 2) for kind, us in times.items()}})


#: Shapes where selecting, not reading, bounds the exact op: (rows, n, k, dtype).
APPROX = [
    (64, 131_072, 2048, torch.float32), (64, 131_072, 512, torch.float32), (4096, 4096, 32, torch.float32),
    (1024, 32_768, 64, torch.float32), (1024, 32_768, 1024, torch.bfloat16),
    (128, 152_064, 50, torch.float32),
    (512, 16_384, 512, torch.float32), (8, 131_072, 2048, torch.float32), (1, 262_144, 2048, torch.float32),
]  # fmt: skip


def run_approx(options: argparse.Namespace, results: harness.Results) -> None:
    """approx_topk beside topk: worth its name from 1.3 times as fast."""
    timer = harness.Timer(options.device, evict=True, seconds=min(options.seconds, 1.0))
    for rows, n, k, dtype in APPROX:
        x = random_input(rows, n, dtype, options.device)
        exact = torch_gpuprims.topk(x, k).indices
        for target in (0.9, 0.95, 0.99):
            calls = {
                "ours": partial(torch_gpuprims.approx_topk, x, k, target),
                "exact": partial(torch_gpuprims.topk, x, k),
            }
            times = timer.measure(calls)
            hit = torch.zeros(rows, n, dtype=torch.bool, device=options.device)
            hit.scatter_(1, torch_gpuprims.approx_topk(x, k, target).indices, True)
            recall = hit.gather(1, exact).float().mean().item()
            gain = times["exact"] / times["ours"]
            name = f"{rows}x{n} k={k} {str(dtype).removeprefix('torch.')}"
            plan = torch_gpuprims.explain("approx_topk", x, k, target).split(" -> ")[1].split(", ")[0]
            print(
                f"{name:>30} {target:.2f}  approx {times['ours']:8.1f}  exact {times['exact']:8.1f}  "
                f"{gain:5.2f}x  recall {recall:.4f}  {plan}",
                flush=True,
            )
            results.add("approx", {f"{name} {target}": {**times, "recall": round(recall, 4)}})


def host_calls(device: str) -> dict[str, Any]:
    """The small call of the contract's point 9: x [8, 16], k = 4."""
    x = torch.randn(8, 16, device=device)
    y = x.clone().requires_grad_()
    op = torch.ops.gpuprims.topk
    return {
        "ours": lambda: torch_gpuprims.topk(x, 4),
        "torch": lambda: torch.topk(x, 4),
        "torch.ops": lambda: op(x, 4),
        "ours, grad": lambda: torch_gpuprims.topk(y, 4),
        "torch, grad": lambda: torch.topk(y, 4),
        "torch.ops, grad": lambda: op(y, 4),
    }


def host_pieces(device: str) -> dict[str, Any]:
    """Where the host time of that call goes: every line is a part of, or a rival to, the one above it."""
    from torch_gpuprims import _dispatch

    module = sys.modules["torch_gpuprims.topk"]  # the package's attribute of that name is the function

    x = torch.randn(8, 16, device=device)
    call, full, lean = module._call, module._handle, module._plain_handle

    def guarded(k: int) -> Any:
        guard = _dispatch.below_autograd()
        try:
            return call(full, x, k)
        finally:
            del guard

    return {
        "wrapper": lambda: torch_gpuprims.topk(x, 4),
        "lean op": lambda: call(lean, x, 4),
        "lean op, k = 0 (no launch)": lambda: call(lean, x, 0),
        "full op under its guard": lambda: guarded(4),
        "full op, k = 0": lambda: guarded(0),
        "guard": lambda: _dispatch.below_autograd() and None,
        "plain()": lambda: _dispatch.plain(x),
        "torch.empty_strided": lambda: torch.empty_strided((8, 4), (4, 1), device=device),
        "x.neg_() (one launch)": lambda: x.neg_(),
        "lambda": lambda: None,
    }


#: What torch.ops.gpuprims._topk_parts times, in its order.
PARTS = (
    "a handle of the argument", "checks and plan", "both results, made and freed", "the stream", "the launch",
    "all of it, below the dispatcher",
)  # fmt: skip


def report_parts(device: str) -> None:
    """The host time below the dispatcher, part by part. GPUPRIMS_LAUNCH=runtime launches the other way."""
    if not device.startswith("cuda"):
        print("--parts wants a GPU: on the CPU the row's selection is the rest of the time")
        return
    times = torch.ops.gpuprims._topk_parts(torch.randn(8, 16, device=device), 4, 200).tolist()
    way = os.environ.get("GPUPRIMS_LAUNCH", "driver")
    print(f"host us a call of the parts, launched by the {way}:")
    for name, us in zip(PARTS, times, strict=True):
        print(f"{name:>36}{us:8.2f}")


def main(argv: list[str]) -> None:
    from bench import host

    parser = harness.arguments("topk")
    parser.add_argument("--int32", action="store_true", help="time int32 indices too")
    parser.add_argument("--sweep", action="store_true", help="rows x n x k x dtype, beside torch.topk")
    parser.add_argument("--gate", action="store_true", help="topk_gate beside topk and torch's ops")
    parser.add_argument("--points", type=int, default=320, help="points of the sweep")
    parser.add_argument("--distributions", action="store_true", help="kinds of data, against normal data")
    parser.add_argument("--approx", action="store_true", help="approx_topk beside topk, with its recall")
    parser.add_argument("--parts", action="store_true", help="with --host: what is below the dispatcher")
    options = parser.parse_args(argv)
    results = harness.Results("topk", options)
    if options.approx:
        run_approx(options, results)
        return
    if options.sweep:
        results.add("sweep", sweep(options))
        return
    if options.distributions:
        run_distributions(options, results)
        return
    if options.gate:
        if not topk_gate.run(options, results):
            raise SystemExit("topk_gate: some results are wrong; their times are left out")
        return
    results.add("host_us", host.report("topk, x [8, 16], k = 4", host_calls, options.device))
    if options.host:
        host.report("its pieces", host_pieces, options.device)
    if options.parts:
        report_parts(options.device)
    if not options.host and not run_cases(options, results):
        raise SystemExit("topk: some results are wrong; their times are left out")
    if not options.host and options.cases == "*" and not topk_gate.run(options, results):
        raise SystemExit("topk_gate: some results are wrong; their times are left out")
