"""CUB's radix sorts, called directly: compiled with nvcc on first use, loaded through ctypes."""

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

SOURCE = Path(__file__).with_suffix(".cu")
BUILD = Path(__file__).parents[2] / "build/rivals"
KINDS = {
    torch.uint32: 0, torch.int32: 0, torch.float32: 1, torch.uint64: 2, torch.int64: 2, torch.float64: 3,
}  # fmt: skip


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled rival, or None with a line that says why."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not torch.cuda.is_available() or not os.path.exists(nvcc):
        print("CUB is left out: it needs a GPU and nvcc")
        return None
    major, minor = torch.cuda.get_device_capability()
    target = BUILD / f"cub_sort-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}-{major}{minor}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [nvcc, f"-arch=sm_{major}{minor}", "-O3", "-std=c++17", "-shared", "-Xcompiler=-fPIC"]
        part = target.with_suffix(".part")
        done = subprocess.run([*command, str(SOURCE), "-o", str(part)], capture_output=True, text=True)
        if done.returncode:
            print(f"CUB is left out: {done.stderr.strip().splitlines()[-1]}")
            return None
        part.replace(target)
    return ctypes.CDLL(str(target))


def call(x: torch.Tensor, keys_only: bool) -> Callable[[], Any] | None:
    """CUB's sort of x with everything allocated beforehand; None where CUB is missing or has no such case.

    Signed integers are sorted as unsigned ones: the same work. Rows go to DeviceSegmentedRadixSort.
    """
    if x.dtype not in KINDS or not x.is_cuda or x.numel() == 0:
        return None
    n = x.shape[-1]
    rows = x.numel() // n
    if rows > 1 and x.numel() >= 2**31:
        return None
    lib = library()
    if lib is None:
        return None
    out = torch.empty_like(x)
    index = [None, None]
    if not keys_only:
        first = torch.arange(n, device=x.device, dtype=torch.int32).repeat(rows)
        index = [first, torch.empty_like(first)]
    offsets = torch.arange(0, x.numel() + 1, n, device=x.device).int() if rows > 1 else None
    kept = [x, out, *index, offsets]

    def pointer(t: torch.Tensor | None) -> ctypes.c_void_p:
        return ctypes.c_void_p(t.data_ptr() if t is not None else None)

    def run(memory: torch.Tensor | None, size: Any) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        sizes = (ctypes.c_longlong(rows), ctypes.c_longlong(n))
        code = lib.cub_sort(
            KINDS[x.dtype], pointer(memory), size, *map(pointer, kept[:4]), *sizes, pointer(kept[4]), stream
        )
        if code:
            raise RuntimeError(f"CUB failed with CUDA error {code}")

    size = ctypes.c_size_t(0)
    run(None, ctypes.byref(size))
    memory = torch.empty(max(size.value, 1), dtype=torch.uint8, device=x.device)
    return lambda: run(memory, ctypes.byref(size))
