"""reduce and stats of DTensors: what stays sharded, and what is gathered first."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_gpuprims as gp

sharded = pytest.importorskip("torch.distributed.tensor")

ROOT = Path(__file__).parents[1]


@pytest.fixture
def mesh(two_ranks):
    return two_ranks[1]


def test_kept_dimensions_stay_sharded(mesh):
    x = torch.randn(4, 6, 5)
    for d, dim, keepdim, out in (
        (0, 1, False, 0), (2, 1, False, 1), (2, (0, 1), False, 0), (2, (0, 1), True, 2), (1, (2, 0), True, 1),
    ):  # fmt: skip
        part = x.narrow(d, 0, (x.shape[d] + 1) // 2)  # what rank 0 holds
        place = [sharded.Shard(d)]
        placed = sharded.DTensor.from_local(part, mesh, place, shape=x.shape, stride=x.stride())
        for op in ("sum", "max", "var", "logsumexp"):
            got = gp.reduce(placed, op, dim, keepdim)
            assert got.placements == (sharded.Shard(out),)
            assert got.shape == gp.reduce(x, op, dim, keepdim).shape
            assert torch.equal(got.to_local(), gp.reduce(part, op, dim, keepdim))
        found = gp.stats(placed, dim, keepdim)
        for got, want in zip(found[:5], gp.stats(part, dim, keepdim)[:5], strict=True):
            assert got.placements == (sharded.Shard(out),) and torch.equal(got.to_local(), want)


def test_a_first_call_that_is_traced_and_torch_ops():
    """In processes of their own: rules are registered once."""
    head = """
import torch
{}
from torch.testing._internal.distributed.fake_pg import FakeStore
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = torch.distributed.init_device_mesh("cpu", (2,))
x = torch.randn(2, 6)
placed = dtensor.DTensor.from_local(x, mesh, [dtensor.Shard(0)])
"""
    package, sharded = "import torch_gpuprims as gp", "import torch.distributed.tensor as dtensor"
    traced = """
got = torch.compile(lambda t: gp.reduce(t, "max", 1), fullgraph=True, backend="eager")(placed)
assert torch.equal(got.to_local(), x.amax(1))
"""
    raw = "assert torch.equal(torch.ops.gpuprims.reduce(placed, 3, [1]).to_local(), x.amax(1))"
    for order, call in (((package, sharded), traced), ((sharded, package), raw)):
        text = head.format("\n".join(order)) + call
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-3000:]


def test_reduced_dimensions_are_gathered(mesh):
    x = torch.randn(4, 6)
    placed = sharded.DTensor.from_local(x[:2], mesh, [sharded.Shard(0)])
    for dim in (0, None):
        got = gp.reduce(placed, "sum", dim)
        assert got.placements == (sharded.Replicate(),)
        assert got.shape == gp.reduce(x, "sum", dim).shape
    copies = sharded.DTensor.from_local(x, mesh, [sharded.Replicate()])
    assert torch.equal(gp.reduce(copies, "sum", 0).to_local(), gp.reduce(x, "sum", 0))
    found = gp.stats(copies, 0, indices=True)
    assert torch.equal(found.argmax.to_local(), gp.stats(x, 0, indices=True).argmax)
