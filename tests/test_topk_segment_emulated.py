"""Kernels of segment_topk and merge_topk on the host, a fiber a thread, under AddressSanitizer."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from test_topk_emulated import HERE, REPLACED, ROOT, cuda_headers

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs the kernels themselves")

#: What the emulator has no name for.
PREFIX = """#include "common/launch.h"
template <class T>
T atomicMax(T* at, T value) {
  simt::maybe_suspend();
  return std::exchange(*at, *at > value ? *at : value);
}
"""
SHARED = r"extern __shared__ __align__\(16\) unsigned char dynamic_memory\[\];"
FLOAT16 = r"    if \(args\.dtype == Dtype::b?f16\)\n.*?;\n"
#: As REPLACED: what a host compiler cannot take, each of which must be found.
OWN = {
    "segment_device.cuh": [(r"#include <cuda_runtime.h>", "")],
    "segment_scan.cuh": [],
    "segment_prepare.cu": [],
    "segment_small.cu": [],
    "segment_items.cu": [(FLOAT16, "")],
    "segment_merge.cu": [],
    "merge_op.cu": [(SHARED, "")],
}


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        pytest.skip("no g++")
    headers = cuda_headers()
    folder = tmp_path_factory.mktemp("emulated_segment")
    (folder / "topk").mkdir()
    for file in (ROOT / "csrc/topk").glob("*.*h"):
        shutil.copy(file, folder / "topk")
    used = {name: REPLACED[name] for name in ("rows.cuh", "block.cuh", "scan.cuh")} | OWN
    for name, replacements in used.items():
        text = (ROOT / "csrc/topk" / name).read_text()
        for pattern, replacement in replacements:
            text, count = re.subn(pattern, replacement, text, flags=re.DOTALL)
            assert count, f"{pattern} is not in {name} any more"
        (folder / "topk" / name).write_text((PREFIX if name.endswith(".cu") else "") + text)
    sources = [HERE / "emulator/segment.cpp"]
    for name in OWN:
        if name.endswith(".cu"):  # names repeat between them
            sources.append(folder / name.replace(".cu", ".cpp"))
            sources[-1].write_text(f'#include "topk/{name}"\n')
    includes = [f"-I{path}" for path in (HERE / "emulator", folder, ROOT / "csrc")]
    flags = ["-std=c++20", "-O1", "-w", "-fsanitize=address,alignment", "-fno-sanitize-recover=alignment"]
    flags += ["--param", "asan-stack=0", "-isystem", str(headers)]
    target = folder / "emulated_segment"
    done = subprocess.run(
        [compiler, *flags, *includes, *sources, "-o", target], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[:4000]
    return target


@pytest.mark.parametrize("seed", [1, 2])
def test_kernels_match_a_stable_sort(program: Path, seed: int) -> None:
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0"}
    done = subprocess.run([program, str(seed)], capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[:4000]
