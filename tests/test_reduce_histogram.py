"""histogram and bincount against their formula in NumPy, and beside torch.histc and torch.bincount."""

import doctest
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

import torch_gpuprims as gp
from torch_gpuprims import bincount, histogram

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTS = (
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
)  # fmt: skip


def formula(x, bins, low, high, closed=True):
    x = x.double().numpy().ravel()
    if low == high:
        low, high = low - 1, high + 1
    x = x[(x >= low) & ((x <= high) if closed else (x < high))]
    at = ((x - low) * bins / (high - low)).astype(np.int64)
    at -= (x - low) * bins < at * (high - low)  # the quotient was rounded up to an edge, or down below it
    at = np.minimum(at + ((x - low) * bins >= (at + 1) * (high - low)), bins - 1)
    return torch.from_numpy(np.bincount(at, minlength=bins))


def draw(shape, dtype, seed):
    g = np.random.default_rng(seed)
    if dtype.is_floating_point:
        return torch.from_numpy(g.normal(0, 3, shape)).to(dtype)
    high = 2 if dtype == torch.bool else 100
    low = 0 if dtype == torch.bool or torch.iinfo(dtype).min == 0 else -100
    return torch.from_numpy(g.integers(low, high, shape)).to(dtype)


class TestHistogram:
    @given(
        dtype=st.sampled_from(FLOATS + INTS), n=st.integers(0, 3000),
        bins=st.sampled_from([1, 2, 7, 100, 5000]),
        ends=st.sampled_from([(-3, 3), (0, 1), (-1e3, 1e-3), (2, 2.5), (-np.inf, 1)]),
        seed=st.integers(0, 2**31), offset=st.integers(0, 3),
    )  # fmt: skip
    def test_formula(self, device, dtype, n, bins, ends, seed, offset):
        x = draw((n + offset,), dtype, seed)[offset:]
        counts = histogram(draw((n + offset,), dtype, seed).to(device)[offset:], bins, *ends)
        assert counts.dtype == torch.int64 and counts.device.type == device
        if np.isinf(ends[0]):
            assert counts.sum() == 0
        else:
            assert torch.equal(counts.cpu(), formula(x, bins, *ends))

    @pytest.mark.parametrize("bins", [3, 256, 12_000, 40_000, 70_000])
    def test_every_place_of_the_counts(self, device, bins):
        x = torch.rand(1_000_003, generator=torch.Generator().manual_seed(bins))
        for values in (x, torch.full_like(x, 0.25)):
            counts = histogram(values.to(device)[1:], bins, 0, 1)
            assert torch.equal(counts.cpu(), formula(values[1:], bins, 0, 1))

    def test_range_of_the_data(self, device):
        for dtype in FLOATS + INTS:
            x = draw((1000,), dtype, 1)
            values = x.double()
            counts = histogram(x.to(device), 10)
            assert torch.equal(counts.cpu(), formula(x, 10, values.min().item(), values.max().item()))
        assert histogram(torch.full((5,), 3.0, device=device), 2).tolist() == [0, 5]
        bad = torch.tensor([1.0, float("nan"), 2.0], device=device)
        assert histogram(bad, 3).sum() == 0 and histogram(bad, 3, 0, 3).tolist() == [0, 1, 1]
        assert histogram(torch.tensor([0.0, float("inf"), -float("inf")], device=device), 2, -1, 1).sum() == 1

    def test_edges_belong_to_the_upper_bin_and_the_last_to_the_last(self, device):
        x = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0, -1e-30, 1.0000001], device=device)
        assert histogram(x, 4, 0, 1).tolist() == [1, 1, 1, 2]

    @pytest.mark.parametrize("bins", [3, 7, 49, 98, 100, 103, 107, 161, 187, 1000, 4096])
    def test_every_exact_edge(self, device, bins):
        """Also of widths whose inverse is rounded down: torch.histc's and NumPy's counts of integers."""
        for width in (1, 3, 49, 98, 1000):
            x = torch.arange(0, bins * width + 1, 1 if width == 1 else width // 3 or 1, dtype=torch.float64)
            high = float(bins * width)
            counts = histogram(x.to(device), bins, 0, high).cpu()
            assert torch.equal(counts, torch.histc(x, bins, 0, high).long())
            theirs, _ = np.histogram(x.numpy(), bins, (0, high))
            assert torch.equal(counts, torch.from_numpy(theirs.astype(np.int64)))
            assert torch.equal(histogram(x.int().to(device), bins, 0, high).cpu(), counts)

    def test_edges_that_are_rounded(self, device):
        g = np.random.default_rng(0)
        for _ in range(60):
            bins, low, high = int(g.integers(1, 2000)), g.normal(), abs(g.normal()) * 10 + 20
            edges = low + np.arange(bins + 1) * ((high - low) / bins)
            x = np.concatenate([edges, np.nextafter(edges, -np.inf), np.nextafter(edges, np.inf)])
            x = torch.from_numpy(x.clip(low, high))
            counts = histogram(x.to(device), bins, low, high).cpu()
            assert torch.equal(counts, formula(x, bins, low, high))
            theirs = torch.histc(x, bins, low, high).long()  # rounds the quotient: one bin off at an edge
            assert (counts - theirs).cumsum(0).abs().max() <= 3

    def test_one_value_and_tiny_and_huge_ranges(self, device):
        for value in (1e17, -1e17, 2.0**60, 1e300):
            x = torch.full((5,), value, dtype=torch.float64, device=device)
            assert histogram(x, 4).tolist() == [0, 0, 5, 0]
        assert histogram(torch.full((5,), 1e17, device=device), 4).tolist() == [0, 0, 5, 0]
        assert histogram(torch.full((5,), float("inf"), device=device), 4).sum() == 0
        most = torch.full((5,), 1.7976931348623157e308, dtype=torch.float64, device=device)
        assert histogram(most, 4).sum() == 5 and histogram(-most, 4).sum() == 5
        tiny = torch.tensor([0, 5e-324], dtype=torch.float64, device=device)
        assert histogram(tiny, 2).tolist() == [1, 1]
        few = torch.arange(50, dtype=torch.float64, device=device) * 5e-324
        assert histogram(few, 49).tolist() == [1] * 48 + [2]
        wide = torch.tensor([0, 0.25, 0.5, 1], dtype=torch.float64, device=device) * 1.6e308
        assert histogram(wide, 4).tolist() == [1, 1, 1, 1]
        assert histogram(wide, 3).tolist() == [2, 1, 1]

    def test_explain(self):
        x = torch.empty(10**8, device="meta")
        assert "histogram float32 100000000, 100 bins -> counted in 8 copies" in gp.explain(
            "histogram", x, 100
        )
        assert "counted in global memory" in gp.explain("bincount", x.int(), 100_000)

    def test_beside_torch(self):
        x = torch.randint(0, 64, (100_000,)).float()
        assert torch.equal(histogram(x, 64, 0, 64), torch.histc(x, 64, 0, 64).long())

    def test_counts_beyond_float32(self, device):
        x = torch.zeros(2**24 + 3, dtype=torch.uint8, device=device)
        assert histogram(x, 2, 0, 2).tolist() == [2**24 + 3, 0]

    def test_requires_grad_is_left_behind(self, device):
        x = torch.rand(10, device=device, requires_grad=True)
        assert not histogram(x, 4, 0, 1).requires_grad


class TestBincount:
    @given(
        dtype=st.sampled_from(INTS), n=st.integers(0, 2000),
        bins=st.sampled_from([1, 2, 50, 99, 100, 30_000]),
        seed=st.integers(0, 2**31),
    )  # fmt: skip
    def test_counts(self, device, dtype, n, bins, seed):
        x = draw((n,), dtype, seed)
        inside = x.long()[(x.long() >= 0) & (x.long() < bins)]
        assert torch.equal(bincount(x.to(device), bins).cpu(), torch.bincount(inside, minlength=bins))

    def test_errors(self, device):
        with pytest.raises(RuntimeError, match="bincount: x must be of an integer dtype, got float32"):
            bincount(torch.rand(3, device=device), 4)
        with pytest.raises(RuntimeError, match="bincount: num_bins must be from 1 to 2147483648, got -1"):
            bincount(torch.zeros(3, dtype=torch.int64, device=device), -1)
        with pytest.raises(RuntimeError, match="bincount: x must be a dense tensor, got a sparse layout"):
            bincount(torch.ones(3, dtype=torch.int64, device=device).to_sparse(), 4)
        x = torch.rand(3, device=device)
        for words, call in (
            ("bins must be from 1 to 2147483648, got 0", lambda: histogram(x, 0)),
            ("max must not be below min", lambda: histogram(x, 4, 2, 1)),
            ("dtype complex64 is not supported", lambda: histogram(x + 0j, 4)),  # without a range as well
            ("input must be a dense tensor, got a sparse layout", lambda: histogram(x.to_sparse(), 4)),
        ):
            with pytest.raises(RuntimeError, match=f"^histogram: {words}"):
                call()
        with pytest.raises(RuntimeError, match="input must be a dense tensor, got a sparse layout"):
            histogram(torch.rand(3, device=device).to_sparse(), 4, 0, 1)

    def test_compile_once(self, device):
        counter = CompileCounterWithBackend("aot_eager")
        torch._dynamo.reset()
        compiled = torch.compile(bincount, fullgraph=True, dynamic=True, backend=counter)
        for n in (5, 17, 40):
            x = torch.arange(n, device=device) % 7
            assert torch.equal(compiled(x, 8), bincount(x, 8))
        assert counter.frame_count == 1
        for how in ((), (0, 5)):  # the contract table's test takes gradients, which there are none of
            counter = CompileCounterWithBackend("aot_eager")
            compiled = torch.compile(histogram, fullgraph=True, dynamic=True, backend=counter)
            for n in (5, 17, 40):
                x = torch.arange(n, device=device) / 7
                assert torch.equal(compiled(x, 8, *how), histogram(x, 8, *how))
            assert counter.frame_count == 1

    def test_threads_do_not_matter(self):
        x = torch.randint(0, 1000, (1_000_000,))
        threads, results = torch.get_num_threads(), []
        try:
            for count in (1, 2, 7):
                torch.set_num_threads(count)
                results.append(bincount(x, 1000))
        finally:
            torch.set_num_threads(threads)
        assert all(torch.equal(r, torch.bincount(x, minlength=1000)) for r in results)


def test_docstrings():
    module = sys.modules[histogram.__module__]
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
