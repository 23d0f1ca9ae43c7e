"""Builds gpuprims_native, the pybind11 module that hands csrc's torch-free host code to pytest."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def build() -> Path:
    """The module's file, compiled anew where a header or source has changed since."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler:
        pytest.skip("no C++ compiler to build tests/native with")
    python_h = Path(sysconfig.get_path("include"), "Python.h")
    if not python_h.exists():
        pytest.skip(f"{python_h} is missing (python3-dev): tests/native cannot be built")
    pybind11 = pytest.importorskip("pybind11")
    sources = sorted(HERE.glob("*.cpp"))
    digest = hashlib.sha256(sys.version.encode())
    for file in [*sources, *sorted((ROOT / "csrc").glob("*/*.h"))]:
        digest.update(file.read_bytes())
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    target = ROOT / "build/native" / digest.hexdigest()[:16] / f"gpuprims_native{suffix}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        includes = [f"-I{path}" for path in (ROOT / "csrc", python_h.parent, pybind11.get_include())]
        flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
        part = target.with_suffix(f".{os.getpid()}")  # another run may be at it too
        command = [compiler, *flags, *includes, *map(str, sources), "-o", str(part)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.fail(f"tests/native does not compile:\n{done.stderr[:4000]}", pytrace=False)
        part.replace(target)
    return target


@pytest.fixture(scope="session")
def native() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpuprims_native", build())
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
