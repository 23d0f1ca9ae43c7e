"""Kernels of the sorts on the host, a fiber a thread, under AddressSanitizer: what CI sees without a GPU."""

from pathlib import Path

import pytest
from emulate import HERE, ROOT, compile_program, on_the_host, run

pytestmark = on_the_host

KERNELS = ("warp_row", "block_row", "sweep", "coded", "parts", "spread", "segments")
#: The emulator has a dynamic_memory of its own.
EXTERN = "extern __shared__ __align__(16) unsigned char dynamic_memory[];"


def build(folder: Path, main: str, kernels: tuple[str, ...]) -> Path:
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
    return compile_program(folder / "emulated", [source, *sources], [folder])


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("emulated"), "sort.cpp", KERNELS)


@pytest.fixture(scope="session")
def warp_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("emulated"), "sort_warp.cpp", ("warp_row",))


@pytest.mark.parametrize("seed", [1, 2])
def test_kernels_match_a_stable_sort(program: Path, seed: int) -> None:
    run(program, seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_long_rows_by_buckets(program: Path, seed: int) -> None:
    run(program, seed, "spread")


@pytest.mark.parametrize("seed", [1, 2])
def test_short_rows_bit_for_bit(warp_program: Path, seed: int) -> None:
    run(warp_program, seed)
