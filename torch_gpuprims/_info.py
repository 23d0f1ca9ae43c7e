"""What is installed, what was loaded, and whether each op works here: `python -m torch_gpuprims info`."""

import hashlib
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import __version__, _compare, _native


def _guarded(probe: Callable[..., Any], *arguments: Any) -> Any:
    """The probe's answer, or a string that says why there is none: info never fails on what it looks at."""
    try:
        return probe(*arguments)
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"


def cuda_text(version: int | None) -> str | None:
    """13020 -> "13.2"."""
    return f"{version // 1000}.{version % 1000 // 10}" if version else None


def serves(archs: str, capability: tuple[int, int]) -> str:
    """How a file built for `archs` ("8.0;9.0;12.0+PTX") runs on a device: "native", "from PTX" or "no"."""
    wanted = capability[0] * 10 + capability[1]
    from_ptx = False
    for arch in filter(None, archs.split(";")):
        match = re.fullmatch(r"(\d+)\.(\d+)([af]?)(\+PTX)?", arch)
        if match is None:
            continue
        number = int(match[1]) * 10 + int(match[2])
        if number == wanted or (number // 10 == wanted // 10 and number < wanted and not match[3]):
            return "native"
        from_ptx = from_ptx or (match[4] is not None and not match[3] and number <= wanted)
    return "from PTX" if from_ptx else "no"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def libraries() -> list[dict[str, Any]]:
    """A record a native library: file, sha256, whether it is loaded and, if not, why."""
    records = []
    for name in ("_C.so", "_C_cuda.so"):
        path = _native.HERE / name
        record: dict[str, Any] = {"file": str(path), "loaded": name in _native.loaded}
        if path.exists():
            record["sha256"] = _guarded(_sha256, path)
        if record["loaded"]:
            record.update(_native.loaded[name])
            record["cudart"] = cuda_text(record.get("cudart"))
            record["driver"] = cuda_text(record.get("driver"))
        elif path.exists():
            record["why_not"] = f"PyTorch {torch.__version__} is CPU-only"
        else:
            record["why_not"] = (
                "not built (no nvcc, or CPU-only PyTorch; GPUPRIMS_CUDA=1 make build forces it)"
            )
        records.append(record)
    return records


def _torch_libraries() -> list[str]:
    """Paths of libtorch and of any shared CUDA runtime in this process (Linux)."""
    pattern = re.compile(r"/(libtorch_cpu|libtorch_cuda|libcudart)[^/]*\.so[^/]*$")
    paths = {
        line.split(maxsplit=5)[-1].strip()
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/" in line
    }
    return sorted(path for path in paths if pattern.search(path))


def devices(archs: str) -> list[dict[str, Any]]:
    """Each CUDA device with its capability and how the CUDA library serves it."""
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(index)
        found.append(
            {
                "name": torch.cuda.get_device_name(index),
                "capability": f"{capability[0]}.{capability[1]}",
                "served": serves(archs, capability),
            }
        )
    return found


def _cases(device: torch.device) -> list[_compare.Case]:
    indptr, indices = _compare.random_graph(500, 4000)
    return [
        _compare.topk_case(64, 1000, 8, device),
        _compare.topk_case(1, 100_000, 50, device),
        _compare.gate_case(64, 256, 8, device),
        _compare.segment_case(500, 30, 5, device),
        _compare.segment_case(3, 50_000, 50, device),
        _compare.sort_case(64, 1000, device),
        _compare.sort_case(1, 100_000, device),
        _compare.reduce_case(64, 1000, "sum", device),
        _compare.reduce_case(1, 100_000, "logsumexp", device),
        _compare.aggregate_case("500 nodes 4k edges", indptr, indices, 32, device),
        _compare.spmv_case("500 rows 4k entries", indptr, indices, True, device),
        _compare.spmv_case("500 rows 4k entries", indptr, indices, False, device),
    ]


def self_check(device: torch.device) -> list[dict[str, Any]]:
    """Each op against PyTorch on this device."""
    cases = _guarded(_cases, device)
    if isinstance(cases, str):
        return [{"device": str(device), "op": "all", "case": "set-up", "ok": False, "message": cases}]
    results = []
    for case in cases:
        outcome = _guarded(_compare.compare, case)
        result = {"device": str(device), "op": case.op, "case": case.name}
        if isinstance(outcome, str):
            result.update(ok=False, message=outcome)
        else:
            result.update(ok=outcome.ok, message="" if outcome.ok else f"differs from PyTorch: {outcome}")
        results.append(result)
    return results


def collect() -> dict[str, Any]:
    """Everything that `info` prints, as plain data; `ok` is the exit code's answer."""
    records = libraries()
    cuda = next((r for r in records if r["loaded"] and r["file"].endswith("_C_cuda.so")), None)
    gpus = _guarded(devices, cuda["archs"] if cuda else "")
    checks = self_check(torch.device("cpu"))
    if torch.cuda.is_available():
        checks += self_check(torch.device("cuda", torch.cuda.current_device()))
    names = ("TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CUDA_VISIBLE_DEVICES")
    return {
        "versions": {
            "torch_gpuprims": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "torch_cuda": torch.version.cuda,
            "cudart": cuda["cudart"] if cuda else None,
            "driver": cuda["driver"] if cuda else None,
        },
        "libraries": records,
        "torch_libraries": _guarded(_torch_libraries),
        "devices": gpus,
        "environment": {k: v for k, v in os.environ.items() if k.startswith("GPUPRIMS_") or k in names},
        "checks": checks,
        "ok": all(check["ok"] for check in checks),
    }
