"""The sorts against NumPy's lexsort, bit for bit, and what their contract says beyond the table."""

import doctest
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

import torch_gpuprims.nn
from torch_gpuprims import argsort, sort, sort_by_key, sort_keys


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

    @pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("n", [1500, 100_000, 300_000])
    def test_sorted_two_byte_rows(self, device, dtype, n):
        """And nearly sorted ones: what threads see of their shares must not hide a fall between them."""
        x = random_input((n,), dtype, np.random.default_rng(2), True)
        for descending in (False, True):
            row = sort(x, descending=descending).values
            for at in (None, n // 2, n // 3, n - 1):
                y = row.clone()
                if at:
                    y[at - 1], y[at] = row[-1], row[0]
                check(y.to(device), descending=descending, index_dtype=torch.int32 if at else torch.int64)

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


def several_blocks(shape: tuple[int, ...], kind: str) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(shape[-1])
    x = torch.randn(shape, generator=generator, device="cuda")
    chance = torch.rand(shape, generator=generator, device="cuda")
    if kind == "zeros":  # of both signs, where a cut may be
        x = torch.where(chance < 2e-4, x.sign() * 0.0, x)
    elif kind == "nans":
        x = torch.where(chance < 2e-4, x.sign() * torch.nan, x)
    elif kind == "outlier":
        x[..., -1], x[..., 5] = 3e38, -torch.inf
    elif kind == "few":
        x = (x * 2).round()
    elif kind == "sorted":
        x = x.sort(-1).values
    elif kind == "edges":  # keys begin and end abruptly, within a cell of the sample's
        x = chance + 1.37
    elif kind == "uniform":
        x = chance
    elif kind == "band":  # too narrow for any map, and too few for a sample
        x = torch.where(chance < 2e-3, 1.5, x)
    return x


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize(
    "shape", [(40, 40_001), (12, 131_072), (7, 229_999), (6, 1_048_576), (1, 6_100_003)], ids=str
)
@pytest.mark.parametrize("kind", ["normal", "zeros", "nans", "outlier", "few", "sorted", "edges"])
def test_rows_of_several_blocks(shape, kind):
    """Rows in parts and by codes, and what these leave to others: cuts must not part equal keys."""
    x = several_blocks(shape, kind)
    if kind == "nans":
        return check(x[:1, :300_000].contiguous() if shape[0] == 1 else x)
    for y, descending in ((x, False), (x.view(torch.int32), True)):
        mine = sort(y, descending=descending, index_dtype=torch.int32 if descending else torch.int64)
        theirs = torch.sort(y, stable=True, descending=descending)
        assert torch.equal(mine.indices.long(), theirs.indices)
        assert torch.equal(bits(mine.values), bits(y.gather(-1, theirs.indices)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("codes", ["-1", "10", "13", "16"])
@pytest.mark.parametrize("n", [50_003, 1_048_576, 12_000_017, 100_000_003])
@pytest.mark.parametrize(
    "kind", ["normal", "zeros", "nans", "outlier", "few", "sorted", "edges", "uniform", "band"]
)
def test_one_row_in_buckets(codes, n, kind, monkeypatch):
    """As the passes by digits sort it, bit for bit, wherever the row lies."""
    if n > 2e7 and codes not in ("-1", "16"):
        pytest.skip("buckets that no window holds")
    x = several_blocks((n,), kind)
    for y, descending in ((x[3:], False), (x.view(torch.int32), True)):
        results = []
        for way in ("0", codes):
            monkeypatch.setenv("GPUPRIMS_SORT_SPREAD", way)
            for _ in range(1 if way == "0" or n > 2e7 else 3):
                sorted_ = sort(
                    y, descending=descending, index_dtype=torch.int32 if descending else torch.int64
                )
                results.append((*sorted_, argsort(y, descending=descending), sort_keys(y, -1, descending)))
        for other in results[1:]:
            for mine, theirs in zip(other, results[0], strict=True):
                width = BITS[mine.element_size()]
                assert torch.equal(mine.view(width), theirs.view(width))


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


def test_sharded(two_ranks):
    distributed, mesh = two_ranks
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
