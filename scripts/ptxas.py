"""What ptxas says of every kernel, against the budget: python scripts/ptxas.py (after make build).

The builds' own output is the source (`-Xptxas -v`), kept by file in build/ptxas.json with the time of the
object it speaks of, so that an incremental build keeps the report whole. The budget,
tests/native/ptxas_budget.json, allows spills by part of a kernel's name, with a reason, and bounds the number
of kernel instances.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STORE = ROOT / "build/ptxas.json"
BUDGET = ROOT / "tests/native/ptxas_budget.json"
Kernel = dict[str, Any]

COMMAND = re.compile(r"^\[\d+/\d+\].*nvcc.* -c (?:-c )?(\S+\.cu) -o (\S+)")
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
PROPERTIES = re.compile(r"Function properties for (\S+)")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SMEM = re.compile(r"(\d+) bytes smem")


def parse(output: str) -> dict[str, tuple[str, list[Kernel]]]:
    """{source: (object file, kernels)} of a ninja log."""
    files: dict[str, tuple[str, list[Kernel]]] = {}
    kernels: list[Kernel] = []
    kernel: Kernel = {}
    for line in output.splitlines():
        if line.startswith("["):
            command = COMMAND.search(line)
            kernels, kernel = [], {}
            if command:
                files[command[1]] = (command[2], kernels)
        elif entry := ENTRY.search(line):
            kernel = {"name": entry[1], "arch": entry[2], "registers": 0, "smem": 0}
            kernel |= {"stack": 0, "spill_stores": 0, "spill_loads": 0}
            kernels.append(kernel)
        elif properties := PROPERTIES.search(line):
            if kernel and properties[1] != kernel["name"]:
                kernel = dict(kernel)  # a function that was not inlined: not the kernel's own numbers
        elif kernel and (stack := STACK.search(line)):
            kernel |= dict(
                zip(("stack", "spill_stores", "spill_loads"), map(int, stack.groups()), strict=True)
            )
        elif kernel and (used := USED.search(line)):
            smem = SMEM.search(line)
            kernels[-1] |= {"registers": int(used[1]), "smem": int(smem[1]) if smem else 0}
            kernel = kernels[-1]
    return files


def load() -> dict[str, Any]:
    return json.loads(STORE.read_text()) if STORE.exists() else {}


def collect(output: str) -> None:
    """Merge what a build printed into the store; called by scripts/build.py after every build."""
    store = load()
    for source, (obj, kernels) in parse(output).items():
        if Path(obj).exists():
            name = str(Path(source).resolve().relative_to(ROOT))
            store[name] = {"object": obj, "mtime": Path(obj).stat().st_mtime, "kernels": kernels}
    if store:
        STORE.write_text(json.dumps(store, indent=1))


def stale(store: dict[str, Any]) -> list[str]:
    """Sources whose record is missing or speaks of another object file."""
    missing = []
    for path in sorted((ROOT / "csrc").glob("*/*.cu")):
        name = str(path.relative_to(ROOT))
        record = store.get(name, {"object": "missing", "mtime": 0})
        obj = Path(record["object"])
        if not obj.exists() or obj.stat().st_mtime != record["mtime"]:
            missing.append(name)
    return missing


def rebuild(names: list[str]) -> None:
    """Compile these sources again: their objects were built by a run whose output is gone."""
    import build  # here, because build imports this module

    print(f"no ptxas record of {', '.join(names)}: compiling again")
    for name in names:
        for obj in (ROOT / "build").glob(f"temp*/{Path(name).with_suffix('.o')}"):
            obj.unlink()
    code = build.build(ROOT / "build/built-1")
    if code:
        sys.exit(code)


def demangle(names: list[str]) -> list[str]:
    tool = shutil.which("cu++filt") or shutil.which("c++filt")
    if not tool or not names:
        return names
    done = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else names


def short(name: str) -> str:
    """gpuprims::topk_warp<unsigned int, 4>, without return type and arguments."""
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", name)
    depth = 0
    for i, letter in enumerate(name):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0 and i:
            name = name[:i]
            break
    return name.removeprefix("void ").replace("gpuprims::", "")


def main() -> int:
    budget = json.loads(BUDGET.read_text())
    store = load()
    if names := stale(store):
        rebuild(names)
        store = load()
    failures, instances = [], 0
    print(f"{'file':34} {'kernels':>7} {'regs':>5} {'smem':>6} {'stack':>5} {'spill':>5}   widest kernel")
    for path in sorted((ROOT / "csrc").glob("*/*.cu")):
        source = str(path.relative_to(ROOT))
        kernels = store[source]["kernels"]
        instances += len({kernel["name"] for kernel in kernels})
        for kernel, name in zip(kernels, demangle([kernel["name"] for kernel in kernels]), strict=True):
            kernel["short"] = short(name)
            kernel["spill"] = kernel["spill_stores"] + kernel["spill_loads"]
            by_name = budget["spills"].items()
            allowed = max((rule["bytes"] for part, rule in by_name if part in kernel["short"]), default=0)
            if kernel["spill"] > allowed:
                spill = f"spills {kernel['spill']} bytes, {allowed} allowed"
                failures.append(f"{source}: {kernel['short']} ({kernel['arch']}) {spill}")
        top = {
            key: max((k[key] for k in kernels), default=0) for key in ("registers", "smem", "stack", "spill")
        }
        widest = max(kernels, key=lambda k: k["registers"])["short"] if kernels else "-"
        cells = f"{top['registers']:5} {top['smem']:6} {top['stack']:5} {top['spill']:5}"
        print(f"{source:34} {len(kernels):7} {cells}   {widest}")
    limit = budget["kernel_instances"]
    print(f"kernel instances: {instances} (at most {limit})")
    if instances > limit:
        failures.append(f"{instances} kernel instances, {limit} allowed")
    for failure in failures:
        print(f"over budget: {failure}")
    if failures:
        print(f"Change the kernel, or {BUDGET.relative_to(ROOT)} with a reason.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
