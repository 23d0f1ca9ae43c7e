"""The three applications of the reordering engine at full size, and reordering on the GPU against the CPU.

python -m bench.reorder_apps --json reorder_apps.json            # all of it
python -m bench.reorder_apps --only md --small                   # to try it out
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from bench import record

sys.path.insert(0, str(record.ROOT / "examples"))
import reorder_cg
import reorder_md
import reorder_sp
from reordering import milliseconds, table
from reordering_md import Lists
from reordering_sp import Formula

from torch_gpuprims import pack_rows, redirect

ARGUMENTS = {"cg": [], "md": [], "sp": ["--solve", "5000"]}
SMALL = {
    "cg": ["--size", "0.002", "--most", "100"],
    "md": ["--side", "10", "--steps", "12"],
    "sp": ["--clauses", "2100", "--solve", "300"],
}
MODULES = {"cg": reorder_cg, "md": reorder_md, "sp": reorder_sp}


def both_devices(small: bool, device: str) -> list[dict[str, Any]]:
    """Each application's reordering on the device and on the cores of the CPU, into memory that is there."""
    made = {}
    for place in dict.fromkeys((device, "cpu")):
        a = reorder_cg.make("poisson3d", 0.002 if small else 1.0, place, torch.float64, 0)
        assert a is not None
        packed = pack_rows(a.values, a.indptr, layout="sliced")
        made["CG: values of poisson3d", place] = (packed, a.values)
        count = 2000 if small else 1_000_000
        formula = Formula.random(int(count / 4.2), count, place, 0)
        surveys = torch.rand(3 * count, device=place)
        listed = pack_rows(formula.edges, formula.indptr, layout="sliced", window=reorder_sp.WINDOW, fill=-1)
        made["SP: surveys", place] = (redirect(listed.values).pack(surveys), surveys)
    # The list of the device serves both: building it with torch ops on the CPU would take minutes.
    state = reorder_md.lattice(10 if small else 60, 0.8, device, 0)
    lists = Lists.build(state.position, state.box, 2.9, reorder_md.kernels)
    listed = pack_rows(lists.indices, lists.indptr, layout="sliced", fill=-1)
    for place in dict.fromkeys((device, "cpu")):
        position = state.position.to(place)
        block = redirect(listed.values.to(place)).pack(position)
        made["MD: neighbours' positions", place] = (block, position)
    rows = []
    for name in dict.fromkeys(name for name, _ in made):
        ms = {}
        for place in (device, "cpu"):
            block, source = made[name, place]
            ms[place] = milliseconds(lambda b=block, s=source: b.refresh(s), place, 9)
        moved = made[name, device][0].values.nbytes
        rows.append(
            {
                "reordering": name, "packed_MB": moved / 1e6, "device_ms": ms[device], "cpu_ms": ms["cpu"],
                "threads": torch.get_num_threads(), "times": ms["cpu"] / ms[device],
                "written_GB/s": moved / ms[device] / 1e6,
            }
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", choices=(*MODULES, "cpu"))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    option = parser.parse_args()
    results: dict[str, Any] = {"torch": torch.__version__}
    if option.device != "cpu":
        results["device"] = torch.cuda.get_device_name()
    failed: list[str] = []
    for name, module in MODULES.items():
        if option.only in (None, name):
            words = (SMALL if option.small else ARGUMENTS)[name]
            try:
                results[name] = module.main(["--device", option.device, *words])
            except SystemExit as error:  # a wrong result: the others are still run
                failed.append(str(error))
    if option.only in (None, "cpu"):
        results["cpu"] = both_devices(option.small, option.device)
        table("reordering on the device and on the CPU", results["cpu"])
    if option.json:
        option.json.write_text(json.dumps(results, indent=1))
    if failed:
        raise SystemExit("; ".join(failed))


if __name__ == "__main__":
    main()
