"""Loads the native libraries, or says exactly why not and what to do."""

import ctypes
import json
import struct
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
OLDEST_TORCH = (2, 11)
#: Build records of the libraries that are loaded, by file name.
loaded: dict[str, dict[str, Any]] = {}


def _torch_version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _check_whole(path: Path) -> None:
    """The dynamic loader dies of SIGBUS on a file that was cut short: its section table ends the file."""
    with path.open("rb") as file:
        head = file.read(64)
    if len(head) == 64 and head[:4] == b"\x7fELF":
        (table,), (size, count) = struct.unpack_from("<Q", head, 40), struct.unpack_from("<HH", head, 58)
        if table + size * count > path.stat().st_size:
            raise OSError("the file is cut short")


def _load(path: Path, symbol: str) -> ctypes.CDLL:
    try:
        _check_whole(path)
        torch.ops.load_library(path)
        library = ctypes.CDLL(str(path))
        info = getattr(library, symbol)
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"torch_gpuprims: cannot load {path} under PyTorch {torch.__version__} "
            f"(needs PyTorch >= {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}): {error}\n"
            "Rebuild it with: pip install --no-build-isolation --force-reinstall --no-deps ."
        ) from error
    info.restype = ctypes.c_char_p
    loaded[path.name] = {"file": str(path), **json.loads(info())}
    return library


def _check_driver(record: dict[str, Any], library: ctypes.CDLL) -> None:
    """The CUDA runtime inside the file needs a driver of at least its own major version."""
    driver = ctypes.c_int(0)
    library.gpuprims_driver_version(ctypes.byref(driver))
    record["driver"] = driver.value
    built = record["cudart"]
    if driver.value and driver.value // 1000 < built // 1000:
        raise ImportError(
            f"torch_gpuprims: {record['file']} was built with CUDA {built // 1000}.{built % 1000 // 10}, "
            f"but the driver serves CUDA {driver.value // 1000}.{driver.value % 1000 // 10} at most. "
            "Update the NVIDIA driver, or rebuild with an older toolkit: "
            "CUDA_HOME=/usr/local/cuda-12 pip install --no-build-isolation --force-reinstall --no-deps ."
        )


def load() -> ctypes.CDLL:
    """Load _C, and _C_cuda where PyTorch has CUDA; returns the handle of _C."""
    if _torch_version() < OLDEST_TORCH:
        raise ImportError(
            f"torch_gpuprims needs PyTorch >= {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}, "
            f"found {torch.__version__}: pip install 'torch>=2.11'"
        )
    cpu = HERE / "_C.so"
    if not cpu.exists():
        raise ImportError(
            f"torch_gpuprims: {cpu} is missing (PyTorch {torch.__version__} found, "
            f"needs >= {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}). The native library has not been built: "
            "run `make build` in the source folder, or pip install --no-build-isolation ."
        )
    handle = _load(cpu, "gpuprims_build_info")
    cuda = HERE / "_C_cuda.so"
    if torch.version.cuda and cuda.exists():
        cuda_handle = _load(cuda, "gpuprims_cuda_build_info")
        _check_driver(loaded[cuda.name], cuda_handle)
    return handle


library = load()
