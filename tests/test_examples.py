"""The training examples at small sizes: each library learns the task, and the table has a line for it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from devices import DEVICES, no_cuda

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
on_cuda = [pytest.mark.gpu, no_cuda]


def accuracies(name: str, *words: str) -> dict[str, float]:
    command = [sys.executable, str(EXAMPLES / name), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: float(line[-1]) for line in lines if line and line[0] in ("torch_gpuprims", "PyG")}


@pytest.mark.parametrize("place", DEVICES)
def test_planetoid(place: str) -> None:
    words = ("--layer", "gcn", "--epochs", "10", "--seeds", "1", "--device", place)
    found = accuracies("train_planetoid.py", *words)
    assert "torch_gpuprims" in found and min(found.values()) > 45


@pytest.mark.parametrize(
    "layer, place",
    [("sage", "cpu"), *(pytest.param(layer, "cuda", marks=on_cuda) for layer in ("sage", "gat"))],
)
def test_products(layer: str, place: str, tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    words = ("--layer", layer, "--small", "--epochs", "6", "--device", place, "--plot", str(plot))
    found = accuracies("train_products.py", *words)
    assert "torch_gpuprims" in found and min(found.values()) > 10  # of 47 classes
    assert plot.exists() == (importlib.util.find_spec("matplotlib") is not None)
