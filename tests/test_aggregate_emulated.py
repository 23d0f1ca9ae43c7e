"""Row kernels of aggregation on the host, under AddressSanitizer: what CI sees without a GPU."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from test_topk_emulated import HERE, ROOT, cuda_headers

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs the kernels themselves")

KERNELS = (
    "combine", "extreme", "extreme_grad", "prepare", "sum", "weighted_extreme", "weighted_sum",
)  # fmt: skip


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels, compiled by g++ with the emulator in place of CUDA."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        pytest.skip("no g++")
    headers = cuda_headers()
    folder = tmp_path_factory.mktemp("emulated")
    sources = []
    for name, text in {
        **{name: (ROOT / f"csrc/aggregate/{name}.cu").read_text() for name in KERNELS},
        "main": f'#include "{HERE}/emulator/aggregate.cpp"\n',
    }.items():
        sources.append(folder / f"{name}.cpp")
        sources[-1].write_text('#include "common/launch.h"\n#include "half/loads.h"\n' + text)
    includes = [f"-I{path}" for path in (HERE / "emulator", HERE / "emulator/half", ROOT / "csrc")]
    flags = ["-std=c++20", "-O1", "-w", "-fsanitize=address", "--param", "asan-stack=0", "-isystem", headers]
    objects = []
    for source in sources:
        objects.append(source.with_suffix(".o"))
        done = subprocess.run(
            [compiler, *flags, *includes, "-c", source, "-o", objects[-1]], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[:4000]
    target = folder / "emulated_aggregate"
    done = subprocess.run([compiler, *flags, *objects, "-o", target], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return target


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_are_exact_and_their_bits_depend_on_nothing_else(program: Path, seed: int) -> None:
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0"}
    done = subprocess.run([program, str(seed)], capture_output=True, text=True, env=env, timeout=900)
    assert done.returncode == 0, done.stderr[:4000]
