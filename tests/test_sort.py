"""The sorts against NumPy's lexsort, bit for bit, and what their contract says beyond the table."""

import doctest
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from topk_reference import BITS, DISTRIBUTIONS, DTYPES, bits, random_input, reference, restride
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree

import torch_gpuprims.nn
from torch_gpuprims import Segments, argsort, segment_sort, sort, sort_by_key, sort_keys, sort_out_of_core


def keys_reference(x, dim, descending):
    """By (number, positive NaN, negative NaN), then sign and magnitude: every bit pattern has its place."""
    if not x.dim():
        return x.cpu()
    rows = x.cpu().movedim(dim, -1).contiguous()
    raw = rows.view(BITS[x.element_size()]).numpy()
    if x.dtype.is_floating_point:
        magnitude = raw & np.iinfo(raw.dtype).max if raw.dtype != np.uint8 else raw
        order = np.where(raw < 0, ~magnitude, magnitude)
        kind = np.where(rows.isnan().numpy(), np.where(raw < 0, 2, 1), 0)
        at = np.lexsort((order, kind), axis=-1)
    else:
        at = np.argsort(rows.numpy(), axis=-1, kind="stable")
    at = torch.from_numpy((at[..., ::-1] if descending else at).copy())
    return bits(rows).gather(-1, at).view(x.dtype).movedim(-1, dim)


def check(x, dim=-1, descending=False, index_dtype=torch.int64):
    before = bits(x).clone()
    n = x.shape[dim] if x.dim() else 1
    values, indices = reference(x, n, dim, descending, None)
    result = sort(x, dim, descending, index_dtype=index_dtype)
    assert isinstance(result, torch_gpuprims.Sort)
    assert result.values.is_contiguous() and result.indices.is_contiguous()
    assert result.values.dtype == x.dtype and result.indices.dtype == index_dtype
    assert torch.equal(result.indices.cpu().long(), indices)
    assert torch.equal(bits(result.values), bits(values))
    assert torch.equal(argsort(x, dim, descending, index_dtype=index_dtype), result.indices)
    keys = sort_keys(x, dim, descending)
    assert keys.is_contiguous() and torch.equal(bits(keys), bits(keys_reference(x, dim, descending)))
    assert torch.equal(bits(x), before)


@st.composite
def problems(draw):
    shape = draw(
        st.one_of(st.lists(st.sampled_from([1, 2, 3, 7, 40]), max_size=3), st.sampled_from([[2, 700], [130]]))
    )
    return {
        "shape": shape,
        "dim": draw(st.integers(-max(len(shape), 1), max(len(shape), 1) - 1)),
        "dtype": draw(st.sampled_from(DTYPES)),
        "descending": draw(st.booleans()),
        "ties": draw(st.booleans()),
        "layout": draw(st.sampled_from(["offset", "transposed", "stepped", "expanded"])),
        "index_dtype": draw(st.sampled_from([torch.int64, torch.int32])),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


class TestValues:
    @given(problem=problems())
    def test_any_input(self, device, problem):
        generator = np.random.default_rng(problem["seed"])
        x = random_input(problem["shape"], problem["dtype"], generator, problem["ties"])
        x = restride(x.to(device), problem["layout"])
        check(x, problem["dim"], problem["descending"], problem["index_dtype"])

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("shape", [(1, 150_000), (3, 9000), (300, 70)], ids=str)
    def test_long_rows_of_every_dtype(self, device, dtype, shape):
        generator = np.random.default_rng(0)
        for ties in (False, True):
            x = random_input(shape, dtype, generator, ties).to(device)
            check(x)
            check(x, descending=True, index_dtype=torch.int32)

    @pytest.mark.parametrize("kind", DISTRIBUTIONS)
    @pytest.mark.parametrize("n", [33, 5000, 300_000])
    def test_distributions(self, device, kind, n):
        x = DISTRIBUTIONS[kind]((2, n)).to(device)
        check(x)
        check(x, descending=True)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float64], ids=str)
    @pytest.mark.parametrize("bits_of", [1, 8, 9, 20, 31])
    def test_digits_that_are_constant(self, device, dtype, bits_of):
        for low in (0, 11):
            x = torch.randint(0, 1 << bits_of, (70_000,), device=device)
            x = (x << low) % (1 << 31) - (1 << 20) * (low > 0)
            check(x.to(dtype))

    @pytest.mark.parametrize("n", [20_000, 70_000, 1_500_000])
    def test_8_byte_keys_by_their_upper_bits(self, device, n):
        """Rows sorted by a part of their bits first: enough of them, too few, and counts that mislead."""
        g = torch.Generator().manual_seed(n)
        some = torch.randint(-(2**62), 2**62, (n,), generator=g)
        alike = torch.randint(0, 128, (n,), generator=g) * 0x0101010100000000 + (some & 0xFFFFFFFF)
        kinds = {
            "random": some,
            "alike": alike,  # the digits' counts promise that 32 bits set keys apart; 7 do
            "runs": (some >> 40 << 40) + torch.randint(0, 3, (n,), generator=g),
            "times": 1_700_000_000_000_000_000 + torch.randint(0, 10**15, (n,), generator=g),
            "narrow, shifted": torch.randint(0, 1 << 20, (n,), generator=g) * 2**33 + 5,
            "few in the high bits": torch.randint(0, 1 << 30, (n,), generator=g) + (some % 1000 == 0) * 2**50,
            "float64": torch.randn(n, generator=g, dtype=torch.float64),
        }
        for x in kinds.values():
            check(x.to(device))
            check(x.view(2, n // 2).to(device), descending=True)

    @pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 64, 65, 128, 129, 1000, 4096, 4097, 8192, 8193, 40_000])
    def test_row_lengths(self, device, n):
        for rows in (1, 5):
            check(torch.randn(rows, n, device=device))
            check(torch.randint(-(2**62), 2**62, (rows, n), device=device), descending=True)
            check(torch.randint(0, 9, (rows, n), device=device, dtype=torch.uint8))

    @pytest.mark.parametrize("n", [16, 17, 60, 128, 250, 500, 1000, 1024, 1500, 5000, 16_000, 30_000])
    @pytest.mark.parametrize("kind", ["narrow", "outliers", "mostly equal", "clusters", "around zero", "few"])
    def test_crowded_rows(self, device, kind, n):
        """Data of which the first 22 bits that vary do not tell keys apart, in runs short and long, and that
        overfill buckets."""
        generator = torch.Generator().manual_seed(n)
        any_bits = torch.randint(-(2**63), 2**63 - 1, (37, n), generator=generator)
        rare = torch.rand(37, n, generator=generator) < 0.01
        x = {
            "narrow": (0x3F << 56) | (any_bits & 0xFFFFFFFF),
            "outliers": torch.where(rare, any_bits, (0x3F << 56) | (any_bits & 0xFF)),
            "mostly equal": torch.where(rare, any_bits, 7),
            "clusters": ((any_bits % 3) << 61) | (any_bits >> 20 & 0x3F),
            "around zero": any_bits % 2001 - 1000,
            "few": (any_bits % 5) * 0x123456789ABCDEF,
        }[kind].to(device)
        check(x)
        check(x.view(torch.float64), descending=True, index_dtype=torch.int32)
        check((x >> 32).int() ^ x.int(), descending=True)
        check(((x >> 32).int() ^ x.int()).view(torch.float32))

    def test_threads_do_not_matter(self):
        x = torch.randint(0, 1000, (3, 300_000))
        expected = torch.sort(x, stable=True).indices
        threads = torch.get_num_threads()
        try:
            for count in (1, 2, 7):
                torch.set_num_threads(count)
                assert torch.equal(sort(x).indices, expected)
        finally:
            torch.set_num_threads(threads)


class TestInPlace:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("shape", [(150_000,), (2, 40_000), (3, 9000), (300, 70), (1,), ()], ids=str)
    def test_as_sort_keys(self, device, dtype, shape):
        for ties in (False, True):
            for descending in (False, True):
                x = random_input(shape, dtype, np.random.default_rng(1), ties).to(device)
                expected, version = sort_keys(x, -1, descending), x._version
                assert sort_keys(x, descending=descending, inplace=True) is not None
                assert torch.equal(bits(x), bits(expected)) and x._version > version

    @pytest.mark.parametrize("kind", DISTRIBUTIONS)
    def test_distributions(self, device, kind):
        x = DISTRIBUTIONS[kind]((2, 100_000)).to(device)
        expected = sort_keys(x)
        result = sort_keys(x, inplace=True)
        assert result.data_ptr() == x.data_ptr() and torch.equal(bits(x), bits(expected))

    @pytest.mark.parametrize("bits_of", [1, 8, 9, 17, 25, 33, 62])
    def test_any_number_of_passes(self, device, bits_of):
        x = torch.randint(0, 1 << bits_of, (50_000,), device=device)
        for keys in (x, x.to(torch.int32), x << 1):
            expected = torch.sort(keys).values
            assert torch.equal(sort_keys(keys, inplace=True), expected)

    def test_other_layouts(self, device):
        assert sort_keys(torch.ones(2, 0, device=device), inplace=True).shape == (2, 0)
        x = torch.randn(50, 30, device=device)
        expected = x.sort(0).values
        assert sort_keys(x, 0, inplace=True) is x and torch.equal(x, expected)
        x = torch.randn(50, 30, device=device)
        expected = x.sort(0).values
        assert sort_keys(x.mT, 1, inplace=True).data_ptr() == x.data_ptr() and torch.equal(x, expected)

    def test_errors(self, device):
        x = torch.randn(5, device=device, requires_grad=True)
        with pytest.raises(RuntimeError, match="sort_keys: inplace needs an input that requires no gradient"):
            sort_keys(x, inplace=True)
        with pytest.raises(RuntimeError, match="sort_keys: dtype complex64 is not supported"):
            sort_keys(torch.zeros(3, dtype=torch.complex64, device=device), inplace=True)
        with pytest.raises(RuntimeError, match="sort_keys: dim must be between -1 and 0, got 1"):
            sort_keys(x.detach(), 1, inplace=True)
        y = torch.tensor([3.0, 1.0, 2.0], device=device)
        with pytest.raises(RuntimeError, match="sort_keys: dim must be between -1 and 0, got -2"):
            sort_keys(y, -2, inplace=True)
        assert y.tolist() == [3, 1, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("way", ["GPUPRIMS_SORT_EXACT=1", "GPUPRIMS_SORT_BUCKETS=0"])
def test_other_ways(way):
    """The ranks that are the way out where optimistic ones turn out wrong; rows in a block digit by digit."""
    code = """if True:
        import torch, torch_gpuprims as g
        torch.manual_seed(0)
        for shape in ((300_000,), (3, 100_003), (20, 30_000), (50, 5000), (200, 1025)):
            for dtype in (torch.float32, torch.int64, torch.uint8, torch.float16):
                x = (torch.randn(shape, device="cuda") * 50).to(dtype)
                for y in (x, x.view(torch.int64) * 2**40 if dtype is torch.int64 else x * 0):
                    mine, theirs = g.sort(y), torch.sort(y, stable=True)
                    assert all(map(torch.equal, mine, theirs))
                    assert torch.equal(g.sort_keys(y), theirs.values)
                    assert torch.equal(g.argsort(y), theirs.indices)
        print("exact")"""
    env = {**os.environ, way.split("=")[0]: way[-1]}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "exact", done.stderr


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
        for payload in (torch.ones(9, 2), torch.ones(9, dtype=torch.complex64)):
            assert bool(segment_sort(torch.arange(9), indptr.cpu(), payload).values.isnan().all())
            moved = segment_sort(torch.arange(9, device=device), indptr, payload.to(device)).values
            assert bool(moved.isnan().all())
        for dtype in (torch.bool, torch.uint8, torch.int64, torch.uint16, torch.uint32, torch.uint64):
            payload = torch.ones(9, 3, device=device).to(dtype)
            moved = segment_sort(torch.arange(9, device=device), indptr, payload).values
            assert moved.dtype == dtype and not bits(moved).any()
        eighths = torch.ones(9, device=device).to(torch.float8_e4m3fn)
        moved = segment_sort(torch.arange(9, device=device), indptr, eighths).values
        assert moved.dtype == eighths.dtype and bool(moved.float().isnan().all())
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
            except RuntimeError as error: print(error)"""
        env = {**os.environ, "GPUPRIMS_CHECK": "1"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert done.stdout.strip() == "segment_sort: indptr must rise from 0 to the number of keys (3)"

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


class TestOutOfCore:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize("ties", [False, True])
    def test_an_eighth_of_the_array(self, device, dtype, descending, ties):
        n = 50_000
        keys = random_input((n,), dtype, np.random.default_rng(5), ties)
        before = bits(keys).clone()
        payload = torch.arange(n)
        budget = n * (dtype.itemsize + 8) // 8
        got, order = sort_out_of_core(keys, payload, budget=budget, descending=descending, device=device)
        values, indices = reference(keys, n, 0, descending, None)
        assert torch.equal(order, indices)
        assert torch.equal(bits(got), bits(values))
        assert torch.equal(bits(keys), before)

    def test_a_last_chunk_of_any_length(self, device):
        budget = 400_000
        chunk = budget // (2 * (2 * 4 + 8 + 8 + 1))
        for more in (1, 2, 7, chunk // 20, chunk // 2, chunk - 1):
            keys = torch.randn(4 * chunk + more)
            got = sort_out_of_core(keys, budget=budget, device=device)[0]
            assert torch.equal(got, keys.sort().values)

    def test_constant_and_tiny(self, device):
        for n in (0, 1, 5, 1000):
            keys = torch.ones(n)
            got, order = sort_out_of_core(keys, torch.arange(n), budget=100_000, device=device)
            assert torch.equal(got, keys) and torch.equal(order, torch.arange(n))

    def test_errors(self, device):
        keys = torch.zeros(100_000)
        with pytest.raises(
            RuntimeError, match=r"budget must be at least \d+ bytes for 100000 elements, got 9"
        ) as e:
            sort_out_of_core(keys, budget=9, device=device)
        need = int(str(e.value).split("at least ")[1].split()[0])
        assert torch.equal(sort_out_of_core(keys, budget=need, device=device)[0], keys)
        for words, call in {
            "keys must have 1 dimension, got 2": lambda: sort_out_of_core(keys[None], budget=1 << 20),
            "payload 0 must have the length of keys (100000), got shape [99999]": (
                lambda: sort_out_of_core(keys, keys[1:], budget=1 << 20)
            ),
            "dtype complex64 is not supported": lambda: sort_out_of_core(keys.to(torch.complex64), budget=9),
            "keys must be a dense tensor, got a sparse layout": (
                lambda: sort_out_of_core(keys.to_sparse(), budget=1 << 20)
            ),
            "payload 1 must be a dense tensor, got a sparse layout": (
                lambda: sort_out_of_core(keys, keys, keys.to_sparse(), budget=1 << 20)
            ),
            "keys and payloads must be on the CPU, got meta": (
                lambda: sort_out_of_core(keys.to("meta"), budget=1 << 20)
            ),
            "device must be a CUDA device or the CPU, got meta": (
                lambda: sort_out_of_core(keys, budget=1 << 20, device="meta")
            ),
        }.items():
            with pytest.raises(RuntimeError) as error:
                call()
            assert str(error.value) == f"sort_out_of_core: {words}"

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
    def test_device_memory_stays_within_the_budget(self, dtype):
        n = 20_000_000
        keys = torch.randint(-(2**31), 2**31 - 1, (n,)).to(dtype)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before, budget = torch.cuda.memory_allocated(), n * (dtype.itemsize + 8) // 8
        got, order = sort_out_of_core(keys, torch.arange(n), budget=budget, device="cuda")
        assert torch.cuda.max_memory_allocated() - before <= budget
        assert torch.equal(got, keys[order]) and bool((got[1:] >= got[:-1]).all())
        assert bool((order[1:] > order[:-1])[got[1:] == got[:-1]].all())


class TestWrappers:
    def test_errors(self, device):
        x = torch.zeros(3, 4, device=device)
        for call in (sort, argsort, sort_keys):
            name = call.__name__
            with pytest.raises(
                RuntimeError, match=f"^{name}: input must be a dense tensor, got a sparse layout"
            ):
                call(x.to_sparse())
            with pytest.raises(RuntimeError, match=f"^{name}: dim must be between -2 and 1, got 2"):
                call(x, 2)
            with pytest.raises(RuntimeError, match=f"^{name}: dim must be between -1 and 0, got 1"):
                call(x[0, 0], 1)
        with pytest.raises(RuntimeError, match=r"^sort: index_dtype must be int64 or int32"):
            sort(x, index_dtype=torch.int16)
        huge = torch.zeros(1, device=device).expand(2**31)
        for call in (sort, argsort):
            words = f"^{call.__name__}: index_dtype int32 holds no index of a dimension of 2147483648"
            with pytest.raises(RuntimeError, match=words):
                call(huge, index_dtype=torch.int32)
        assert torch.equal(sort(x, 0, False, False).indices, sort(x, 0).indices)  # stable=False is
        with pytest.raises(TypeError, match="copy_"):
            sort(x, out=(x, x))

    def test_gradients(self, device):
        x = torch.randperm(24, device=device).double().view(4, 6).requires_grad_()
        for call in (lambda t: sort(t, 0).values, lambda t: sort_keys(t, -1, True)):
            assert torch.autograd.gradcheck(call, x)
            assert torch.autograd.gradgradcheck(call, x)
        result = sort(x)
        assert result.values.requires_grad and not result.indices.requires_grad
        assert not argsort(x).requires_grad
        payload = torch.randn(24, 2, device=device, dtype=torch.float64, requires_grad=True)
        keys = x.detach().view(-1)
        assert torch.autograd.gradcheck(lambda p: sort_by_key(keys, p)[1], payload)
        parameter = torch.nn.Parameter(torch.randn(5, device=device))
        sort(parameter).values.sum().backward()
        assert parameter.grad.tolist() == [1.0] * 5

    def test_fake_and_module(self, device):
        with FakeTensorMode():
            x = torch.empty(3, 4, device=device)
            assert sort(x).indices.shape == (3, 4) and argsort(x).dtype == torch.int64
        module = torch_gpuprims.nn.Sort(dim=0, descending=True, index_dtype=torch.int32)
        x = torch.randn(4, 3, device=device)
        assert torch.equal(module(x).values, sort(x, 0, True).values)
        assert repr(module) == "Sort(dim=0, descending=True, index_dtype=torch.int32)"

    def test_docstrings(self):
        for module in ("sort", "sort_segment", "sort_out_of_core", "nn.sort"):
            name = f"torch_gpuprims.{module}"
            assert doctest.testmod(sys.modules[name], extraglobs={"torch": torch}).failed == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
class TestMemory:
    """Workspace: at most a second buffer of keys and 32-bit indices, and 5 %."""

    @staticmethod
    def peak(run, kept):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before - kept

    def test_pairs(self):
        n = 400_000_000 if torch.cuda.mem_get_info()[0] > 40 << 30 else 20_000_000
        x = torch.randn(n, device="cuda")
        assert self.peak(lambda: sort(x), n * 12) <= n * 8 * 1.05 + (4 << 20)

    def test_keys(self):
        n = 50_000_000
        x = torch.randint(-(2**62), 2**62, (n,), device="cuda")
        assert self.peak(lambda: sort_keys(x), n * 8) <= n * 8 * 1.05 + (4 << 20)
        assert self.peak(lambda: sort(x), n * 16) <= n * 12 * 1.05 + (4 << 20)

    def test_in_place(self):
        n = 50_000_000
        x = torch.randint(-(2**62), 2**62, (n,), device="cuda")
        assert self.peak(lambda: sort_keys(x, inplace=True), 0) <= n * 8 * 1.05 + (4 << 20)
        rows = torch.randn(1000, 10_000, device="cuda")
        assert self.peak(lambda: sort_keys(rows, inplace=True), 0) == 0


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32], ids=str)
def test_rows_beyond_2_31(dtype):
    n = 2**31 + 1000
    if torch.cuda.mem_get_info()[0] < n * (3 * dtype.itemsize + 26):
        pytest.skip("too little device memory")
    x = torch.arange(n, device="cuda").mul_(40_503).bitwise_and_(255).to(dtype)
    count = torch.bincount(x[: 1 << 20].long(), minlength=256) * 0
    for part in x.split(1 << 28):
        count += torch.bincount(part, minlength=256)
    values, indices = sort(x)
    expected = torch.repeat_interleave(torch.arange(256, device="cuda", dtype=dtype), count)
    assert torch.equal(values, expected)
    assert torch.equal(sort_keys(x), expected)
    del expected
    starts = torch.cat([count.new_zeros(1), count.cumsum(0)]).tolist()
    for begin, end in list(itertools.pairwise(starts))[::51]:
        part = indices[begin:end]
        assert bool((part[1:] > part[:-1]).all())
        assert bool((x[part] == values[begin]).all())


def test_sharded():
    distributed = pytest.importorskip("torch.distributed.tensor")
    if not torch.distributed.is_available():
        pytest.skip("PyTorch without torch.distributed")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (2,))
        x = torch.randn(4, 6)
        by_rows = distributed.DTensor.from_local(x[:2], mesh, [distributed.Shard(0)])
        values, indices = sort(by_rows)
        assert values.placements == indices.placements == (distributed.Shard(0),)
        assert torch.equal(values.to_local(), sort(x[:2]).values)
        for call in (argsort, sort_keys):
            got = call(by_rows, 1, True)
            assert got.placements == (distributed.Shard(0),)
            assert torch.equal(got.to_local(), call(x[:2], 1, True))
        by_columns = distributed.DTensor.from_local(x[:, :3], mesh, [distributed.Shard(1)])
        assert sort(by_columns).values.placements == (distributed.Replicate(),)
    finally:
        torch.distributed.destroy_process_group()
