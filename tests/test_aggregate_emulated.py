"""Row kernels of aggregation on the host, under AddressSanitizer: what CI sees without a GPU."""

from pathlib import Path

import pytest
from emulate import HERE, ROOT, compile_program, on_the_host, run

pytestmark = on_the_host

KERNELS = (
    "affine", "combine", "extreme", "extreme_grad", "name_edges", "narrow", "prepare", "sum",
    "weighted_extreme", "weighted_sum",
)  # fmt: skip


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emulated")
    sources = []
    for name, text in {
        **{name: (ROOT / f"csrc/aggregate/{name}.cu").read_text() for name in KERNELS},
        "main": f'#include "{HERE}/emulator/aggregate.cpp"\n',
    }.items():
        sources.append(folder / f"{name}.cpp")
        sources[-1].write_text('#include "common/launch.h"\n#include "half/loads.h"\n' + text)
    return compile_program(folder / "emulated_aggregate", sources, [HERE / "emulator/half"], apart=True)


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_are_exact_and_their_bits_depend_on_nothing_else(program: Path, seed: int) -> None:
    run(program, seed)
