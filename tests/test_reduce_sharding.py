"""reduce and stats of DTensors: what stays sharded, and what is gathered first."""

import pytest
import torch

import torch_gpuprims as gp

sharded = pytest.importorskip("torch.distributed.tensor")


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
