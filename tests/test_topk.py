"""topk against an independent reference, bit for bit, and everything its contract says beyond the table."""

import doctest
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from topk_reference import DISTRIBUTIONS, DTYPES, FLOATS, bits, by_sort, random_input, reference, restride
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import torch_gpuprims
from torch_gpuprims import topk
from torch_gpuprims.nn import TopK


def check(x, k, dim=-1, largest=True, mask=None, index_dtype=torch.int64):
    before = bits(x).clone()
    result = topk(x, k, dim, largest, mask=mask, index_dtype=index_dtype)
    values, indices = reference(x, k, dim, largest, mask)
    assert isinstance(result, torch_gpuprims.TopK)
    assert result.values.is_contiguous() and result.indices.is_contiguous()
    assert result.values.dtype == x.dtype and result.indices.dtype == index_dtype
    assert torch.equal(result.indices.cpu().long(), indices)
    assert torch.equal(bits(result.values), bits(values))
    assert torch.equal(bits(x), before)


@st.composite
def problems(draw):
    shape = draw(st.one_of(st.lists(st.sampled_from([1, 2, 3, 7, 40]), max_size=3), st.just([2, 700])))
    dim = draw(st.integers(-max(len(shape), 1), max(len(shape), 1) - 1))
    n = shape[dim] if shape else 1
    k = draw(st.sampled_from([0, 1, n, min(5, n), n // 2]) if shape else st.just(1))
    masks = [None, shape, shape[1:], [1] * len(shape), shape[:-1] + [1] * bool(shape)]
    return {
        "shape": shape,
        "k": k,
        "dim": dim,
        "dtype": draw(st.sampled_from(DTYPES)),
        "largest": draw(st.booleans()),
        "ties": draw(st.booleans()),
        "layout": draw(st.sampled_from(["offset", "transposed", "stepped", "expanded"])),
        "mask": draw(st.sampled_from(masks)),
        "mask_of": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "index_dtype": draw(st.sampled_from([torch.int64, torch.int32])),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


class TestValues:
    @given(problem=problems())
    def test_any_input(self, device, problem):
        generator = np.random.default_rng(problem["seed"])
        x = random_input(problem["shape"], problem["dtype"], generator, problem["ties"])
        x, mask = restride(x.to(device), problem["layout"]), None
        if problem["mask"] is not None:
            kept = generator.random(problem["mask"]) < problem["mask_of"]
            mask = restride(torch.as_tensor(kept, device=device), problem["layout"])
        check(x, problem["k"], problem["dim"], problem["largest"], mask, problem["index_dtype"])

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("shape", [(1, 150_000), (3, 9000), (300, 70)])
    def test_long_rows_of_every_dtype(self, device, dtype, shape):
        generator = np.random.default_rng(0)
        for ties in (False, True):
            x = random_input(shape, dtype, generator, ties).to(device)
            mask = torch.from_numpy(generator.random(shape[1]) < 0.5).to(device)
            for k in {1, 20, shape[1] // 3}:
                check(x, k)
                check(x, k, largest=False, mask=mask)
            check(x.T.contiguous(), 10, 0)

    def test_sorted_or_not_is_the_same(self, device):
        x = torch.randn(50, 300, device=device)
        for k in (1, 8, 200):
            assert all(map(torch.equal, topk(x, k, sorted=False), topk(x, k)))

    def test_row_without_elements(self, device):
        mask = torch.tensor([[True] * 3, [False] * 3], device=device)
        values, indices = topk(torch.ones(2, 3, device=device), 2, mask=mask)
        assert values.tolist() == [[1, 1], [-torch.inf] * 2]
        assert indices.tolist() == [[0, 1], [-1, -1]]

    def test_zero_dim(self, device):
        for k in (0, 1):  # as torch.topk, which has a slot either way
            assert [t.item() for t in topk(torch.tensor(3.0, device=device), k)] == [3.0, 0]

    def test_threads_do_not_matter(self):
        x = torch.randint(0, 1000, (3, 200_000))
        expected = torch.sort(x, descending=True, stable=True).indices[:, :5000]
        threads = torch.get_num_threads()
        try:
            for count in (1, 2, 7):
                torch.set_num_threads(count)
                assert torch.equal(topk(x, 5000).indices, expected)
        finally:
            torch.set_num_threads(threads)


BAD = {
    "topk: k must be between 0 and 4 (the size of dimension 1), got 5": lambda x: (x, 5),
    "topk: k must be between 0 and 3 (the size of dimension 0), got -1": lambda x: (x, -1, 0),
    "topk: k must be between 0 and 1 (the size of dimension 0), got 2": lambda x: (x[0, 0], 2),
    "topk: dim must be between -2 and 1, got 2": lambda x: (x, 1, 2),
    "topk: dim must be between -1 and 0, got -2": lambda x: (x[0, 0], 1, -2),
    "topk: dtype complex64 is not supported": lambda x: (x.to(torch.complex64), 1),
    "topk: mask must be bool, got float32": lambda x: (x, 1, -1, True, True, x),
    "topk: mask of shape [3] does not broadcast to input of shape [3, 4]": lambda x: (
        (x, 1, -1, True, True, x[:, 0] > 0)
    ),
    "topk: mask of shape [1, 3, 4] does not broadcast to input of shape [3, 4]": lambda x: (
        (x, 1, -1, True, True, x[None] > 0)
    ),
    "topk: index_dtype must be int64 or int32": lambda x: (x, 1, -1, True, True, None, 16),
}


def raised(call, *args, **kwargs):
    with pytest.raises(RuntimeError) as error:
        call(*args, **kwargs)
    return str(error.value)


class TestErrors:
    @pytest.mark.parametrize("words", BAD)
    def test_same_words_everywhere(self, device, words):
        args = BAD[words](torch.zeros(3, 4, device=device))
        assert raised(torch.ops.gpuprims.topk, *args) == words
        with FakeTensorMode() as mode:
            fake = tree_map_only(torch.Tensor, mode.from_tensor, args)
            assert raised(torch.ops.gpuprims.topk, *fake) == words

    def test_wrapper(self, device):
        x = torch.zeros(3, 4, device=device)
        assert raised(topk, x, 1, index_dtype=torch.int16) == "topk: index_dtype must be int64 or int32"
        assert raised(topk, x, 5) == next(iter(BAD))
        assert raised(topk, x.clone().requires_grad_(), 5) == next(iter(BAD))
        assert raised(topk, x.to_sparse(), 1) == "topk: input must be a dense tensor, got a sparse layout"
        for kept in ((x == 0).to_sparse(), (x == 0).to_sparse_csr()):
            sparse = "topk: mask must be a dense tensor, got a sparse layout"
            assert raised(topk, x, 1, mask=kept) == sparse
            assert raised(topk, x.clone().requires_grad_(), 1, mask=kept) == sparse
        on_meta = torch.ones(4, dtype=torch.bool, device="meta")
        assert raised(topk, x, 1, mask=on_meta) == "topk: mask must be on the device of input"
        huge = torch.zeros(1, device=device).expand(2**31)
        words = "topk: index_dtype int32 holds no index of a dimension of 2147483648"
        assert raised(topk, huge, 1, index_dtype=torch.int32) == words
        with pytest.raises(TypeError, match="copy_"):
            topk(x, 1, out=(x, x))

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
    def test_devices(self):
        x, mask = torch.zeros(3, 4, device="cuda"), torch.ones(4, dtype=torch.bool)
        assert raised(topk, x, 1, mask=mask) == "topk: mask must be on the device of input"


class TestTransforms:
    def test_compile_once(self, device):
        module = torch_gpuprims.nn.TopK(2)
        counter = CompileCounterWithBackend("aot_eager")
        torch._dynamo.reset()
        compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
        for n in (5, 8, 13):
            x = torch.randn(3, n, device=device)
            mask = torch.rand(n, device=device) < 0.8
            assert all(map(torch.equal, compiled(x, mask), module(x, mask)))
        assert counter.frame_count == 1

    @pytest.mark.parametrize("masked", [False, True])
    def test_gradients(self, device, masked):
        x = torch.randperm(24, device=device).double().view(4, 6).requires_grad_()
        mask = torch.arange(6, device=device) > 3 if masked else None
        for raw in (False, True):
            for dim in (0, -1):
                if masked and dim == 0:
                    continue

                def values(t, dim=dim, raw=raw):
                    call = torch.ops.gpuprims.topk if raw else topk
                    out = call(t, 3, dim, mask=mask)
                    return torch.where(out[1] < 0, 0, out[0])

                assert torch.autograd.gradcheck(values, x)
                assert torch.autograd.gradgradcheck(values, x)
        result = topk(x, 2, mask=mask)
        assert result.values.requires_grad and not result.indices.requires_grad
        assert not topk(torch.arange(4, device=device), 2).values.requires_grad

    def test_vmap_and_grad(self, device):
        x = torch.randn(3, 4, 5, device=device)
        mask = torch.rand(3, 5, device=device) < 0.7

        def run(t, m):
            return tuple(topk(t, 2, dim=1, mask=m))

        loop = [torch.stack(out) for out in zip(*map(run, x, mask), strict=True)]
        assert all(map(torch.equal, torch.vmap(run)(x, mask), loop))
        scalars = torch.vmap(lambda t: tuple(topk(t, 1)))(x[0, 0])
        assert torch.equal(scalars[0], x[0, 0])
        with pytest.raises(RuntimeError, match="topk: dim must be between -2 and 1, got -3"):
            torch.vmap(lambda t: tuple(topk(t, 1, dim=-3)))(x)

        def loss(t):
            return topk(t, 2).values.square().sum()

        expected = torch.autograd.grad(loss(leaf := x.clone().requires_grad_()), leaf)[0]
        assert torch.equal(torch.func.grad(loss)(x), expected)
        assert torch.equal(torch.vmap(torch.func.grad(loss))(x), expected)

    def test_modes_and_subclasses_see_the_op(self, device):
        seen = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        x = torch.randn(3, 4, device=device)
        with Mode():
            topk(x, 2)
        assert torch.ops.gpuprims.topk.default in seen
        with FakeTensorMode():
            assert topk(torch.empty(3, 4, device=device), 2).values.shape == (3, 2)
        parameter = torch.nn.Parameter(x)
        topk(parameter, 2).values.sum().backward()
        assert parameter.grad.sum() == 6

    def test_module(self, device):
        module = TopK(2, dim=0, largest=False, index_dtype=torch.int32)
        x = torch.randn(4, 3, device=device)
        assert torch.equal(module(x).values, topk(x, 2, 0, False).values)
        assert repr(module) == "TopK(k=2, dim=0, largest=False, sorted=True, index_dtype=torch.int32)"

    def test_docstrings(self):
        for module in (topk.__module__, TopK.__module__):
            assert doctest.testmod(sys.modules[module], extraglobs={"torch": torch}).failed == 0


def test_sharded(two_ranks):
    distributed, mesh = two_ranks
    x = torch.randn(4, 6)
    # From what this rank holds: the fake group moves no data (in PyTorch 2.11 not even to rank 0).
    by_rows = distributed.DTensor.from_local(x[:2], mesh, [distributed.Shard(0)])
    values, indices = topk(by_rows, 2)
    assert values.placements == indices.placements == (distributed.Shard(0),)
    assert values.shape == (4, 2) and torch.equal(values.to_local(), topk(x[:2], 2).values)
    by_columns = distributed.DTensor.from_local(x[:, :3], mesh, [distributed.Shard(1)])
    assert topk(by_columns, 2).values.placements == (distributed.Replicate(),)


SHAPES = [(1, 1_000_000), (64, 20_000), (3, 100_000), (1000, 300), (5, 4097), (2000, 33), (1100, 1024)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_distributions(device, kind, shape):
    if device == "cpu" and shape[0] * shape[1] > 700_000:
        pytest.skip("seconds of sorting on the CPU; the smaller shapes take the same paths there")
    x = DISTRIBUTIONS[kind](shape).to(device)
    for k in (1, 8, 20, 100, 2048):
        for largest in (True, False):
            if k <= shape[1]:
                expected = by_sort(x, k, largest)
                values, indices = topk(x, k, largest=largest)
                assert torch.equal(indices, expected), (k, largest)
                assert torch.equal(bits(values), bits(x.gather(1, expected)))


SHORT = [
    (1, 1), (2000, 1), (7, 3), (100, 32), (5000, 17), (70_000, 32), (20_000, 100), (20_000, 257), (3, 1000),
    (9000, 600), (2500, 1024), (1, 4096),
]  # fmt: skip


def hard_input(kind: str, shape: tuple[int, int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """normal; few values; a cluster of numbers whose leading bits agree, beside outliers."""
    bits = {1: 3, 2: 6, 4: 12, 8: 20}[dtype.itemsize]
    if kind == "normal":
        scale = 40 if dtype.itemsize == 1 else 1000
        x = torch.randn(shape, device=device).mul(1 if dtype.is_floating_point else scale)
        return x.abs().to(dtype) if dtype == torch.uint8 else x.to(dtype)
    small = torch.randint(0, 5 if kind == "ties" else 1 << bits, shape, device=device)
    if kind == "ties":
        return small.to(dtype)
    outlier = torch.rand(shape, device=device) < 0.02
    if dtype.is_floating_point:
        x = 1 + small.double() * torch.finfo(dtype).eps
        return torch.where(outlier, x * torch.finfo(dtype).max / 4, x).to(dtype)
    return torch.where(outlier, small + torch.iinfo(dtype).max // 2, small).to(dtype)


@pytest.mark.parametrize("shape", SHORT, ids=str)
@pytest.mark.parametrize("kind", ["normal", "ties", "cluster"])
def test_short_rows_of_any_k(device, kind, shape):
    if device == "cpu":
        shape = (min(shape[0], 40), shape[1])
    n = shape[1]
    for dtype in (*FLOATS, torch.int32, torch.int64, torch.uint8):
        x = hard_input(kind, shape, dtype, device)
        for largest in (True, False):
            expected = torch.sort(x, dim=-1, descending=largest, stable=True)
            for k in sorted({1, n // 3 + 1, max(n - 1, 1), n}):
                index = torch.int32 if k % 2 else torch.int64
                values, indices = topk(x, k, largest=largest, index_dtype=index)
                assert torch.equal(indices.long(), expected.indices[:, :k]), (dtype, k, largest)
                assert torch.equal(values, expected.values[:, :k]), (dtype, k, largest)


@pytest.mark.parametrize("k_of", ["n", "n/2", "5000"])
@pytest.mark.parametrize("shape", [(1, 1_000_000), (7, 20_000), (500, 3000)], ids=str)
def test_large_k(device, shape, k_of):
    x = torch.randn(shape, device=device).mul(1000).round()  # ties
    k = min({"n": shape[1], "n/2": shape[1] // 2, "5000": 5000}[k_of], shape[1])
    expected = by_sort(x, k)
    values, indices = topk(x, k)
    assert torch.equal(indices, expected)
    assert torch.equal(values, x.gather(1, expected))


@pytest.mark.gpu
@pytest.mark.sanitize
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("shape", [(2, 33), (3, 4097), (1, 70_000)], ids=str)
def test_small_cases_for_the_sanitizer(shape):
    x = torch.randn(shape, device="cuda")
    for k in (1, 20, shape[1]):
        assert torch.equal(topk(x, k).indices, by_sort(x, k))


def test_watchers_see_the_public_op(device):
    """Calls without gradients take an op of their own; modes, tracers and transforms never see it."""
    x = torch.randn(4, 9, device=device)
    expected = topk(x, 3)
    traced = make_fx(lambda x: topk(x, 3))(x)
    assert "gpuprims.topk.default" in traced.code
    y = x.clone().requires_grad_()
    traced(y).values.sum().backward()
    assert y.grad.count_nonzero() == 12
    lean = torch.ops.gpuprims._topk
    with FakeTensorMode() as mode:
        fake = lean(mode.from_tensor(x), 3)
    assert [o.shape for o in fake] == [o.shape for o in expected]
    for got, want in zip(torch.vmap(lambda row: lean(row, 3))(x), expected, strict=True):
        assert torch.equal(got, want)
