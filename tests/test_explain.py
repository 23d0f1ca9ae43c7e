"""explain and GPUPRIMS_LOG: one line a call, from the plan, with or without a GPU."""

import os
import subprocess
import sys

import pytest
import torch

import torch_gpuprims
from torch_gpuprims import Graph, explain


@pytest.mark.parametrize(
    "shape, k, words",
    [
        ((16384, 256), 8, "warp_row, 16 lanes a row"),
        ((1024, 32768), 64, "block_row"),
        ((1, 1_000_000), 20, "split_row"),
        ((1, 100_000), 50_000, "sort"),
        ((5, 0), 0, "nothing to launch"),
    ],
)
def test_topk_names_the_algorithm(shape: tuple[int, int], k: int, words: str) -> None:
    line = explain("topk", torch.empty(shape, device="meta"), k)
    assert line.startswith(f"topk float32 [{shape[0]}, {shape[1]}] k={k} -> ") and words in line


def test_topk_states_workspace_within_its_bound() -> None:
    for n, k in ((10**6, 20), (10**8, 2048), (10**8, 4096)):
        line = explain("topk", torch.empty(1, n, device="meta"), k)
        workspace = float(line.split("workspace ")[1].split(" MB")[0]) * 1e6
        assert workspace <= 0.05 * 4 * n + (16 << 20), line


@pytest.mark.parametrize(
    "shape, dtype, words",
    [
        ((1000, 64), torch.float32, "warp_row, 8 lanes a row"),
        ((1000, 1000), torch.float32, "block_row, 32 elements a thread"),
        ((100_000_000,), torch.float32, "at most 4 passes, key and index in 64 bits"),
        ((100_000_000,), torch.int64, "at most 8 passes, 32-bit index beside the key"),
        ((5, 0), torch.uint8, "nothing to launch"),
    ],
)
def test_sort_names_the_algorithm(shape: tuple[int, ...], dtype: torch.dtype, words: str) -> None:
    line = explain("sort", torch.empty(shape, dtype=dtype, device="meta"))
    assert words in line and "keys alone" not in line
    if shape[0] == 100_000_000:
        workspace = float(line.split("workspace ")[1].split(" MB")[0]) * 1e6
        assert workspace <= 1.05 * shape[0] * (8 if dtype == torch.float32 else 12)
        assert "keys alone" in explain("sort_keys", torch.empty(shape, dtype=dtype, device="meta"))


def test_aggregate_says_what_is_cut() -> None:
    hub = torch.stack([torch.arange(3000) % 7, torch.zeros(3000, dtype=torch.long)])
    line = explain("neighbor_aggregate", torch.empty(7, 64), Graph.from_coo(hub, num_nodes=7))
    assert "16-byte loads" in line and "rows from 1024 edges cut every 512" in line
    few = Graph.from_coo(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    assert "no row cut" in explain("neighbor_aggregate", torch.empty(2, 3), few)


def test_unknown_op() -> None:
    with pytest.raises(ValueError, match="no op named 'bogus'; there are argsort, neighbor_aggregate, sort"):
        explain("bogus", torch.empty(3))


def test_log_and_forced_algorithm_by_environment() -> None:
    code = "import torch, torch_gpuprims as g; g.topk(torch.arange(5000.0), 2)"
    env = {**os.environ, "GPUPRIMS_LOG": "1", "GPUPRIMS_TOPK_ALGO": "sort"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "topk float32 [1, 5000] k=2 -> sort" in done.stderr
    assert not torch_gpuprims._explain.enabled
