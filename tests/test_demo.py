"""The command line: info, demo, bench."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_gpuprims import __main__ as cli
from torch_gpuprims import _compare, _demo, _info, _screen

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def report():
    """One full demo with a single seed, without the timing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_compare, "median_times", lambda case, device: (10.0, 20.0))
        return {"libraries": _info.libraries(), **_demo.run(1, CPU)}


def test_demo_reaches_its_goal(report):
    assert report["ok"]
    assert report["training"]["mean"] >= _demo.GOAL
    assert report["surest"]["right"] >= 95
    assert {op["op"] for op in report["ops"]} == {"topk", "neighbor_aggregate"}
    assert all(op["same_values"] and op["same_indices"] is not False for op in report["ops"])


def test_training_repeats_bit_for_bit(report, monkeypatch):
    monkeypatch.setattr(_demo, "EPOCHS", 3)
    data = _demo.Cora(CPU)
    graph = _demo.Graph.from_csr(data.indptr, data.indices, num_src=data.nodes)
    first, second = (_demo.train(data, graph, 7, lambda: None) for _ in range(2))
    assert torch.equal(first, second)


def test_cora_is_whole_and_normalised():
    data = _demo.Cora(CPU)
    assert (data.nodes, len(data.indices), data.words) == (2708, 10556, 1433)
    assert [len(data.train), len(data.test)] == [140, 1000]
    sums = data.features(0.0).to_dense().sum(1)
    assert torch.allclose(sums, torch.ones(2708))


@pytest.mark.parametrize("rich", [True, False])
def test_demo_screen(report, rich, monkeypatch, capsys):
    if rich and not _screen.RICH:
        pytest.skip("rich is not installed")
    monkeypatch.setattr(_screen, "RICH", rich)
    monkeypatch.setattr(_demo, "run", lambda seeds, device: report)
    assert cli.main(["demo"]) == 0
    screen = capsys.readouterr().out
    assert f"{report['training']['mean']:.2f} % of 1,000 test papers" in screen
    assert "16384x256 k=8" in screen
    assert "2.0x" in screen
    assert len(screen.splitlines()) < 30
    assert max(map(len, screen.splitlines())) <= 110


@pytest.mark.parametrize("broken", ["reached", "ranking", "op"])
def test_demo_fails_aloud(report, broken, monkeypatch, capsys):
    monkeypatch.setattr(_demo, "EPOCHS", 1)
    monkeypatch.setattr(_demo, "GOAL", 101.0 if broken == "reached" else 0.0)
    monkeypatch.setattr(_demo, "op_cases", lambda data, device: [_compare.topk_case(2, 9, 3, device)])
    monkeypatch.setattr(_compare, "median_times", lambda case, device: (1.0, 1.0))
    if broken == "op":
        monkeypatch.setattr(_compare, "compare", lambda case: _compare.Outcome(False, True, 1.0))
    if broken == "ranking":
        real = _demo.topk
        monkeypatch.setattr(_demo, "topk", lambda x, k, mask: real(-x, k, mask=mask))
    assert cli.main(["demo", "--seeds", "1", "--device", "cpu"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_seeds_must_be_positive(capsys):
    with pytest.raises(SystemExit):
        cli.main(["demo", "--seeds", "0"])
    assert "--seeds must be at least 1, got 0" in capsys.readouterr().err


def test_info_as_json():
    done = subprocess.run(
        [sys.executable, "-m", "torch_gpuprims", "info", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["versions"]["torch"] == torch.__version__
    assert found["libraries"][0]["loaded"]
    assert len(found["libraries"][0]["sha256"]) == 64
    assert found["ok"] and all(check["ok"] for check in found["checks"])
    ops = {"topk", "topk_gate", "segment_topk", "sort", "reduce", "neighbor_aggregate", "spmv", "spmv_csr"}
    assert {check["op"] for check in found["checks"]} == ops


def test_info_survives_a_broken_op(monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise RuntimeError("topk: no kernel here")

    monkeypatch.setattr(_compare, "topk", broken)
    assert cli.main(["info"]) == 1
    screen = capsys.readouterr().out
    assert "error: RuntimeError: topk: no kernel here" in screen
    assert "neighbor_aggregate 500 nodes 4k edges F=32 on cpu: as PyTorch" in screen
    assert "FAILED" in screen


@pytest.mark.parametrize(
    "archs, capability, answer",
    [
        ("9.0", (9, 0), "native"),
        ("8.0;9.0", (8, 6), "native"),  # a cubin serves later minor versions of its major one
        ("9.0", (8, 6), "no"),
        ("9.0", (10, 0), "no"),
        ("8.0;9.0+PTX", (10, 0), "from PTX"),
        ("9.0a", (9, 0), "native"),
        ("10.0a", (10, 3), "no"),
        ("12.0+PTX", (9, 0), "no"),
        ("", (9, 0), "no"),
    ],
)
def test_architectures_served(archs, capability, answer):
    assert _info.serves(archs, capability) == answer


def test_bench_without_a_checkout(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "torch_gpuprims" / "__main__.py"))
    assert cli.main(["bench"]) == 2
    assert "run `python -m bench` in a source checkout" in capsys.readouterr().err


def test_bench_hands_over(monkeypatch):
    if not (Path(cli.__file__).parents[1] / "bench" / "__main__.py").exists():
        pytest.skip("not a source checkout")
    assert cli.main(["bench", "topk", "--help"]) == 0


def test_example_of_the_readme():
    readme = Path(__file__).parents[1] / "README.md"
    example = readme.read_text().split("```python\n")[1].split("```")[0]
    names: dict = {}
    exec(example, names)
    assert names["out"].shape == (3, 16)
    assert names["scores"].shape == (3, 7)
    assert names["logits"].grad.count_nonzero() == 64 * 50
