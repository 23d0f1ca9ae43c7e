"""The installed files: what the libraries import, what loads, and what a broken installation says."""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from torch_gpuprims import _native

PACKAGE = Path(_native.__file__).parent
ROOT = PACKAGE.parent
LIBRARIES = ("_C.so", "_C_cuda.so")
NAMES = {"_C.so": "the CPU library", "_C_cuda.so": "the CUDA library (GPUPRIMS_CUDA=1 make build)"}


def library(name: str) -> Path:
    if not (PACKAGE / name).exists():
        pytest.skip(f"{NAMES[name]} has not been built")
    return PACKAGE / name


def tool_output(*command: str | Path) -> str:
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} (binutils) is not installed")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", LIBRARIES)
def test_stable_abi_symbols_alone(name: str) -> None:
    """No Python, no C++ symbol of libtorch: one file for every PyTorch >= 2.11 and every Python."""
    lines = tool_output("nm", "-D", "--undefined-only", library(name)).splitlines()
    symbols = [line.split()[-1].split("@")[0] for line in lines]
    assert symbols
    forbidden = re.compile(r"_?Py|_ZNK?2at|_ZNK?3c10|_ZNK?5torch|_ZN8pybind11|cudart|cuda[A-Z]")
    assert not [symbol for symbol in symbols if forbidden.match(symbol)]
    assert any(symbol.startswith("aoti_torch_") for symbol in symbols)


@pytest.mark.parametrize("name", LIBRARIES)
def test_needs_no_python_and_no_cuda_runtime(name: str) -> None:
    dynamic = tool_output("readelf", "-d", library(name))
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    assert "libtorch_cpu.so" in needed  # else symbols resolve only if something else has loaded it
    extra = {file for file in needed if re.match(r"libpython|libcuda|libc10_|libtorch_(python|cuda)", file)}
    assert not extra
    assert not re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", dynamic)  # no folder of the build machine


@pytest.mark.parametrize("name", LIBRARIES)
def test_sha256_of_the_files(name: str, record_property: Callable[[str, object], None]) -> None:
    """Goes into the test report: the GPU record holds the sha256 of the files it loaded."""
    digest = hashlib.sha256(library(name).read_bytes()).hexdigest()
    record_property(f"sha256 {name}", digest)
    print(f"{name} sha256 {digest} under PyTorch {torch.__version__}")


def test_loaded_libraries_say_what_they_were_built_for() -> None:
    info = _native.loaded["_C.so"]
    assert Path(info["file"]) == PACKAGE / "_C.so"
    assert info["version"] and info["built_with_torch"] and info["cudart"] == 0
    assert ("_C_cuda.so" in _native.loaded) == bool(torch.version.cuda and (PACKAGE / "_C_cuda.so").exists())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package whose files may be broken, with the CPU library alone."""
    ignored = shutil.ignore_patterns("__pycache__", "_C_cuda.so", "data")
    return Path(shutil.copytree(PACKAGE, tmp_path / "torch_gpuprims", ignore=ignored))


def run_python(copy: Path, code: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=copy.parent, env=env, capture_output=True, text=True)


def import_error(copy: Path) -> str:
    done = run_python(copy, "import torch_gpuprims")
    assert done.returncode == 1, done.stderr
    assert "ImportError: " in done.stderr
    return done.stderr[done.stderr.rindex("ImportError: ") :]


def test_cpu_library_alone_imports_and_computes(copy: Path) -> None:
    code = (
        "import torch, torch_gpuprims as g; from torch_gpuprims import _native;"
        "print(sorted(_native.loaded), g.topk(torch.tensor([1., 3., 2.]), 2).indices.tolist(), g.__file__)"
    )
    done = run_python(copy, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['_C.so'] [1, 2]")
    assert str(copy) in done.stdout


def check_message(message: str, copy: Path) -> None:
    """File, version found, version needed, next command."""
    assert str(copy / "_C.so") in message
    assert f"PyTorch {torch.__version__}" in message
    assert "2.11" in message.replace(torch.__version__, "")
    assert "pip install --no-build-isolation" in message


def test_missing_library_says_what_to_do(copy: Path) -> None:
    (copy / "_C.so").unlink()
    message = import_error(copy)
    check_message(message, copy)
    assert "missing" in message and "make build" in message


@pytest.mark.parametrize("damage", ["truncated", "not ELF", "other library"])
def test_unloadable_library_says_what_to_do(copy: Path, damage: str) -> None:
    file = copy / "_C.so"
    content = file.read_bytes()
    file.unlink()
    if damage == "other library":  # loads, but is none of ours
        shutil.copy(next(Path(torch.__file__).parent.glob("lib/libtorch_global_deps.so")), file)
    else:
        file.write_bytes(content[:1000] if damage == "truncated" else b"not a library")
    check_message(import_error(copy), copy)


def test_old_pytorch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    with pytest.raises(ImportError, match=r"needs PyTorch >= 2\.11, found 2\.10\.1\+cu128: pip install"):
        _native.load()


class FakeLibrary:
    def __init__(self, driver: int):
        self.driver = driver

    def gpuprims_driver_version(self, pointer) -> None:
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = self.driver


def test_old_driver_is_named() -> None:
    record = {"file": "/somewhere/_C_cuda.so", "cudart": 13000}
    with pytest.raises(ImportError) as caught:
        _native._check_driver(record, FakeLibrary(12040))  # type: ignore[arg-type]
    message = str(caught.value)
    for part in ("/somewhere/_C_cuda.so", "CUDA 13.0", "CUDA 12.4", "driver", "pip install"):
        assert part in message


@pytest.mark.parametrize("driver", [13000, 13010, 14000, 0])
def test_new_driver_or_none_is_fine(driver: int) -> None:
    record = {"file": "/somewhere/_C_cuda.so", "cudart": 13000}
    _native._check_driver(record, FakeLibrary(driver))  # type: ignore[arg-type]
    assert record["driver"] == driver


@pytest.mark.slow
def test_wheel_serves_every_python(tmp_path: Path) -> None:
    """pip wheel --no-build-isolation: tag py3-none-<platform>, libraries inside, imports where installed."""
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for folder in ("csrc", "torch_gpuprims"):
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-deps", "--no-index"]
    env = {**os.environ, "GPUPRIMS_CUDA": "0"}
    build = [*pip, "wheel", "--no-build-isolation", *offline, "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, env=env)
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(r"torch_gpuprims-[\d.]+-py3-none-(linux|manylinux)\w+\.whl", wheel.name)
    site = tmp_path / "site"
    subprocess.run([*pip, "install", *offline, "--target", str(site), str(wheel)], check=True)
    installed = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    assert "torch_gpuprims/_C.so" in installed and "torch_gpuprims/data/cora.npz" in installed
    assert not [name for name in installed if name.endswith((".cpp", ".cu", ".h"))]
    done = run_python(site / "torch_gpuprims", "import torch_gpuprims as g; print(g.__version__, g.__file__)")
    assert done.returncode == 0, done.stderr
    assert str(site) in done.stdout
