"""Kernels on the host, a fiber a thread, under AddressSanitizer: what CI sees of them without a GPU.

g++ compiles the .cu files with tests/emulator in place of CUDA.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
ROOT = HERE.parent
on_the_host = pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs the kernels themselves")


def cuda_headers() -> Path:
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), nvcc and str(Path(nvcc).resolve().parents[1]), "/usr/local/cuda"]
    for home in homes:
        if home and Path(home, "include/cuda_runtime_api.h").exists():
            return Path(home, "include")
    pytest.skip("no CUDA headers")


def replaced(file: Path, replacements: Iterable[tuple[str, str]]) -> str:
    """The file's text with each pattern replaced; a pattern that is not there any more fails."""
    text = file.read_text()
    for pattern, replacement in replacements:
        text, count = re.subn(pattern, replacement, text, flags=re.DOTALL)
        assert count, f"{pattern} is not in {file.name} any more"
    return text


def compile_program(
    target: Path, sources: Sequence[Path], folders: Sequence[Path] = (), *flags: str, apart: bool = False
) -> Path:
    """The sources in one program. folders: searched before csrc; apart: an object each, for less memory."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        pytest.skip("no g++")
    includes = [f"-I{path}" for path in (HERE / "emulator", *folders, ROOT / "csrc")]
    options = ["-std=c++20", "-O1", "-w", "-fsanitize=address", "--param", "asan-stack=0", *flags]
    options += ["-isystem", str(cuda_headers())]
    commands: list[list[Any]] = []
    objects = sources
    if apart:
        objects = [target.parent / f"{source.stem}.o" for source in sources]
        commands = [[*includes, "-c", s, "-o", o] for s, o in zip(sources, objects, strict=True)]
        includes = []
    for arguments in [*commands, [*includes, *objects, "-o", target]]:
        done = subprocess.run([compiler, *options, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
    return target


#: For compile_program: misaligned accesses fail too.
ALIGNED = ("-fsanitize=alignment", "-fno-sanitize-recover=alignment")


def run(program: Path, *arguments: Any, sent: bytes | None = None, **env: str) -> bytes:
    """What the program writes; it must end well."""
    environ = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0", **env}
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, input=sent, capture_output=True, env=environ, timeout=1500)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[:4000]
    return done.stdout
