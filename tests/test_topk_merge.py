"""merge_topk against a sort by (value, index), and what it is for: parts of a whole."""

import doctest
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from topk_reference import DTYPES, bits, fill_value, random_input

from torch_gpuprims import merge_topk, topk


def expected(x, ids, k, largest):
    """Rows [rows, m]: NumPy's lexsort by (missing, NaN, value, index, position)."""
    x, ids = x.cpu(), ids.cpu()
    values = torch.empty(len(x), k, dtype=x.dtype)
    values[:] = fill_value(x.dtype, largest)
    indices = torch.full((len(x), k), -1, dtype=ids.dtype)
    numbers = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    for r, (row, at) in enumerate(zip(numbers, ids.numpy(), strict=True)):
        nan = np.isnan(row) if x.dtype.is_floating_point else np.zeros(len(row), bool)
        _, rank = np.unique(np.where(nan, row.dtype.type(0), row), return_inverse=True)
        rank = np.where(nan, len(row), rank)
        order = np.lexsort((np.arange(len(row)), at, -rank if largest else rank, at < 0))[:k]
        order = torch.from_numpy(order[at[order] >= 0])
        bits(values[r])[: len(order)] = bits(x[r])[order]
        indices[r, : len(order)] = ids[r][order]
    return values, indices


def check(x, ids, k, largest=True):
    result = merge_topk(x, ids, k, largest=largest)
    values, indices = expected(x, ids, k, largest)
    assert result.indices.dtype == ids.dtype
    assert torch.equal(result.indices.cpu(), indices)
    assert torch.equal(bits(result.values), bits(values))


def random_ids(generator, rows, m, dtype=torch.int64):
    """Few distinct indices, so that candidates agree in value and index; a fifth are missing."""
    ids = generator.integers(0, max(2 * m, 1), (rows, m)) * (1 << 33 if dtype == torch.int64 else 1)
    ids[generator.random((rows, m)) < 0.2] = -1
    return torch.from_numpy(ids).to(dtype)


class TestValues:
    @given(
        rows=st.integers(0, 4), m=st.sampled_from([0, 1, 5, 32, 64, 65, 200, 513]),
        dtype=st.sampled_from(DTYPES), k=st.sampled_from([0, 1, 7, 64, 600]), largest=st.booleans(),
        ties=st.booleans(), index_dtype=st.sampled_from([torch.int64, torch.int32]),
        seed=st.integers(0, 2**32 - 1),
    )  # fmt: skip
    def test_any_candidates(self, device, rows, m, dtype, k, largest, ties, index_dtype, seed):
        generator = np.random.default_rng(seed)
        x = random_input((rows * m + 1,), dtype, generator, ties)[1:].view(rows, m).to(device)
        check(x, random_ids(generator, rows, m, index_dtype).to(device), k, largest)

    @pytest.mark.parametrize("m", [2000, 4096, 4097, 20_000])
    def test_many_candidates(self, device, m):
        generator = np.random.default_rng(m)
        for dtype in (torch.float32, torch.int64, torch.uint8):
            x = random_input((3, m), dtype, generator, True).to(device)
            ids = random_ids(generator, 3, m).to(device)
            for k in (1, 100, m, m + 5):
                check(x, ids, k, k != 100)

    def test_other_dims_and_strides(self, device):
        x = torch.randn(4, 6, 5, device=device)
        ids = torch.randperm(120, device=device).view(4, 6, 5)
        for dim in (0, 1, -2):
            got = merge_topk(x, ids, 3, dim=dim)
            best = merge_topk(x.movedim(dim, -1).contiguous(), ids.movedim(dim, -1).contiguous(), 3)
            assert torch.equal(got.values, best.values.movedim(-1, dim))
            assert torch.equal(got.indices, best.indices.movedim(-1, dim))

    @pytest.mark.parametrize("parts", [1, 3, 8])
    def test_parts_of_a_whole(self, device, parts):
        """Shards in any order give the topk of the whole, ties and all."""
        x = torch.randint(0, 40, (5, 840), device=device).float()
        shards, size = [], 840 // parts
        for start in torch.randperm(parts).mul(size).tolist():
            values, indices = topk(x[:, start : start + size], 50)
            shards.append((values, indices + start))
        merged = merge_topk(*(torch.cat(column, -1) for column in zip(*shards, strict=True)), 50)
        whole = topk(x, 50)
        assert torch.equal(merged.values, whole.values) and torch.equal(merged.indices, whole.indices)


def test_gradient(device):
    x = torch.tensor([[7.0, 5.0, 7.0, 1.0]], device=device, requires_grad=True)
    ids = torch.tensor([[12, 3, 4, -1]], device=device)
    values, indices = merge_topk(x, ids, 4)
    assert indices.tolist() == [[4, 12, 3, -1]] and not indices.requires_grad
    values.backward(torch.tensor([[1.0, 2.0, 3.0, 4.0]], device=device))
    assert x.grad.tolist() == [[2, 3, 1, 0]]


def test_errors(device):
    x, ids = torch.zeros(3, 4, device=device), torch.zeros(3, 4, dtype=torch.int64, device=device)
    with pytest.raises(RuntimeError, match="merge_topk: dim must be between -2 and 1, got 2"):
        merge_topk(x, ids, 1, dim=2)
    with pytest.raises(RuntimeError, match="merge_topk: indices must have the shape of values"):
        merge_topk(x, ids[0], 1, dim=0)
    with pytest.raises(RuntimeError, match="merge_topk: values must be a dense tensor, got a sparse layout"):
        merge_topk(x.to_sparse(), ids, 1)
    with pytest.raises(RuntimeError, match="merge_topk: indices must be a dense tensor, got a sparse layout"):
        merge_topk(x, ids.to_sparse(), 1)
    with pytest.raises(RuntimeError, match="merge_topk: indices must be on the device of values"):
        merge_topk(x, ids.to("meta"), 1)
    with pytest.raises(
        torch.OutOfMemoryError, match="merge_topk: out of memory allocating 3 \\* 4611686018427387904 slots"
    ):
        merge_topk(x, ids, 2**62)


def test_sharded_rows(two_ranks):
    distributed, mesh = two_ranks
    x, ids = torch.randn(4, 6), torch.randperm(24).view(4, 6)
    place = [distributed.Shard(0)]
    parts = [distributed.DTensor.from_local(t[:2], mesh, place) for t in (x, ids)]
    values, indices = merge_topk(*parts, 3)
    assert values.placements == indices.placements == (distributed.Shard(0),)
    assert torch.equal(indices.to_local(), merge_topk(x[:2], ids[:2], 3).indices)


def test_docstring():
    assert doctest.testmod(sys.modules[merge_topk.__module__], extraglobs={"torch": torch}).failed == 0
