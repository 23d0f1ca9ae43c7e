"""Kernels of the sorts on the host, a fiber a thread, under AddressSanitizer: what CI sees without a GPU."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from test_topk_emulated import HERE, ROOT, cuda_headers

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs the kernels themselves")

KERNELS = ("warp_row", "block_row", "sweep", "segments")
#: The emulator has a dynamic_memory of its own.
EXTERN = "extern __shared__ __align__(16) unsigned char dynamic_memory[];"


def build(folder: Path, main: str, kernels: tuple[str, ...]) -> Path:
    """The kernels, compiled by g++ with the emulator in place of CUDA."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        pytest.skip("no g++")
    headers = cuda_headers()
    (folder / "sort").mkdir()
    for file in (ROOT / "csrc/sort").glob("*.*h"):
        text = file.read_text()
        assert file.name != "records.cuh" or EXTERN in text
        text = text.replace("#include <cuda_runtime.h>", '#include "common/launch.h"').replace(EXTERN, "")
        (folder / "sort" / file.name).write_text(text)
    sources = []
    for name in kernels:
        source = folder / f"{name}.cpp"
        source.write_text('#include "common/launch.h"\n' + (ROOT / f"csrc/sort/{name}.cu").read_text())
        sources.append(source)
    source = folder / "main.cpp"
    source.write_text(f'#include "common/launch.h"\n#include "{HERE}/emulator/{main}"\n')
    includes = [f"-I{path}" for path in (HERE / "emulator", folder, ROOT / "csrc")]
    flags = ["-std=c++20", "-O1", "-w", "-fsanitize=address", "--param", "asan-stack=0", "-isystem", headers]
    target = folder / "emulated"
    done = subprocess.run(
        [compiler, *flags, *includes, source, *sources, "-o", target], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[:4000]
    return target


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("emulated"), "sort.cpp", KERNELS)


@pytest.fixture(scope="session")
def warp_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("emulated"), "sort_warp.cpp", ("warp_row",))


def run(program: Path, seed: int, **more: str) -> None:
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0", **more}
    done = subprocess.run([program, str(seed)], capture_output=True, text=True, env=env, timeout=900)
    assert done.returncode == 0, done.stderr[:4000]


@pytest.mark.parametrize("seed", [1, 2])
def test_kernels_match_a_stable_sort(program: Path, seed: int) -> None:
    run(program, seed)


@pytest.mark.parametrize("seed, mixed", [(1, "1"), (2, "0")])
def test_short_rows_bit_for_bit(warp_program: Path, seed: int, mixed: str) -> None:
    run(warp_program, seed, GPUPRIMS_SORT_MIX=mixed)
