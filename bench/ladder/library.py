"""The ladder's kernels, compiled by nvcc on first use, and PyTorch's cuBLAS; through ctypes."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
BUILD = Path(__file__).parents[2] / "build/rivals"
STEPS = {
    1: "neighboured, global memory", 2: "interleaved, global memory", 3: "shared memory",
    4: "two loads a thread",
    5: "last warp unrolled", 6: "warp shuffle", 7: "complete: vectors, one launch",
}  # fmt: skip


def build(arch: str) -> Path:
    """The library for an architecture ("90"); needs nvcc, and no GPU."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(HERE.glob("*.cu*"))))
    target = BUILD / f"ladder-{digest.hexdigest()[:12]}-{arch}.so"
    if target.exists():
        return target
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc):
        raise SystemExit(
            f"{target} is not there, and no nvcc to build it: python -m bench.ladder --build elsewhere"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    command = [nvcc, f"-arch=sm_{arch}", "-O3", "-std=c++17", "-shared", "-Xcompiler=-fPIC", "-o", str(part)]
    done = subprocess.run([*command, str(HERE / "ladder.cu")], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    part.replace(target)
    return target


@functools.cache
def library() -> ctypes.CDLL:
    major, minor = torch.cuda.get_device_capability()
    lib = ctypes.CDLL(str(build(f"{major}{minor}")))
    lib.ladder_result_at.restype = ctypes.c_longlong
    return lib


def _must(what: str, code: int) -> None:
    if code:
        raise RuntimeError(f"{what} failed with error {code}")


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _at(t: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(t.data_ptr())


def step(number: int, x: torch.Tensor) -> tuple[Callable[[], Any], Callable[[], torch.Tensor]]:
    """(the call, its result). Steps 1 and 2 work in place: x is theirs."""
    lib, n = library(), x.numel()
    partial = torch.zeros(2 * (n // 256 + 1) + 8192, dtype=x.dtype, device=x.device)
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    floating = int(x.dtype.is_floating_point)

    def run() -> None:
        code = lib.ladder_climb(number, floating, _at(x), _at(partial), ctypes.c_longlong(n), sms, _stream())
        _must(f"step {number}", code)

    return run, lambda: partial[lib.ladder_result_at(number, ctypes.c_longlong(n))]


def cub(x: torch.Tensor) -> tuple[Callable[[], Any], Callable[[], torch.Tensor]]:
    lib, n = library(), x.numel()
    out = torch.empty(1, dtype=x.dtype, device=x.device)
    bytes_ = ctypes.c_ulonglong(0)

    def run(memory: torch.Tensor | None) -> None:
        pointer = _at(memory) if memory is not None else None
        code = lib.ladder_cub(
            pointer, ctypes.byref(bytes_), int(x.dtype.is_floating_point), _at(x), _at(out),
            ctypes.c_longlong(n), _stream(),
        )  # fmt: skip
        _must("cub::DeviceReduce::Sum", code)

    run(None)
    memory = torch.empty(max(bytes_.value, 1), dtype=torch.uint8, device=x.device)
    return lambda: run(memory), lambda: out[0]


@functools.cache
def _cublas() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    torch.zeros(2, 2, device="cuda") @ torch.zeros(2, 2, device="cuda")  # PyTorch loads it
    for name in ("libcublas.so.13", "libcublas.so.12"):
        try:
            lib = ctypes.CDLL(name)
        except OSError:
            continue
        handle = ctypes.c_void_p()
        _must("cublasCreate", lib.cublasCreate_v2(ctypes.byref(handle)))
        _must("cublasSetPointerMode", lib.cublasSetPointerMode_v2(handle, 1))  # results on the device
        return lib, handle
    print("cuBLAS is left out: libcublas was not found")
    return None


def asum(x: torch.Tensor) -> tuple[Callable[[], Any], Callable[[], torch.Tensor]] | None:
    """cuBLAS's sum of magnitudes, of float32 alone."""
    found = _cublas() if x.dtype == torch.float32 else None
    if found is None:
        return None
    lib, handle = found
    out = torch.empty(1, device=x.device)

    def run() -> None:
        _must("cublasSetStream", lib.cublasSetStream_v2(handle, _stream()))
        _must("cublasSasum", lib.cublasSasum_v2(handle, ctypes.c_int(x.numel()), _at(x), 1, _at(out)))

    return run, lambda: out[0]
