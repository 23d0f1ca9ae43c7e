"""Speed of each case over torch's, with the target, from the GPU record: python -m bench.plot topk out.svg.

Needs matplotlib, which make does not install.
"""

import sys
from typing import Any

from bench import record


def bars(op: str) -> list[tuple[str, float, float | None]]:
    """(case, torch us / our us, torch us / target us) of every case that torch was timed on."""
    data = record.load(op)
    if data is None or not data.get("cases"):
        raise SystemExit(f"no cases of {op} in {record.RESULTS}: make gpu-check OP={op} PART=bench on a GPU")
    rows: list[tuple[str, float, float | None]] = []
    for case in data["cases"]:
        if case["torch_us"]:
            target: float | None = case.get("target_us")
            rows.append((case["name"], case["torch_us"] / case["us"], target and case["torch_us"] / target))
    return rows


def draw(op: str, file: str) -> None:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise SystemExit("bench.plot needs matplotlib: pip install matplotlib") from None
    rows = bars(op)[::-1]
    figure, axes = plt.subplots(figsize=(8, 1 + 0.3 * len(rows)), layout="constrained")
    axes.barh([row[0] for row in rows], [row[1] for row in rows], color="#76a832", label="torch_gpuprims")
    for index, (_, _, target) in enumerate(rows):
        if target:
            axes.plot([target, target], [index - 0.4, index + 0.4], color="black", lw=1.5)
    axes.plot([], [], color="black", label="target")
    axes.axvline(1, color="gray", lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.set_xlabel("times faster than torch")
    info: dict[str, Any] = record.load(op) or {}
    axes.set_title(f"{op} on {info['device']}, PyTorch {info['torch']}, {info['date']}", fontsize=10)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(file)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("python -m bench.plot <op> <file.svg>")
    draw(sys.argv[1], sys.argv[2])
