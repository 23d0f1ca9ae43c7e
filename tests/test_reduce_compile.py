"""compile_reduction on both devices: results, bits, dims, errors in the user's words, compiling, caching."""

import copy
import doctest
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from torch_gpuprims import Reduction, _nvrtc, compile_reduction
from torch_gpuprims._reduction_source import DTYPES

ROOT = Path(__file__).parents[1]
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Nothing of earlier runs, and nothing left behind."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


def norm():
    return compile_reduction("norm_of", "x * x", "a + b", "0", "sqrt(a)")


def total():
    return compile_reduction("total_of")


def tree(x):
    """The written tree of a contiguous float32 extent, in NumPy."""
    x = np.asarray(x, np.float32)
    while True:
        chunks = []
        for at in range(0, len(x), 4096):
            part = x[at : at + 4096]
            acc = np.zeros(128, np.float32)
            for row in np.pad(part, (0, -len(part) % 128)).reshape(-1, 128):
                acc = acc + row
            while len(acc) > 1:
                acc = acc[: len(acc) // 2] + acc[len(acc) // 2 :]
            chunks.append(acc[0])
        x = np.array(chunks, np.float32)
        if len(x) == 1:
            return x[0]


class TestValues:
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_any_dims(self, device, dtype):
        x = torch.randn(5, 70, 300, dtype=torch.float64).to(dtype)
        close = {"rtol": 2e-2 if dtype.itemsize == 2 else 1e-5, "atol": 1e-5}
        for dim in (None, 0, 1, 2, -1, (0, 1), (1, 2), (0, 2), (0, 1, 2), (), np.int64(1)):
            for keepdim in (False, True):
                out = norm()(x.to(device), dim, keepdim).cpu()
                of = None if isinstance(dim, tuple) and not dim else dim  # none at all: all, as in reduce
                want = torch.linalg.vector_norm(x.double(), dim=of, keepdim=keepdim)
                assert out.dtype == dtype
                torch.testing.assert_close(out, want.to(dtype), **close)

    @pytest.mark.parametrize("dtype", [d for d in DTYPES if not d.is_floating_point], ids=str)
    def test_integers_are_exact(self, device, dtype):
        high = 2 if dtype == torch.bool else 100
        x = torch.randint(0, high, (3, 5001, 4)).to(dtype)
        least = compile_reduction("least_of", combine="a < b ? a : b", init="9223372036854775807LL")
        for dim in (None, 1, (0, 1), (1, 2)):
            out = total()(x.to(device), dim)
            assert out.dtype == torch.int64
            assert torch.equal(out.cpu(), x.long().sum(dim))
            assert torch.equal(least(x.to(device), dim).cpu(), x.long().amin(dim if dim is not None else ()))

    def test_strided_expanded_and_sliced_input(self, device):
        x = torch.randn(40, 50, 6, device=device)
        for view in (x.mT, x[::3, 1:, ::2], x.movedim(0, -1), x[:, :1].expand(40, 50, 6), x[1:, :, 3]):
            for dim in range(view.dim()):
                same = norm()(view.contiguous(), dim)
                assert torch.equal(norm()(view, dim), same)

    def test_empty(self, device):
        assert norm()(torch.zeros(3, 0, device=device), 1).tolist() == [0, 0, 0]
        assert norm()(torch.zeros(0, 3, device=device), 1).shape == (0,)
        assert norm()(torch.tensor(-3.0, device=device)).item() == 3
        mean = compile_reduction("mean_of", finalize="a / n")
        assert mean(torch.zeros(2, 0, device=device), 1).isnan().all()
        assert mean(torch.arange(10.0, device=device)).item() == 4.5

    @pytest.mark.parametrize("n", [1, 100, 128, 129, 4096, 4097, 50_001, 5_000_000])
    def test_written_tree(self, device, n):
        x = np.random.default_rng(n).normal(size=n).astype(np.float32)
        values = torch.from_numpy(x).to(device)
        assert total()(values).item() == tree(x)
        padded = torch.cat([values[:1], values])[1:]  # an odd address: the same accumulators, other loads
        assert total()(padded).item() == tree(x)
        assert total()(torch.stack([padded] * 3), 1).tolist() == [tree(x)] * 3

    def test_threads_do_not_matter(self):
        x, threads, results = torch.randn(3_000_000), torch.get_num_threads(), []
        try:
            for count in (1, 2, 7):
                torch.set_num_threads(count)
                results.append((total()(x), total()(x.view(-1, 3), 0)))
        finally:
            torch.set_num_threads(threads)
        assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_cuda_has_the_bits_of_the_cpu(self, dtype):
        x = torch.randn(7, 30_001, 5, dtype=torch.float64).to(dtype)
        for dim in (None, 0, 1, 2, (0, 2)):
            assert torch.equal(norm()(x.cuda(), dim).cpu(), norm()(x, dim))

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
    def test_stream_and_graph(self):
        x = torch.randn(100_000, device="cuda")
        want = norm()(x)
        late, side = torch.zeros_like(x), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            late.copy_(x)
            out = norm()(late)
        torch.cuda.synchronize()
        assert torch.equal(out, want)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = norm()(late)
        late.copy_(2 * x)
        graph.replay()
        assert torch.equal(captured, norm()(2 * x))


class TestCompiling:
    def test_same_words_same_object(self):
        assert norm() is norm() and isinstance(norm(), Reduction)
        assert (
            repr(total()) == "Reduction('total_of', transform='x', combine='a + b', init='0', finalize='a')"
        )
        with pytest.raises(ValueError, match="'norm_of' exists with other expressions"):
            compile_reduction("norm_of")
        for name in ("2x", "class", "größe", "a b", ""):
            with pytest.raises(ValueError, match=f"name must be an identifier, got '{name}'"):
                compile_reduction(name)
        with pytest.raises(ValueError, match="combine must be a C\\+\\+ expression, got ' '"):
            compile_reduction("blank", combine=" ")

    def test_errors_show_the_users_words(self, device):
        bad = compile_reduction("undeclared", transform="x * twice(x)")
        with pytest.raises(RuntimeError) as error:
            bad(torch.ones(3, device=device))
        text = str(error.value)
        assert text.startswith(
            "compile_reduction: 'undeclared' does not compile\n  transform: x * twice(x)\n"
        )
        assert "twice" in text.split("finalize: a")[1] and "transform" in text.split("finalize: a")[1]

    def test_expressions_that_do_not_compile_leave_the_name(self, device):
        x = torch.ones(3, device=device)
        bad = compile_reduction("retried", transform="x * twice(x)")
        with pytest.raises(ValueError, match="'retried' exists with other expressions"):
            compile_reduction("retried", transform="2 * x")  # it was not tried
        with pytest.raises(RuntimeError, match="'retried' does not compile"):
            bad(x)
        assert compile_reduction("retried", transform="x * twice(x)") is bad
        good = compile_reduction("retried", transform="2 * x")
        assert good(x).item() == 6 and torch.ops.gpuprims_user.retried(x, [0], False).item() == 6
        with pytest.raises(ValueError, match="'retried' exists with other expressions"):
            compile_reduction("retried", transform="3 * x")

    def test_copies(self):
        assert copy.deepcopy(norm()) is norm() and copy.copy(norm()) is norm()
        assert pickle.loads(pickle.dumps(norm())) is norm()
        module = torch.nn.Module()
        module.norm = norm()
        assert copy.deepcopy(module).norm is norm()

    def test_bad_input(self, device):
        x = torch.ones(2, 3, device=device)
        for dim, words in (
            (2, "dim must be in \\[-2, 1\\], got \\[2\\]"),
            ((0, -2), "dim must not repeat"),
        ):
            with pytest.raises(RuntimeError, match=f"total_of: {words}"):
                total()(x, dim)
        with pytest.raises(RuntimeError, match="total_of: dtype complex64 is not supported"):
            total()(x + 0j)
        with pytest.raises(RuntimeError, match="total_of: input must be a dense tensor, got a sparse layout"):
            total()(x.to_sparse())
        with pytest.raises(RuntimeError, match="no autograd formula was registered"):
            total()(x.clone().requires_grad_()).backward()
        assert total()(torch.empty(2, 3, device="meta"), 1).shape == (2,)

    def test_nothing_is_compiled_twice(self, device, monkeypatch):
        x = torch.ones(3, device=device)
        first = compile_reduction("kept", transform="x + 1")
        assert first(x).item() == 6
        first._compiled.clear()  # as in another process

        def never(*args, **kwargs):
            raise AssertionError("compiled again")

        monkeypatch.setattr(subprocess, "run", never)
        monkeypatch.setattr(_nvrtc, "compile_cubin", never)
        assert first(x).item() == 6

    def test_a_cache_that_cannot_be_written_is_done_without(self, device, monkeypatch, tmp_path):
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        homeless = compile_reduction("homeless", transform="x + 2")
        assert homeless(torch.ones(3, device=device)).item() == 9
        assert (tmp_path / "file").read_bytes() == b""

    def test_missing_compiler_is_named(self, monkeypatch):
        lonely = compile_reduction("lonely", transform="x - 1")
        monkeypatch.setattr("shutil.which", lambda name: None)
        with pytest.raises(
            RuntimeError, match="no C\\+\\+ compiler was found \\(\\$CXX, c\\+\\+, g\\+\\+ or"
        ):
            lonely(torch.ones(3))

    def test_missing_nvrtc_is_named(self, monkeypatch):
        monkeypatch.setattr(_nvrtc, "_candidates", lambda: iter(["libnvrtc-that-is-not-there.so"]))
        _nvrtc.library.cache_clear()
        try:
            with pytest.raises(
                RuntimeError, match="libnvrtc was not found: it comes with PyTorch's CUDA wheels"
            ):
                _nvrtc.library()
        finally:
            _nvrtc.library.cache_clear()

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_nvrtc_compiles_every_dtype(self, dtype):
        """Without a GPU too, where there is an NVRTC."""
        try:
            _nvrtc.library()
        except RuntimeError as error:
            pytest.skip(str(error))
        assert norm().cubin(dtype, (9, 0))[:4] == b"\x7fELF"


class TestTransforms:
    def test_compile_once(self, device):
        counter = CompileCounterWithBackend("aot_eager")
        torch._dynamo.reset()
        reduction = norm()
        compiled = torch.compile(lambda x: reduction(x, 1) * 2, fullgraph=True, dynamic=True, backend=counter)
        for shape in ((4, 7, 3), (5, 9, 6), (8, 20, 2)):
            x = torch.randn(shape, device=device)
            assert torch.equal(compiled(x), 2 * reduction(x, 1))
        assert counter.frame_count == 1

    def test_opcheck(self, device):
        norm()
        op = torch.ops.gpuprims_user.norm_of.default
        for args in (
            (torch.randn(3, 4, device=device), [0], False),
            (torch.ones(2, 3, device=device), [0, 1], True),
        ):
            torch.library.opcheck(op, args)

    def test_vmap(self, device):
        x = torch.randn(3, 40, 5, device=device)
        for dim in (0, 1, -1, (0, 1), None):
            loop = torch.stack([norm()(part, dim) for part in x])
            assert torch.equal(torch.vmap(lambda t, d=dim: norm()(t, d))(x), loop)
        with pytest.raises(RuntimeError, match="norm_of: dim must be in \\[-2, 1\\], got \\[5\\]"):
            torch.vmap(lambda t: norm()(t, 5))(x)
        with pytest.raises(RuntimeError, match="norm_of: dim must not repeat"):
            torch.vmap(lambda t: norm()(t, (0, -2)))(x)
        row = torch.vmap(norm())(x[:, 0, 0])
        assert torch.equal(row, x[:, 0, 0].abs())


def test_docstrings():
    module = sys.modules[compile_reduction.__module__]
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
