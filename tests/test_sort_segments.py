"""segment_sort: any mix of lengths, wrong offsets."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from topk_reference import bits
from torch.utils import _pytree

from torch_gpuprims import Segments, segment_sort

EIGHTHS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def lengths(kind):
    generator = np.random.default_rng(3)
    if kind == "empty ones between":
        return [0, 0, 5, 0, 300, 0, 0]
    if kind == "one long":
        return [3, 120_000, 40]
    if kind == "long ones between":
        return [0] * 50 + [180_000, 0, 140_000, 9] + [0] * 1000 + [131_072, 1]
    if kind == "many empty":
        return [0] * 100_000 + [7] + [0] * 1000
    return generator.integers(0, {"short": 40, "mixed": 3000, "blocks": 20_000}[kind], 40).tolist()


class TestSegments:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bfloat16], ids=str)
    @pytest.mark.parametrize(
        "kind",
        ["empty ones between", "one long", "long ones between", "many empty", "short", "mixed", "blocks"],
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
        for payload in (torch.ones(9, 2), torch.ones(9, dtype=torch.complex64)):
            assert bool(segment_sort(torch.arange(9), indptr.cpu(), payload).values.isnan().all())
            moved = segment_sort(torch.arange(9, device=device), indptr, payload.to(device)).values
            assert bool(moved.isnan().all())
        for dtype in (torch.bool, torch.uint8, torch.int64, torch.uint16, torch.uint32, torch.uint64):
            payload = torch.ones(9, 3, device=device).to(dtype)
            moved = segment_sort(torch.arange(9, device=device), indptr, payload).values
            assert moved.dtype == dtype and not bits(moved).any()
        for dtype in EIGHTHS:
            eighths = torch.ones(9, device=device).to(dtype)
            moved = segment_sort(torch.arange(9, device=device), indptr, eighths).values
            assert moved.dtype == dtype and bool(moved.float().isnan().all())
        keys = torch.arange(9.0, device=device, requires_grad=True)
        payload = torch.ones(9, device=device, requires_grad=True)
        got = segment_sort(keys, indptr, payload)
        (got.keys.nan_to_num() + got.values.nan_to_num()).sum().backward()
        assert not bool(keys.grad.any()) and not bool(payload.grad.any())

    def test_bad_indptr_raises_where_asked(self, device):
        code = f"""if True:
            import torch, torch_gpuprims as g
            x = torch.zeros(3, device="{device}")
            g.segment_sort(x, torch.tensor([0, 2, 3], device="{device}"))
            try: g.segment_sort(x, torch.tensor([0, 2], device="{device}"))
            except RuntimeError as error: print(error)
            for indptr in ([0], [0, 0, 0]):  # right where there are no keys,
                g.segment_sort(x[:0], torch.tensor(indptr, device="{device}"))
            for indptr in ([0, 1], [1, 0], [0, -1, 0], [0, 5, 0]):  # and wrong
                try: g.segment_sort(x[:0], torch.tensor(indptr, device="{device}"))
                except RuntimeError as error: print(error)"""
        env = {**os.environ, "GPUPRIMS_CHECK": "1"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        words = "segment_sort: indptr must rise from 0 to the number of keys"
        assert done.stdout.splitlines() == [f"{words} (3)", *[f"{words} (0)"] * 4], done.stderr

    def test_vmap(self, device):
        x = torch.randn(4, 20, device=device)
        good = torch.tensor([0, 5, 5, 20], device=device)
        bad = torch.tensor([0, 5, 5, 19], device=device)

        def run(row, indptr):
            ordered, order, _ = segment_sort(row, indptr, index_dtype=torch.int32)
            return ordered.nan_to_num(), order

        for indptr in (good, bad):
            loop = [torch.stack(out) for out in zip(*(run(row, indptr) for row in x), strict=True)]
            assert all(map(torch.equal, torch.vmap(run, in_dims=(0, None))(x, indptr), loop))
            assert bool((loop[1] < 0).all()) == (indptr is bad)
        each = torch.stack([good, bad, torch.tensor([0, 0, 0, 20], device=device), good])
        loop = [torch.stack(out) for out in zip(*map(run, x, each), strict=True)]
        assert all(map(torch.equal, torch.vmap(run)(x, each), loop))

    def test_made_segments(self, device):
        x = torch.randint(0, 9, (500,), device=device)
        indptr = torch.tensor([0, 5, 5, 300, 500], device=device)
        segments = Segments(indptr)
        from_parts = _pytree.tree_unflatten(*_pytree.tree_flatten(segments))  # promises nothing
        for made in (segments, from_parts):
            for values in (None, torch.randn(500, 3, device=device), x.to(torch.uint16)):
                got, want = segment_sort(x, made, values), segment_sort(x, indptr, values)
                assert torch.equal(got.keys, want.keys) and torch.equal(got.indices, want.indices)
                assert (values is None) == (got.values is None)
                assert values is None or torch.equal(got.values, want.values)
        with pytest.raises(RuntimeError) as error:
            segment_sort(x[1:], segments)
        words = "segment_sort: keys must have 500 elements (the end of the segments), got 499"
        assert str(error.value) == words
        with pytest.raises(RuntimeError, match="segment_sort: keys must have 1 dimension, got 2"):
            segment_sort(x[None], segments)

    def test_errors(self, device):
        x, indptr = torch.zeros(3, device=device), torch.tensor([0, 3], device=device)
        for words, call in {
            "values must have the length of keys (3), got shape [2]": lambda: segment_sort(x, indptr, x[:2]),
            "values must have the length of keys (3), got shape []": lambda: segment_sort(x, indptr, x[0]),
            "values must be on the device of keys": lambda: segment_sort(x, indptr, x.to("meta")),
            "values must be a dense tensor, got a sparse layout": (
                lambda: segment_sort(x, indptr, x.to_sparse())
            ),
            "keys must have 1 dimension, got 0": lambda: segment_sort(x[0], indptr, x),
            "keys must be a dense tensor, got a sparse layout": lambda: segment_sort(x.to_sparse(), indptr),
            "indptr must be a dense tensor, got a sparse layout": (
                lambda: segment_sort(x, indptr.to_sparse())
            ),
            "indptr must be on the device of keys": lambda: segment_sort(x, indptr.to("meta")),
            "index_dtype must be int64 or int32": lambda: segment_sort(x, indptr, index_dtype=torch.int16),
        }.items():
            with pytest.raises(RuntimeError) as error:
                call()
            assert str(error.value) == f"segment_sort: {words}"
