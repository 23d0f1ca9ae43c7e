"""The kernels that look at offsets, on the host: bad ones cost no more than good ones."""

from pathlib import Path

from emulate import HERE, compile_program, on_the_host, run

pytestmark = on_the_host


def test_bad_offsets_cost_no_more_than_good_ones(tmp_path: Path) -> None:
    run(compile_program(tmp_path / "prepare", [HERE / "emulator/prepare.cpp"], [HERE / "emulator/half"]))
