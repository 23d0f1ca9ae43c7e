"""Kernels of segment_topk and merge_topk on the host, a fiber a thread, under AddressSanitizer."""

import shutil
from pathlib import Path

import pytest
from emulate import ALIGNED, HERE, ROOT, compile_program, on_the_host, replaced, run
from test_topk_emulated import REPLACED

pytestmark = on_the_host

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
    folder = tmp_path_factory.mktemp("emulated_segment")
    (folder / "topk").mkdir()
    for file in (ROOT / "csrc/topk").glob("*.*h"):
        shutil.copy(file, folder / "topk")
    used = {name: REPLACED[name] for name in ("rows.cuh", "block.cuh", "scan.cuh")} | OWN
    for name, replacements in used.items():
        text = replaced(ROOT / "csrc/topk" / name, replacements)
        (folder / "topk" / name).write_text((PREFIX if name.endswith(".cu") else "") + text)
    sources = [HERE / "emulator/segment.cpp"]
    for name in OWN:
        if name.endswith(".cu"):  # names repeat between them
            sources.append(folder / name.replace(".cu", ".cpp"))
            sources[-1].write_text(f'#include "topk/{name}"\n')
    return compile_program(folder / "emulated_segment", sources, [folder], *ALIGNED)


@pytest.mark.parametrize("seed", [1, 2])
def test_kernels_match_a_stable_sort(program: Path, seed: int) -> None:
    run(program, seed)
