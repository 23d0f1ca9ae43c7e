"""segment_sort: any mix of lengths, wrong offsets."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from torch_gpuprims import segment_sort


def lengths(kind):
    generator = np.random.default_rng(3)
    if kind == "empty ones between":
        return [0, 0, 5, 0, 300, 0, 0]
    if kind == "one long":
        return [3, 120_000, 40]
    if kind == "many empty":
        return [0] * 100_000 + [7] + [0] * 1000
    return generator.integers(0, {"short": 40, "mixed": 3000, "blocks": 20_000}[kind], 40).tolist()


class TestSegments:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bfloat16], ids=str)
    @pytest.mark.parametrize(
        "kind", ["empty ones between", "one long", "many empty", "short", "mixed", "blocks"]
    )
    def test_any_lengths(self, device, dtype, kind):
        count = torch.tensor(lengths(kind))
        indptr = torch.cat([count.new_zeros(1), count.cumsum(0)]).to(device)
        n = int(indptr[-1])
        keys = torch.randint(0, 90, (n,)).to(dtype).to(device)
        segment = torch.repeat_interleave(torch.arange(len(count)), count)
        for descending in (False, True):
            rank = keys.cpu().double() * (-1 if descending else 1)
            order = torch.from_numpy(np.lexsort((rank.numpy(), segment.numpy())))
            got = segment_sort(keys, indptr, keys * 2, descending=descending)
            assert torch.equal(got.indices.cpu(), order)
            assert torch.equal(got.keys.cpu(), keys.cpu()[order])
            assert torch.equal(got.values, got.keys * 2)
            narrow = segment_sort(keys, indptr.int(), descending=descending, index_dtype=torch.int32)
            assert narrow.values is None and torch.equal(narrow.indices.long(), got.indices)
            assert torch.equal(narrow.keys, got.keys)

    @pytest.mark.parametrize("indptr", [[0, 3, 2, 9], [1, 9], [0, 8], [0, 10], [0, -5, 9], [9], [0]])
    def test_bad_indptr(self, device, indptr):
        indptr = torch.tensor(indptr, device=device)
        got = segment_sort(torch.arange(9.0, device=device), indptr)
        assert bool(got.keys.isnan().all()) and bool((got.indices == -1).all())
        got = segment_sort(torch.arange(9, device=device), indptr, torch.arange(9, device=device))
        assert not bool(got.keys.any()) and bool((got.indices == -1).all())

    def test_bad_indptr_raises_where_asked(self, device):
        code = f"""if True:
            import torch, torch_gpuprims as g
            x = torch.zeros(3, device="{device}")
            g.segment_sort(x, torch.tensor([0, 2, 3], device="{device}"))
            try: g.segment_sort(x, torch.tensor([0, 2], device="{device}"))
            except RuntimeError as error: print(error)"""
        env = {**os.environ, "GPUPRIMS_CHECK": "1"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert done.stdout.strip() == "segment_sort: indptr must rise from 0 to the number of keys (3)"

    def test_vmap(self, device):
        x = torch.randn(4, 20, device=device)
        indptr = torch.tensor([0, 5, 5, 20], device=device)

        def run(row):
            return tuple(segment_sort(row, indptr)[:2])

        loop = [torch.stack(out) for out in zip(*map(run, x), strict=True)]
        assert all(map(torch.equal, torch.vmap(run)(x), loop))

    def test_values_must_fit(self, device):
        with pytest.raises(RuntimeError, match=r"values must have the length of keys \(3\), got shape \[2\]"):
            x = torch.zeros(3, device=device)
            segment_sort(x, torch.tensor([0, 3], device=device), x[:2])
