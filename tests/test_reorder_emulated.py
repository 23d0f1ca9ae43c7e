"""The reordering kernels on the host, under AddressSanitizer: what CI sees without a GPU."""

from pathlib import Path

import pytest
from emulate import HERE, ROOT, compile_program, on_the_host, run

pytestmark = on_the_host
KERNELS = ("check", "copy", "csr", "spmv")
#: The emulator has a dynamic_memory of its own.
EXTERN = "extern __shared__ __align__(16) unsigned char dynamic_memory[];"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emulated_reorder")
    texts = {name: (ROOT / f"csrc/reorder/{name}.cu").read_text() for name in KERNELS}
    assert EXTERN in texts["copy"]
    texts["copy"] = texts["copy"].replace(EXTERN, "")
    texts["main"] = f'#include "{HERE}/emulator/reorder.cpp"\n'
    sources = []
    for name, text in texts.items():
        sources.append(folder / f"{name}.cpp")
        sources[-1].write_text('#include "common/launch.h"\n#include "half/loads.h"\n' + text)
    target, half = folder / "emulated_reorder", HERE / "emulator/half"
    return compile_program(target, sources, [half], "-O2", "-ffp-contract=off", apart=True)


@pytest.mark.parametrize("seed", [1, 2])
def test_slots_and_sums_bit_for_bit(program: Path, seed: int) -> None:
    run(program, seed)
