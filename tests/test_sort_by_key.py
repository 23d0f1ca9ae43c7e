"""sort_by_key: payloads of any kind, some of the keys' bits."""

import numpy as np
import pytest
import torch
from topk_reference import DTYPES, bits, random_input

from torch_gpuprims import sort, sort_by_key


class TestByKey:
    @pytest.mark.parametrize("n", [0, 1, 50, 30_000])
    def test_payloads(self, device, n):
        keys = torch.randint(-9, 9, (n,), device=device, dtype=torch.int16)
        payloads = (
            torch.randn(n, 3, device=device),
            torch.arange(n, device=device),
            torch.rand(n, 2, 2, device=device) > 0.5,
            torch.randn(n, device=device, dtype=torch.complex64),
            torch.arange(n, device=device).to(torch.uint32),
            torch.arange(n, device=device).to(torch.uint64),
        )
        for descending in (False, True):
            order = torch.sort(keys, stable=True, descending=descending).indices
            got = sort_by_key(keys, *payloads, descending=descending)
            for mine, t in zip(got, (keys, *payloads), strict=True):
                assert torch.equal(mine.cpu(), t.cpu()[order.cpu()])

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_low_bits_of_every_dtype(self, device, dtype):
        keys = random_input((5000,), dtype, np.random.default_rng(2), False).to(device)
        got, order = sort_by_key(keys, torch.arange(5000, device=device), end_bit=1)
        assert torch.equal(bits(got), bits(keys)[order.cpu()])
        whole, order = sort_by_key(keys, torch.arange(5000, device=device), end_bit=8 * dtype.itemsize)
        assert torch.equal(order, sort(keys).indices) and torch.equal(bits(whole), bits(sort(keys).values))

    @pytest.mark.parametrize("n", [40, 3000, 200_000])
    @pytest.mark.parametrize("begin, end", [(0, 8), (4, 20), (7, 8), (5, 5), (24, 32), (0, 32)])
    def test_some_bits(self, device, n, begin, end):
        keys = torch.randint(-(2**31), 2**31, (n,), device=device, dtype=torch.int32)
        part = ((keys.long() + 2**31) >> begin) % (1 << (end - begin))
        for descending in (False, True):
            order = torch.sort(part, stable=True, descending=descending).indices
            got = sort_by_key(
                keys, torch.arange(n, device=device), begin_bit=begin, end_bit=end, descending=descending
            )
            assert torch.equal(got[0], keys[order]) and torch.equal(got[1], order)

    def test_errors(self, device):
        keys = torch.zeros(4, device=device, dtype=torch.int32)
        for words, call in {
            "sort_by_key: keys must have 1 dimension, got 2": lambda: sort_by_key(keys[None]),
            r"sort_by_key: payload 1 must have the length of keys \(4\), got shape \[3, 2\]": (
                lambda: sort_by_key(keys, keys, torch.zeros(3, 2, device=device))
            ),
            "sort_by_key: begin_bit and end_bit must satisfy 0 <= begin_bit <= end_bit <= 32, got 3 and 40": (
                lambda: sort_by_key(keys, begin_bit=3, end_bit=40)
            ),
            "sort_by_key: begin_bit and end_bit must satisfy 0 <= begin_bit <= end_bit <= 32, got 3 and 2": (
                lambda: sort_by_key(keys, begin_bit=3, end_bit=2)
            ),
            "sort_by_key: begin_bit and end_bit must satisfy .* <= 32, got -1 and 32": (
                lambda: sort_by_key(keys, begin_bit=-1)
            ),
            "sort_by_key: begin_bit and end_bit must satisfy .* <= 32, got 0 and -1": (
                lambda: sort_by_key(keys, end_bit=-1)
            ),
            "sort_by_key: payload 0 must be a dense tensor, got a sparse layout": (
                lambda: sort_by_key(keys, keys.to_sparse())
            ),
            "sort_by_key: payload 1 must be on the device of keys": (
                lambda: sort_by_key(keys, keys, keys.to("meta"))
            ),
            "sort_by_key: dtype complex64 is not supported": lambda: sort_by_key(keys.to(torch.complex64)),
            "sort_by_key: keys must be a dense tensor": lambda: sort_by_key(keys.to_sparse()),
        }.items():
            with pytest.raises(RuntimeError, match=words):
                call()
