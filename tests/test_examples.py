"""The training examples, small, on the CPU: each library learns the task and has a line in the table."""

import importlib.util
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def accuracies(name: str, *words: str) -> dict[str, float]:
    command = [sys.executable, str(EXAMPLES / name), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: float(line[-1]) for line in lines if line and line[0] in ("torch_gpuprims", "PyG")}


def test_planetoid() -> None:
    words = ("--layer", "gcn", "--epochs", "10", "--seeds", "1", "--device", "cpu")
    found = accuracies("train_planetoid.py", *words)
    assert "torch_gpuprims" in found and min(found.values()) > 45


def test_products(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    words = ("--layer", "sage", "--small", "--epochs", "6", "--device", "cpu", "--plot", str(plot))
    found = accuracies("train_products.py", *words)
    assert "torch_gpuprims" in found and min(found.values()) > 10  # of 47 classes
    assert plot.exists() == (importlib.util.find_spec("matplotlib") is not None)
