"""python -m torch_gpuprims info | demo | bench."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from . import __version__, _native, _screen


def show_info(report: dict[str, Any]) -> None:
    """Print the report of _info.collect as one screen."""
    versions = report["versions"]
    cuda = f"CUDA {versions['torch_cuda']}" if versions["torch_cuda"] else "CPU-only"
    rows: list[tuple[str, str, bool | None]] = [
        ("torch_gpuprims", versions["torch_gpuprims"], None),
        ("PyTorch", f"{versions['torch']} ({cuda})", None),
        ("Python", f"{versions['python']} on {versions['platform']}", None),
    ]
    if versions["cudart"]:
        driver = versions["driver"] or "no driver"
        rows.append(("CUDA", f"runtime {versions['cudart']} built in, driver serves {driver}", None))
    for record in report["libraries"]:
        name = Path(record["file"]).name
        if record["loaded"]:
            archs = f", architectures {record['archs']}" if record["archs"] else ""
            text = f"{record['file']}, built with PyTorch {record['built_with_torch']}{archs}"
            rows += [(name, text, None), ("", f"sha256 {record['sha256']}", None)]
        else:
            rows.append((name, f"not loaded: {record['why_not']}", None))
    gpus = report["devices"]
    if isinstance(gpus, str):
        rows.append(("devices", gpus, False))
    elif not gpus:
        rows.append(("devices", "no CUDA device", None))
    else:
        for gpu in gpus:
            text = f"{gpu['name']}, {gpu['capability']}; served by _C_cuda.so: {gpu['served']}"
            rows.append(("device", text, gpu["served"] != "no"))
    paths = report["torch_libraries"]
    rows += [("libtorch", path, None) for path in ([paths] if isinstance(paths, str) else paths)]
    rows += [("environment", f"{name}={value}", None) for name, value in report["environment"].items()]
    for check in report["checks"]:
        text = f"{check['op']} {check['case']} on {check['device']}: "
        rows.append(("check", text + ("as PyTorch" if check["ok"] else check["message"]), check["ok"]))
    rows.append(("all well" if report["ok"] else "FAILED", "", report["ok"]))
    _screen.lines(rows)


def show_demo(report: dict[str, Any]) -> None:
    """Print the report of _demo.run as one screen."""
    graph, training, surest = report["graph"], report["training"], report["surest"]
    built = [
        Path(r["file"]).name + (f" ({r['archs']})" if r["archs"] else "")
        for r in report["libraries"]
        if r["loaded"]
    ]
    where = (
        report["device"]
        if report["device"] != "cpu"
        else f"CPU, {report['threads']} thread{'s' * (report['threads'] > 1)}"
    )
    first = surest["first"][0]
    accuracies = " ".join(f"{a:.1f}" for a in training["accuracy"])
    _screen.lines(
        [
            ("torch_gpuprims", f"{__version__}: {', '.join(built)} under PyTorch {torch.__version__}", None),
            ("device", where, None),
            (
                "Cora",
                f"{graph['nodes']:,} papers, {graph['edges'] // 2:,} citations, {graph['features']:,} words, "
                f"{graph['classes']} classes; Graph built in {graph['build_ms']} ms",
                None,
            ),
            ("trained", f"2-layer GCN, {training['seconds']} s for {training['seeds']} seed(s)", None),
            (
                "accuracy",
                f"{training['mean']:.2f} % of 1,000 test papers (seeds: {accuracies}); "
                f"at least {training['goal']} wanted",
                training["reached"],
            ),
            (
                "surest",
                f"{surest['right']} of the {surest['k']} surest test papers are right (masked topk; "
                f"torch.sort: {_screen.same(surest['same_as_torch_sort'])})",
                surest["same_as_torch_sort"],
            ),
            ("", f"surest of all: paper {first['paper']}, {first['class']}, {first['confidence']:.4f}", None),
        ]
    )
    _screen.table(
        ("op", "case", "values", "indices", "us", "torch us", "speed-up"),
        [
            (
                op["op"],
                op["case"],
                _screen.same(op["same_values"]),
                _screen.same(op["same_indices"]),
                f"{op['us']:,.0f}",
                f"{op['torch_us']:,.0f}",
                f"{op['torch_us'] / op['us']:.1f}x",
            )
            for op in report["ops"]
        ],
    )
    ending = f"in {report['seconds']} s; times are medians of whole calls, from Python"
    _screen.lines([("all well" if report["ok"] else "FAILED", ending, report["ok"])])


def bench(arguments: list[str]) -> int:
    """Hand over to the bench package, which lives beside this one in a source checkout."""
    root = Path(__file__).resolve().parents[1]
    if not (root / "bench" / "__main__.py").exists():
        print(
            "The benchmarks are not installed with the package: run `python -m bench` in a source checkout.",
            file=sys.stderr,
        )
        return 2
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}).returncode


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["bench"]:  # its options are its own
        return bench(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m torch_gpuprims", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="versions, libraries, devices, and a self-check of each op")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    demo = commands.add_parser("demo", help="train a graph network on Cora; compare each op with PyTorch")
    demo.add_argument("--json", action="store_true", help="print one JSON object")
    demo.add_argument("--seeds", type=int, default=5, help="networks to train (5)")
    demo.add_argument("--device", help="cpu or cuda (cuda where it is available)")
    commands.add_parser("bench", help="the benchmarks, from a source checkout")
    options = parser.parse_args(arguments)

    from . import _info

    if options.command == "info":
        report = _info.collect()
        show = show_info
    else:
        if options.seeds < 1:
            parser.error(f"--seeds must be at least 1, got {options.seeds}")
        from . import _demo

        usable = torch.cuda.is_available() and "_C_cuda.so" in _native.loaded
        device = options.device or ("cuda" if usable else "cpu")
        report = {"libraries": _info.libraries(), **_demo.run(options.seeds, torch.device(device))}
        show = show_demo
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
