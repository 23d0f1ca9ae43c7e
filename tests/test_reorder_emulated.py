"""The reordering kernels on the host, under AddressSanitizer: what CI sees without a GPU."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from test_topk_emulated import HERE, ROOT, cuda_headers

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs the kernels themselves")
KERNELS = ("check", "copy", "csr", "spmv")


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels, compiled by g++ with the emulator in place of CUDA."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("emulated_reorder")
    texts = {
        name: (ROOT / f"csrc/reorder/{name}.cu").read_text() for name in ("check", "copy", "csr", "spmv")
    }
    texts["main"] = f'#include "{HERE}/emulator/reorder.cpp"\n'
    includes = [f"-I{path}" for path in (HERE / "emulator", HERE / "emulator/half", ROOT / "csrc")]
    flags = ["-std=c++20", "-O2", "-w", "-fsanitize=address", "--param", "asan-stack=0"]
    flags += ["-ffp-contract=off", "-isystem", cuda_headers()]
    objects = []
    for name, text in texts.items():
        source = folder / f"{name}.cpp"
        source.write_text('#include "common/launch.h"\n#include "half/loads.h"\n' + text)
        objects.append(source.with_suffix(".o"))
        command = [compiler, *flags, *includes, "-c", source, "-o", objects[-1]]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
    target = folder / "emulated_reorder"
    done = subprocess.run([compiler, *flags, *objects, "-o", target], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return target


@pytest.mark.parametrize("seed", [1, 2])
def test_slots_and_sums_bit_for_bit(program: Path, seed: int) -> None:
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0"}
    done = subprocess.run([program, str(seed)], capture_output=True, text=True, env=env, timeout=900)
    assert done.returncode == 0, done.stderr[:4000]
