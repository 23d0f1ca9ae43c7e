"""make gpu-check: tests, sanitizer, benchmark of each op on a GPU, merged into bench/results/h200/<op>.json.

    python -m bench.check [--op topk] [--part tests|sanitize|bench]

Everything is over within 8 minutes: each step gets its share of what is left, and one that is cut short or
could not run is recorded as its error text, never as a success. Needs no network and makes no environment.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from bench import record
from bench.record import ROOT

BUDGET_S = 450
STEPS = ("tests", "sanitize", "bench")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: Test files beside tests/test_<op>.py; globs, so a file may come later.
TESTS = {
    "aggregate": ("tests/test_graph*.py", "tests/test_nn_conv.py"),
    "topk": ("tests/test_segments.py",),
    "attention": ("tests/test_nn_layers.py", "tests/test_nn_inputs.py", "tests/test_pyg.py"),
}
#: xunit1 keeps the properties that tests record.
FLAGS = ("-o", "junit_family=xunit1", "-p", "no:cacheprovider")
#: Where pytest-xdist is there, tests share the machine: minutes with a GPU are dear.
PARALLEL = ("-n", "auto") if importlib.util.find_spec("xdist") else ()
EVERY_OP = ("tests/test_install.py",)
#: Builds a package, which says nothing about a GPU; CI runs it.
ELSEWHERE = ("--deselect", "tests/test_install.py::test_wheel_serves_every_python")
FINDINGS = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
UNUSABLE = re.compile(
    r"not supported|Unable to|could not|Internal Sanitizer Error|failed to initialize", re.I
)


def run(command: list[str], timeout: float, log: Path | None = None, **env: str) -> int | str:
    """Exit status, or why there is none. Output goes to `log`, or to the terminal."""
    out = log.open("wb") if log else None
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            stdout=out,
            stderr=subprocess.STDOUT if out else None,
            start_new_session=True,
        )
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children too
            process.wait()
            return f"cut short after {timeout:.0f} s"
    except OSError as error:
        return str(error)
    finally:
        if out:
            out.close()


def environment() -> dict[str, Any]:
    """As the benchmarks see it, from a process of its own: this one keeps off the GPU."""
    code = "import json, bench.harness as h; print(json.dumps(h.environment()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or "no output").splitlines()[-1]
        raise SystemExit(f"gpu-check needs a CUDA GPU and a PyTorch with CUDA: {reason}")
    return json.loads(done.stdout.splitlines()[-1])


def read_junit(file: Path) -> dict[str, int]:
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    if file.exists() and file.stat().st_size:
        for suite in ElementTree.parse(file).getroot().iter("testsuite"):
            number = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
            failed = number["failures"] + number["errors"]
            counts["failed"] += failed
            counts["skipped"] += number["skipped"]
            counts["passed"] += number["tests"] - failed - number["skipped"]
    return counts


def session(arguments: list[str], timeout: float) -> dict[str, Any]:
    """Counts of one run of pytest, and what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "junit.xml")
        options = (*FLAGS, *PARALLEL, *ELSEWHERE, f"--junitxml={report}")
        code = run([sys.executable, "-m", "pytest", *arguments, *options], timeout)
        counts: dict[str, Any] = read_junit(report)
        if isinstance(code, str) or code not in (0, 1):
            counts["error"] = code if isinstance(code, str) else f"pytest exited with {code}"
    return counts


def tests(op: str, timeout: float, environ: dict[str, Any], package: dict[str, Any]) -> dict[str, Any]:
    """What runs on a GPU (marked gpu; CI has the CPU's cases), and the package under this PyTorch.

    Counts are recorded after each run of pytest: what ends this process loses the run's own alone. `package`
    keeps the counts of the package's own tests, which run once for all ops.
    """
    stop = time.monotonic() + timeout
    own = [f"tests/test_{op}*.py", *TESTS.get(op, ()), "tests/test_contract.py"]
    files = [str(path) for pattern in own for path in sorted(ROOT.glob(pattern))]
    total = session([*files, "-m", "gpu", "-k", f"not test_contract or {op}"], timeout)
    record.merge(op, environ, tests={"error": "run 1 of 2 alone", **total})
    if not package or "error" in package:
        package.update(session(list(EVERY_OP), stop - time.monotonic()))
    for key, value in package.items():
        total[key] = total[key] + value if isinstance(value, int) else value
    record.merge(op, environ, tests=total)
    return total


def sanitizer_binary() -> str | None:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    places = [f"{home}/bin/compute-sanitizer", f"{home}/compute-sanitizer/compute-sanitizer"]
    return shutil.which("compute-sanitizer") or next(
        (place for place in places if Path(place).exists()), None
    )


def read_sanitizer(text: str, code: int | str) -> int | str:
    """Number of errors, or the text that says why the tool gave none."""
    finished = "sanitize: done" in text
    found = [int(number) for match in FINDINGS.findall(text) for number in match if number]
    if finished and code == 0 and found:
        return sum(found)
    unusable = next((line.strip("= ") for line in text.splitlines() if UNUSABLE.search(line)), None)
    if not unusable and found and sum(found):
        return sum(found)
    if isinstance(code, str):
        return code
    said = [line.strip("= ") for line in text.splitlines() if line.strip("= ") and "SUMMARY" not in line]
    return unusable or f"exit status {code}: {said[-1] if said else 'no output'}"


def sanitize(op: str, timeout: float) -> dict[str, int | str]:
    binary = sanitizer_binary()
    if not binary:
        return dict.fromkeys(TOOLS, "compute-sanitizer is not installed")
    results: dict[str, int | str] = {}
    stop = time.monotonic() + timeout
    (ROOT / "build").mkdir(exist_ok=True)
    for index, tool in enumerate(TOOLS):
        log = ROOT / f"build/sanitize-{op}-{tool}.log"
        command = [binary, "--tool", tool, "--print-limit", "50", sys.executable, "-m", "bench.sanitize", op]
        # With the caching allocator a whole pool is one allocation, and overruns inside it go unseen. Where
        # a tool cannot go without it, a run with it says more than none.
        uncached = [{"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}] if tool in ("memcheck", "initcheck") else []
        began = time.monotonic()
        for env in [*uncached, {}]:
            code = run(command, (stop - time.monotonic()) / (len(TOOLS) - index), log, **env)
            text = log.read_text(errors="replace")
            results[tool] = read_sanitizer(text, code)
            if isinstance(results[tool], int):
                break
            shutil.copy(log, log.with_suffix(".failed.log"))
        print(f"{op} {tool}: {results[tool]} ({time.monotonic() - began:.0f} s)", flush=True)
        if results[tool]:
            print("\n".join(text.splitlines()[:60]))
    return results


def bench(op: str, timeout: float) -> str | None:
    """The benchmark merges its cases itself, one at a time."""
    limit = str(int(max(timeout - 60, 10)))
    code = run([sys.executable, "-m", "bench", op, "--record", "--limit", limit], timeout)
    return None if code == 0 else str(code)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.check", description=__doc__.splitlines()[0])
    parser.add_argument("--op", choices=record.ops())
    parser.add_argument("--part", choices=STEPS)
    options = parser.parse_args()
    stop = time.monotonic() + BUDGET_S
    environ = environment()
    print(json.dumps(environ, indent=1))
    ops = [options.op] if options.op else record.ops()
    jobs = [(op, part) for part in ([options.part] if options.part else STEPS) for op in ops]
    bad = []
    package: dict[str, Any] = {}
    for index, (op, part) in enumerate(jobs):
        timeout = (stop - time.monotonic()) / (len(jobs) - index)
        print(f"== {op} {part} (at most {timeout:.0f} s)", flush=True)
        if part == "tests":
            counts = tests(op, timeout, environ, package)
            print(f"{op} tests: {counts}")
            wrong = bool(counts["failed"] or "error" in counts)
        elif part == "sanitize":
            errors = sanitize(op, timeout)
            record.merge(op, environ, sanitizer=errors)
            wrong = any(errors.values())
        else:
            failure = bench(op, timeout)
            wrong = failure is not None
        bad += [f"{op} {part}"] if wrong else []
    for op in ops:
        print(f"{op}: {record.status(op)}")
    if bad:
        print(f"gpu-check: not clean: {', '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
