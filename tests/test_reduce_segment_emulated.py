"""Kernels of segment_reduce and segment_expand on the host, a fiber a thread, under AddressSanitizer."""

from pathlib import Path

import pytest
from emulate import ALIGNED, HERE, ROOT, compile_program, on_the_host, replaced, run

pytestmark = on_the_host

#: What the emulator has no name for. A 16-bit result is the upper half of a float32 here.
PREFIX = """#include "common/launch.h"
inline uint16_t __ushort_as_half(uint16_t bits) { return bits; }
inline float __half2float(uint16_t bits) { return simt::half_value(bits); }
inline float __float2half_rn(float x) { return x; }
inline float __float2bfloat16_rn(float x) { return x; }
inline uint16_t __half_as_ushort(float x) { return static_cast<uint16_t>(__float_as_int(x) >> 16); }
inline uint16_t __bfloat16_as_ushort(float x) { return __half_as_ushort(x); }
"""
#: What a host compiler cannot take, each of which must be found.
OWN = {
    "segment_values.cuh": [(r"#include <cuda_(bf16|fp16)\.h>", "")],
    "segment_reduce.cuh": [],
    "segment_ring.cuh": [],
    "segment_tiles.cu": [(r"extern __shared__ __align__\(16\) unsigned char dynamic_memory\[\];", "")],
    "segment_long.cu": [],
    "segment_rows.cu": [],
    "segment_levels.cu": [(r"__shared__ __align__\(16\)", "alignas(16) static")],
    "segment_expand.cu": [],
}


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emulated_reduce_segment")
    (folder / "reduce").mkdir()
    sources = [HERE / "emulator/reduce_segment.cpp"]
    for name, replacements in OWN.items():
        text = replaced(ROOT / "csrc/reduce" / name, replacements)
        (folder / "reduce" / name).write_text((PREFIX if name.endswith(".cu") else "") + text)
        if name.endswith(".cu"):  # names repeat between them
            sources.append(folder / name.replace(".cu", ".cpp"))
            sources[-1].write_text(f'#include "reduce/{name}"\n')
    return compile_program(folder / "emulated_reduce_segment", sources, [folder], *ALIGNED)


@pytest.mark.parametrize("seed", [1, 2])
def test_kernels_have_the_bits_of_the_cpu_trees(program: Path, seed: int) -> None:
    run(program, seed)
