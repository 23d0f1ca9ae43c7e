"""reduce and stats of DTensors: what stays sharded, and what is gathered first."""

import pytest
import torch
from torch import distributed

import torch_gpuprims as gp

sharded = pytest.importorskip("torch.distributed.tensor")
if not distributed.is_available():
    pytest.skip("PyTorch without torch.distributed", allow_module_level=True)


@pytest.fixture
def mesh(tmp_path):
    """One of two processes: collectives are PyTorch's fake ones, which bring nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        yield distributed.device_mesh.init_device_mesh("cpu", (2,))
    finally:
        distributed.destroy_process_group()


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
