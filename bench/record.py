"""The GPU record, bench/results/h200/<op>.json: hashes, merging, status. No PyTorch, so status is instant.

    python -m bench.record        # a line an op: `topk: present`, `topk: stale` or `topk: none`

A record belongs to one state of the sources. A part (tests, sanitizer, cases) measured on another state
starts the record anew, so nothing in it ever speaks of code that is gone.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench/results/h200"
TARGETS = ROOT / "bench/targets.json"
PARTS = ("tests", "sanitizer", "cases")
OPS = ("topk", "sort", "reduce", "aggregate", "reorder", "attention")
GRAPH = ("graph.py", "graph_build.py", "graph_edges.py", "graph_reorder.py", "graph_tree.py")
SHARED = {
    "aggregate": (*GRAPH, "nn", "_fake_checks.py"),
    "attention": (*GRAPH, "nn", "pyg.py", "_fake_checks.py"),
    "reorder": ("segments.py", "aggregate_csr.py", "aggregate_grad.py", "_fake_checks.py"),
    "reduce": ("segments.py", "histogram.py", "compile_reduction.py", "_nvrtc.py", "_reduction_source.py"),
    "sort": ("segments.py",),
    "topk": ("segments.py",),
}
#: Slices that another one is built on: it calls them too.
BUILT_ON = {"attention": ("aggregate",), "topk": ("sort",)}
CODE = {".h", ".cuh", ".cpp", ".cu", ".py"}


def ops() -> list[str]:
    """The ops whose slice exists."""
    return [op for op in OPS if any((ROOT / "csrc" / op).glob("*.cpp"))]


def sources(op: str) -> list[Path]:
    """Every file whose change makes the record of `op` stale."""
    package = ROOT / "torch_gpuprims"
    roots = [ROOT / "csrc/common"]
    for name in (op, *BUILT_ON.get(op, ())):
        roots += [ROOT / "csrc" / name, *package.glob(f"{name}*")]
    roots += [package / name for name in SHARED.get(op, ())]
    files = {file for root in roots for file in ([root] if root.is_file() else root.rglob("*"))}
    return sorted(file for file in files if file.suffix in CODE)


def source_sha256(op: str) -> str:
    digest = hashlib.sha256()
    for file in sources(op):
        digest.update(f"{file.relative_to(ROOT)}\0{sha256(file)}\n".encode())
    return digest.hexdigest()


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def commit() -> str | None:
    """GPUPRIMS_COMMIT, which a copy of the tree may need where its git is older or missing, or git's HEAD."""
    if said := os.environ.get("GPUPRIMS_COMMIT"):
        return said
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def load(op: str) -> dict[str, Any] | None:
    file = RESULTS / f"{op}.json"
    return json.loads(file.read_text()) if file.exists() else None


def targets(op: str) -> list[dict[str, Any]]:
    return [case for case in json.loads(TARGETS.read_text()) if case["op"] == op]


def merge(op: str, environment: dict[str, Any], **parts: Any) -> Path:
    """Add measured parts to the record of `op`; cases, sanitizer tools and host times merge one by one.

    environment: device, torch, cuda, driver, python, libraries, as bench.harness.environment gives them.
    """
    record = load(op) or {}
    hashed = source_sha256(op)
    if record.get("source_sha256") != hashed or record.get("device") != environment["device"]:
        record = {}
    head = {**environment, "commit": commit(), "source_sha256": hashed}
    merged = {**record, **head}
    for name, value in parts.items():
        if name == "cases":
            by_name = {case["name"]: case for case in [*record.get("cases", []), *value]}
            order = [case["name"] for case in targets(op)]
            known = [by_name.pop(case) for case in order if case in by_name]
            merged["cases"] = [*known, *by_name.values()]
        elif isinstance(value, dict) and name != "tests":
            merged[name] = {**record.get(name, {}), **value}
        else:
            merged[name] = value
    tail = [name for name in ("tests", "sanitizer", "host_us", "cases") if name in merged]
    ordered = {name: merged[name] for name in merged if name not in tail}
    ordered.update({name: merged[name] for name in tail})
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"{op}.json"
    file.write_text(dump(ordered))
    if os.environ.get("OUT"):  # OUT: a folder that also gets a copy
        Path(os.environ["OUT"], file.name).write_text(file.read_text())
    return file


def dump(record: dict[str, Any]) -> str:
    """JSON with one case a line, so that a diff shows which cases moved."""
    body = {name: value for name, value in record.items() if name != "cases"}
    text = json.dumps(body, indent=1)
    if "cases" in record:
        cases = ",\n  ".join(json.dumps(case) for case in record["cases"])
        text = text.removesuffix("\n}") + f',\n "cases": [\n  {cases}\n ]\n}}'
    return text + "\n"


def status(op: str) -> str:
    record = load(op)
    if record is None:
        return "none"
    if record.get("source_sha256") != source_sha256(op):
        return "stale"
    missing = [part for part in PARTS if part not in record]
    return f"stale (no {', '.join(missing)} measured on these sources)" if missing else "present"


def main() -> int:
    for op in ops():
        print(f"{op}: {status(op)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
