"""NVRTC and the CUDA driver through ctypes: source to machine code to a launched kernel, without nvcc."""

import ctypes
import functools
import glob
import os
import site
from collections.abc import Iterator
from pathlib import Path

_MAJORS = (13, 12)


def _candidates() -> Iterator[str]:
    """Where libnvrtc may be: the loader's path, PyTorch's own wheels, the toolkit."""
    for major in _MAJORS:
        yield f"libnvrtc.so.{major}"
    roots = [*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[1])]
    for root in roots:
        for pattern in ("nvidia/cu*/lib/libnvrtc.so.*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.*"):
            yield from sorted(glob.glob(os.path.join(root, pattern)), reverse=True)
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            for folder in ("lib64", "lib"):
                yield from sorted(glob.glob(os.path.join(home, folder, "libnvrtc.so.*")), reverse=True)


@functools.cache
def library() -> ctypes.CDLL:
    for name in _candidates():
        if "builtins" in name:
            continue
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeError(
        "compile_reduction: libnvrtc was not found: it comes with PyTorch's CUDA wheels and the CUDA toolkit "
        "(set CUDA_HOME), or with pip install nvidia-cuda-nvrtc"
    )


@functools.cache
def version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


class CompileError(Exception):
    """The compiler's own words."""


def compile_cubin(source: str, capability: tuple[int, int]) -> bytes:
    """Machine code for a device of this capability; no product is contracted, so that CPUs agree."""
    nvrtc = library()
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    program = ctypes.c_void_p()

    def call(name: str, *args: object) -> int:
        return int(getattr(nvrtc, name)(*args))

    def must(name: str, *args: object) -> None:
        code = call(name, *args)
        if code:
            words = nvrtc.nvrtcGetErrorString(code).decode()
            raise RuntimeError(f"compile_reduction: {name} failed: {words}")

    must(
        "nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"skeleton", ctypes.c_int(0), None, None
    )
    try:
        options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17", "--fmad=false"]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = call("nvrtcCompileProgram", program, ctypes.c_int(len(options)), array)
        if code:
            size = ctypes.c_size_t()
            must("nvrtcGetProgramLogSize", program, ctypes.byref(size))
            log = ctypes.create_string_buffer(max(size.value, 1))
            must("nvrtcGetProgramLog", program, log)
            raise CompileError(log.value.decode(errors="replace") or f"NVRTC error {code}")
        size = ctypes.c_size_t()
        must("nvrtcGetCUBINSize", program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        must("nvrtcGetCUBIN", program, cubin)
        return cubin.raw
    finally:
        call("nvrtcDestroyProgram", ctypes.byref(program))


@functools.cache
def driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise RuntimeError("compile_reduction: libcuda.so.1, the NVIDIA driver, was not found") from None


def _must(name: str, *args: object) -> None:
    code = getattr(driver(), name)(*args)
    if code:
        words = ctypes.c_char_p()
        driver().cuGetErrorString(ctypes.c_int(code), ctypes.byref(words))
        text = words.value.decode() if words.value else f"error {code}"
        raise RuntimeError(f"compile_reduction: {name} failed: {text}")


class Module:
    """Kernels on a device; they stay loaded."""

    def __init__(self, cubin: bytes, device: int) -> None:
        """device: as PyTorch numbers them."""
        handle = ctypes.c_int()
        self._context = ctypes.c_void_p()
        self._module = ctypes.c_void_p()
        _must("cuInit", ctypes.c_uint(0))
        _must("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        _must("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)  # the one that PyTorch uses
        self._bind()
        self._functions: dict[str, ctypes.c_void_p] = {}
        _must("cuModuleLoadData", ctypes.byref(self._module), cubin)

    def _bind(self) -> None:
        """A thread that has not called the CUDA runtime yet has no context."""
        current = ctypes.c_void_p()
        _must("cuCtxGetCurrent", ctypes.byref(current))
        if current.value != self._context.value:
            _must("cuCtxSetCurrent", self._context)

    def launch(self, name: str, blocks: int, threads: int, stream: int, *args: object) -> None:
        """args: ctypes values, in the kernel's order."""
        self._bind()
        function = self._functions.get(name)
        if function is None:
            function = ctypes.c_void_p()
            _must("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
            self._functions[name] = function
        pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(arg) for arg in args))  # type: ignore[arg-type]
        grid = (ctypes.c_uint(blocks), ctypes.c_uint(1), ctypes.c_uint(1))
        block = (ctypes.c_uint(threads), ctypes.c_uint(1), ctypes.c_uint(1))
        _must(
            "cuLaunchKernel",
            function,
            *grid,
            *block,
            ctypes.c_uint(0),
            ctypes.c_void_p(stream),
            pointers,
            None,
        )
