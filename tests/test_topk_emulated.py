"""Kernels of topk on the host, a fiber a thread, under AddressSanitizer: what CI sees without a GPU."""

import shutil
from pathlib import Path

import pytest
from emulate import ALIGNED, HERE, ROOT, compile_program, on_the_host, replaced, run

pytestmark = on_the_host

#: Of csrc/topk/gate_element.cuh, for topk_gate and the kernels that share its rows.
GATE_ELEMENT = [
    (
        r'  float out;\n  asm\("cvt.*?;\n  return out;',
        "  _Float16 h; memcpy(&h, &value.bits, 2); return h;",
    ),
    (r'  float out;\n  asm\("max.*?;\n  return out;', "  return a != a || b != b ? NAN : a < b ? b : a;"),
    (r'  float out;\n  asm\("ex2.*?;\n  return out;', "  return exp2f(x * 1.44269504f);"),
]

#: Before what sm_90 does, up to #endif what others do.
SM90 = r"#if !defined\(__CUDA_ARCH__\) \|\| __CUDA_ARCH__ >= 900\n"

#: What a host compiler cannot take, and what stands in for it. Each must be found: a kernel that changes its
#: way of doing these things changes this list. float16 and bfloat16 have instructions of their own: left out.
REPLACED = {
    "rows.cuh": [
        (r"#include <cuda_runtime.h>", ""),
        (r"  uint4 v;\n  asm volatile\(.*?\);\n  return v;", "  return *static_cast<const uint4*>(p);"),
    ],
    "bulk.cuh": [
        (r"#include <cuda_runtime.h>", ""),
        (r"  return static_cast<uint32_t>\(__cvta.*?;", "  return 0;"),
        (SM90 + r"  asm volatile\(\"mbarrier.init.*?#endif\n", ""),
        (
            SM90 + r"  asm volatile\(\"fence.*?#endif\n",
            "  __syncwarp();\n  for (uint32_t at = 0; lane == 0 && at < bytes; at += 16)\n"
            "    simt::copy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, 16);\n",
        ),
        (SM90 + r"  uint32_t done.*?#endif\n", "  __syncwarp();\n"),
    ],
    "cluster.cuh": [  # a block is a cluster of its own
        (r"#include <cuda_runtime.h>", ""),
        (r"  asm volatile\(\"barrier.*?;\n", "  __syncthreads();\n"),
        (r"\buint32_t remote\(", "uint64_t remote("),
        (r"  uint32_t there;\n  asm.*?  return there;", "  return reinterpret_cast<uint64_t>(p);"),
        (r"uint32_t at", "uint64_t at"),
        (r"  Narrow value;\n  asm.*?  return value;", "  return *reinterpret_cast<Narrow*>(at);"),
        (r"  uint32_t value;\n  asm.*?  return value;", "  return *reinterpret_cast<uint32_t*>(at);"),
        (r"  asm volatile\(\"st\..*?;\n", "  *reinterpret_cast<Narrow*>(at) = value;\n"),
        (r"  int old;\n  asm.*?  return old;", "  return atomicAdd(reinterpret_cast<int*>(at), value);"),
        (r"  cudaLaunchAttribute attribute;.*?\n}\n", '  simt::fail("blocks do not run side by side");\n}\n'),
    ],
    "cluster_row.cu": [(r"  return start<uint16_t>.*?;\n", "  return cudaErrorInvalidValue;\n")],
    "part_row.cu": [(r"  return start<uint16_t>.*?;\n", "  return cudaErrorInvalidValue;\n")],
    "stream.cuh": [(r"  asm volatile\(\"prefetch.*?\);\n", "")],
    "block.cuh": [
        (r"extern __shared__ __align__\(16\) unsigned char dynamic_memory\[\];", ""),
        (r"  int old;\n  asm volatile\(.*?\);\n  return old;", "  return atomicAdd(at, value);"),
    ],
    "scan.cuh": [
        (r"#include <cuda_(bf16|fp16)\.h>", ""),
        (r"  float out;\n  asm\(.*?\);\n  return out;", "  return a != a || b != b ? NAN : a < b ? b : a;"),
        (r"template <class Pair>  // __half2 .*?\n};\n", ""),
        (r"  else if \(dtype == Dtype::f16\).*?  else\n.*?;\n", ""),
    ],
    "stream.cu": [(r"    if \(args\.dtype == Dtype::b?f16\)\n.*?;\n", "")],
    "sort.cu": [],
    "filter.cu": [],
    "lanes.cu": [],
    "warp_row.cu": [],
    "count_row.cu": [(r"extern __shared__ __align__\(16\) unsigned char dynamic_memory\[\];", "")],
    "gate_element.cuh": GATE_ELEMENT,
    "thread_row.cu": [(r"extern __shared__ __align__\(16\) unsigned char dynamic_memory\[\];", "")],
    "lane_keys.cuh": [
        (r"#include <cuda_runtime.h>", ""),
        (
            r"  float larger;\n  asm\(.*?\);\n  return larger;",
            "  return a != a || b != b ? NAN : a < b ? b : a;",
        ),
        (
            r"  float smaller;\n  asm\(.*?\);\n  return smaller;",
            "  return a != a ? b : b != b ? a : a < b ? a : b;",
        ),
        (
            r"  int32_t bits;\n  asm\(.*?\);\n  return bits;",
            "  return x != x ? 0x7fffffff : __float_as_int(x + 0.0f);",
        ),
        (r"  float value;\n  asm\(.*?\);\n  return value;", "  return simt::half_value(bits);"),
    ],
    "networks.cuh": [(r"#include <cuda_runtime.h>", "")],
    "tile.cuh": [
        (r"#include <cuda_runtime.h>", ""),
        (r"  const auto shared = .*?\n}\n", "  simt::copy(to, from, kBytes);\n}\n"),
        (r"  asm volatile\(\"cp\.async\.wait_all;\".*?\);", ""),
    ],
}

#: Compiled each for itself: kThreads is a name in several.
APART = ("sort", "filter", "lanes", "count_row", "warp_row", "cluster_row", "part_row")
PROGRAMS = {
    "emulated_topk": ("main.cpp", *(f"{name}.cpp" for name in APART)),
    "emulated_thread_row": ("thread_row.cpp",),
}


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emulated")
    (folder / "topk").mkdir()
    for file in (ROOT / "csrc/topk").glob("*.*h"):
        shutil.copy(file, folder / "topk")
    for name, replacements in REPLACED.items():
        text = replaced(ROOT / "csrc/topk" / name, replacements)
        (folder / "topk" / name).write_text('#include "common/launch.h"\n' + text)
    main = folder / "main.cpp"
    main.write_text(f'#include "topk/stream.cu"\n#include "{HERE}/emulator/topk.cpp"\n')
    for name in APART:
        (folder / f"{name}.cpp").write_text(f'#include "topk/{name}.cu"\n')
    thread_row = folder / "thread_row.cpp"
    thread_row.write_text(f'#include "{HERE}/emulator/thread_row.cpp"\n')
    for name, sources in PROGRAMS.items():
        compile_program(folder / name, [folder / source for source in sources], [folder], *ALIGNED)
    return folder


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", [1, 2])
def test_kernels_match_a_stable_sort(programs: Path, name: str, seed: int) -> None:
    run(programs / name, seed)
