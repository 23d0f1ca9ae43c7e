"""compile_reduction: a reduction of the user's own, from C++ expressions, at run time."""

import ctypes
import hashlib
import keyword
import math
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from . import _nvrtc
from ._dispatch import plain
from ._reduction_source import ACCUMULATOR_BYTES, CHUNK, DTYPES, PIECE, write_source
from .reduce_fake import listed
from .topk import _name

_lock = threading.RLock()
_made: dict[str, "Reduction"] = {}
_THREADS = 256
_TASK = 1 << 16  # elements that are worth a thread of the CPU


def compile_reduction(
    name: str, transform: str = "x", combine: str = "a + b", init: str = "0", finalize: str = "a"
) -> "Reduction":
    """A reduction from four C++ expressions: finalize(combine over transform(x) of all elements).

    Args:
        name: an identifier; the op is registered as torch.ops.gpuprims_user.<name>.
        transform: of an element x.
        combine: of two values a and b. It must be associative; how values are grouped is fixed by the extent.
        init: the neutral element of combine: it stands where there is no element, any number of times.
        finalize: of the combined value a, and n, the number of elements.

    x, a, b and n are float (float32, float16 and bfloat16 input), double (float64) or long long (integers,
    bool). What CUDA and <cmath> both have may be called: sqrt, exp, fabs, fmax, ... With names of the one
    alone the expression compiles for that device alone.

    Returns:
        Reduction: call it as reduction(input, dim=None, keepdim=False). Calling compile_reduction again with
        the same words returns the same object.

    Raises:
        ValueError: name is no identifier, or names a reduction with other expressions (which may have the
            name where these did not compile).

    Compiled at the first call for a dtype and device, by NVRTC (PyTorch's own, or the CUDA toolkit's) or
    the system's C++ compiler ($CXX, c++, g++, clang++), and kept in $XDG_CACHE_HOME/torch_gpuprims (by
    default ~/.cache) where that can be written. That call must come before a CUDA graph is captured; later
    ones may be captured. Neither compiler contracts a * b + c, and both follow one tree: for what IEEE 754
    defines (+ - * / sqrt) both devices give the same bits.

    >>> norm = compile_reduction("my_norm", transform="x * x", combine="a + b", init="0", finalize="sqrt(a)")
    >>> norm(torch.tensor([[3.0, 4.0], [6.0, 8.0]]), dim=1)
    tensor([ 5., 10.])
    """
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or keyword.iskeyword(name):
        raise ValueError(f"compile_reduction: name must be an identifier, got {name!r}")
    words = {"transform": transform, "combine": combine, "init": init, "finalize": finalize}
    for word, text in words.items():
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"compile_reduction: {word} must be a C++ expression, got {text!r}")
    with _lock:
        made = _made.get(name)
        if made is None or (made.failed and made.expressions != words):
            made = _made[name] = Reduction(name, words)
        if made.expressions != words:
            raise ValueError(f"compile_reduction: {name!r} exists with other expressions")
        return made


class Reduction:
    """What compile_reduction returns; torch.compile, vmap and torch.ops see it as an op. No gradient."""

    def __init__(self, name: str, expressions: dict[str, str]) -> None:
        self.name = name
        self.expressions = expressions
        self._compiled: dict[Any, Any] = {}
        self._refused_once = False

        def run(input: torch.Tensor, dim: Sequence[int], keepdim: bool) -> torch.Tensor:
            return self._run(input, dim, keepdim)

        run.__annotations__ = {
            "input": torch.Tensor, "dim": Sequence[int], "keepdim": bool, "return": torch.Tensor,
        }  # fmt: skip
        self._op = torch.library.custom_op(f"gpuprims_user::{name}", run, mutates_args=())
        self._op.register_fake(self._fake)
        self._op.register_vmap(self._vmap)

    def __call__(
        self, input: torch.Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> torch.Tensor:
        """Reduces `dim` (an int, several, or all dimensions for None and for none at all).

        input is float64/32/16, bfloat16, (u)int8/16/32, int64 or bool; the result has its dtype, of integers
        and bool int64. Sums follow one tree, which depends on the extent's length alone (and on whether it is
        contiguous). Several dims that do not lie together are copied first.
        """
        dims = listed(dim) or list(range(input.dim()))
        if plain(input):
            return self._run(input, dims, keepdim)
        return self._op(input, dims, keepdim)

    @property
    def failed(self) -> bool:
        """The expressions did not compile, for any dtype and device that was tried."""
        return self._refused_once and not self._compiled

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies are this very object; another process compiles it anew."""
        return compile_reduction, (self.name, *self.expressions.values())

    def __repr__(self) -> str:
        return f"Reduction({self.name!r}, {', '.join(f'{k}={v!r}' for k, v in self.expressions.items())})"

    # Shapes ---------------------------------------------------------------------------------------------

    def _normal(self, input: torch.Tensor, dim: Sequence[int], rank: int) -> list[int]:
        torch._check(
            input.dtype in DTYPES, lambda: f"{self.name}: dtype {_name(input.dtype)} is not supported"
        )
        torch._check(
            input.layout is torch.strided,
            lambda: f"{self.name}: input must be a dense tensor, got a sparse layout",
        )
        dims = []
        for d in dim:
            torch._check(
                -max(rank, 1) <= d < max(rank, 1),
                lambda: f"{self.name}: dim must be in [{-max(rank, 1)}, {max(rank, 1) - 1}], got {list(dim)}",
            )
            dims.append(d % max(rank, 1))
        torch._check(
            len(set(dims)) == len(dims), lambda: f"{self.name}: dim must not repeat, got {list(dim)}"
        )
        return sorted(dims) if rank else []

    def _result(self, input: torch.Tensor, dims: list[int], keepdim: bool) -> torch.Tensor:
        shape = [1 if d in dims else s for d, s in enumerate(input.shape) if keepdim or d not in dims]
        dtype = input.dtype if input.dtype.is_floating_point else torch.int64
        return input.new_empty(shape, dtype=dtype)

    def _fake(self, input: torch.Tensor, dim: Sequence[int], keepdim: bool) -> torch.Tensor:
        return self._result(input, self._normal(input, dim, input.dim()), keepdim)

    def _vmap(self, info: Any, in_dims: tuple[Any, ...], input: torch.Tensor, dim: Any, keepdim: bool) -> Any:
        """The batch is one more dimension that is kept."""
        batched = input.movedim(in_dims[0], 0)
        dims = [d + 1 for d in self._normal(input, dim, input.dim() - 1)]  # checks are of one of the batch
        return self._op(batched, dims, keepdim), 0

    # Running --------------------------------------------------------------------------------------------

    def _run(self, input: torch.Tensor, dim: Sequence[int], keepdim: bool) -> torch.Tensor:
        dims = self._normal(input, dim, input.dim())
        out = self._result(input, dims, keepdim)
        if out.numel() == 0 or out.is_meta:
            return out
        if input.device.type not in ("cpu", "cuda"):
            raise RuntimeError(f"{self.name}: device {input.device.type} is not supported")
        data = input.detach()
        together = not dims or dims[-1] - dims[0] + 1 == len(dims)
        if not together:  # the reduced ones go last
            data = data.permute(*(d for d in range(data.dim()) if d not in dims), *dims)
            dims = list(range(data.dim() - len(dims), data.dim()))
        data = data.contiguous()
        low, high = (dims[0], dims[-1] + 1) if dims else (data.dim(), data.dim())
        sizes = [math.prod(data.shape[a:b]) for a, b in ((0, low), (low, high), (high, data.dim()))]
        run = self._run_cuda if data.is_cuda else self._run_cpu
        self._passes(run, data, out, *sizes)
        return out

    def _passes(
        self, run: Callable[..., None], data: torch.Tensor, out: torch.Tensor, outer: int, n: int, inner: int
    ) -> None:
        """Chunks become elements of the next pass, until there is one."""
        dtype, count, following = data.dtype, n, False
        while True:
            parts = max(-(-n // (CHUNK if inner == 1 else PIECE)), 1)
            last = parts == 1
            to = out
            if not last:
                size = outer * parts * inner * ACCUMULATOR_BYTES[dtype]
                to = torch.empty(size, dtype=torch.uint8, device=data.device)
            run(dtype, data, to, outer, n, inner, count, last, following, parts)
            if last:
                return
            data, n, following = to, parts, True

    def _run_cuda(
        self, dtype: torch.dtype, data: torch.Tensor, to: torch.Tensor, outer: int, n: int, inner: int,
        count: int, last: bool, following: bool, parts: int,
    ) -> None:  # fmt: skip
        with torch.cuda.device(data.device):
            module = self._get((dtype, data.device.index), lambda: self._load(dtype, data.device))
            name = f"{'rows' if inner == 1 else 'columns'}_{'next' if following else 'first'}"
            threads = outer * parts * (32 if inner == 1 else inner)
            most = 16 * torch.cuda.get_device_properties(data.device).multi_processor_count
            blocks = max(min(-(-threads // _THREADS), most), 1)
            numbers = map(ctypes.c_longlong, (outer, n, inner, count))
            module.launch(
                name, blocks, _THREADS, torch.cuda.current_stream().cuda_stream,
                ctypes.c_void_p(data.data_ptr()), ctypes.c_void_p(to.data_ptr()),
                *numbers, ctypes.c_int(last),
            )  # fmt: skip

    def _run_cpu(
        self, dtype: torch.dtype, data: torch.Tensor, to: torch.Tensor, outer: int, n: int, inner: int,
        count: int, last: bool, following: bool, parts: int,
    ) -> None:  # fmt: skip
        function = self._get((dtype, "cpu"), lambda: self._link(dtype))
        tasks = outer * parts
        shares = max(min(torch.get_num_threads(), tasks, outer * n * inner // _TASK), 1)
        cuts = [tasks * i // shares for i in range(shares + 1)]

        def share(i: int) -> None:
            function(
                ctypes.c_void_p(data.data_ptr()), ctypes.c_void_p(to.data_ptr()),
                *map(ctypes.c_longlong, (cuts[i], cuts[i + 1], n, inner, count)),
                ctypes.c_int(last), ctypes.c_int(following),
            )  # fmt: skip

        if shares == 1:
            share(0)
            return
        with ThreadPoolExecutor(shares) as pool:  # ctypes lets the lock of the interpreter go
            list(pool.map(share, range(shares)))

    # Compiling ------------------------------------------------------------------------------------------

    def _get(self, key: Any, make: Callable[[], Any]) -> Any:
        found = self._compiled.get(key)
        if found is None:
            with _lock:
                found = self._compiled.get(key)
                if found is None:
                    found = self._compiled[key] = make()
        return found

    def _refused(self, log: str) -> RuntimeError:
        self._refused_once = True
        text = "\n".join(f"  {word}: {text}" for word, text in self.expressions.items())
        return RuntimeError(f"compile_reduction: {self.name!r} does not compile\n{text}\n{log.strip()}")

    def cubin(self, dtype: torch.dtype, capability: tuple[int, int]) -> bytes:
        """Machine code for elements of `dtype`, from the cache or NVRTC; needs no GPU."""
        source = write_source(dtype, self.expressions, device=True)
        file = _cached(source, f"{_nvrtc.version()}{capability}", ".cubin")
        if _is_kept(file):
            return file.read_bytes()
        try:
            code = _nvrtc.compile_cubin(source, capability)
        except _nvrtc.CompileError as error:
            raise self._refused(str(error)) from None
        _keep(file, code)
        return code

    def _load(self, dtype: torch.dtype, device: torch.device) -> _nvrtc.Module:
        index = device.index if device.index is not None else torch.cuda.current_device()
        return _nvrtc.Module(self.cubin(dtype, torch.cuda.get_device_capability(device)), index)

    def _link(self, dtype: torch.dtype) -> Any:
        source = write_source(dtype, self.expressions, device=False)
        compiler = next(
            (found for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name
             and (found := shutil.which(name))), None,
        )  # fmt: skip
        flags = ["-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-w"]
        file = _cached(source, f"{compiler}{flags}{os.uname()}", ".so")
        if _is_kept(file):
            return ctypes.CDLL(str(file)).reduce_tasks
        if compiler is None:
            raise RuntimeError(
                "compile_reduction: no C++ compiler was found ($CXX, c++, g++ or clang++) for the CPU"
            )
        with tempfile.TemporaryDirectory() as folder:
            text, part = Path(folder, "skeleton.cpp"), Path(folder, "part.so")
            text.write_text(source)
            command = [compiler, *flags, str(text), "-o", str(part)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise self._refused(done.stderr)
            _keep(file, part.read_bytes())
            return ctypes.CDLL(str(part)).reduce_tasks  # stays loaded when the file goes


def _cached(source: str, made_with: str, ending: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(f"{made_with}\n{source}".encode()).hexdigest()
    return base / "torch_gpuprims" / (digest[:32] + ending)


def _is_kept(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:  # of a folder that may not be read
        return False


def _keep(file: Path, data: bytes) -> None:
    """At once, so that no other process reads a part; where nothing can be written the next process compiles
    again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
            part.write(data)
        os.replace(part.name, file)
    except OSError:
        pass
