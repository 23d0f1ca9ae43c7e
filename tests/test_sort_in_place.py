"""sort_keys(inplace=True): as sort_keys, where the input lies."""

import shutil

import numpy as np
import pytest
import torch
from topk_reference import DISTRIBUTIONS, DTYPES, bits, random_input
from torch.autograd import forward_ad

from torch_gpuprims import sort_keys


def in_place(x):
    return sort_keys(x.clone(), inplace=True)


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
        with pytest.raises(RuntimeError, match="sort_keys: dim must be between -1 and 0, got 3"):
            sort_keys(torch.zeros((), device=device), 3, inplace=True)
        with pytest.raises(RuntimeError, match="sort_keys: input must be a dense tensor, got a sparse"):
            sort_keys(torch.zeros(3, device=device).to_sparse(), inplace=True)
        y = torch.tensor([3.0, 1.0, 2.0], device=device)
        with pytest.raises(RuntimeError, match="sort_keys: dim must be between -1 and 0, got -2"):
            sort_keys(y, -2, inplace=True)
        assert y.tolist() == [3, 1, 2]

    @pytest.mark.parametrize("dim", [-1, 0])
    def test_no_tangent_stays_behind(self, device, dim):
        """One that did would be in the order of the input."""
        words = "^sort_keys: inplace needs an input that requires no gradient$"
        x = torch.tensor([[3.0, 1.0, 2.0]], device=device)
        tangent = torch.tensor([[10.0, 20.0, 30.0]], device=device)

        def run(t):
            return sort_keys(t.clone(), dim, inplace=True)

        with pytest.raises(RuntimeError, match=words):
            torch.func.jvp(run, (x,), (tangent,))
        with pytest.raises(RuntimeError, match=words):
            torch.vmap(lambda t, d: torch.func.jvp(run, (t,), (d,)))(x[None], tangent[None])
        with pytest.raises(RuntimeError, match=words):
            torch.func.jvp(torch.vmap(run), (x[None],), (tangent[None],))
        with forward_ad.dual_level():
            with pytest.raises(RuntimeError, match=words):
                run(forward_ad.make_dual(x, tangent))
            assert run(x).tolist() == sort_keys(x, dim).tolist()  # no tangent, no objection

    @pytest.mark.parametrize("dim", [-1, 0])
    @pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
    def test_compiled(self, device, dim, backend):
        if backend == "inductor" and shutil.which("g++") is None:
            pytest.skip("Inductor needs a C++ compiler")
        torch._dynamo.reset()
        x = torch.randn(5, 7, device=device)

        def run(t, u):
            result = sort_keys(t, dim, inplace=True)
            return result + 1, sort_keys(u * 2, dim, inplace=True)

        mine, version = x.clone(), x._version
        shifted, doubled = torch.compile(run, fullgraph=True, backend=backend)(mine, x)
        expected = sort_keys(x, dim)
        assert torch.equal(mine, expected) and mine._version > version
        assert torch.equal(shifted, expected + 1) and torch.equal(doubled, sort_keys(x * 2, dim))

    def test_opcheck(self, device):
        op = torch.ops.gpuprims._sort_keys_.default
        for x in (torch.randn(3, 5, device=device), torch.zeros((), device=device)):
            torch.library.opcheck(op, (x, True))

    def test_batches(self, device):
        x = torch.randn(4, 5, 6, device=device)
        for dim in (0, 1, 2):
            loop = torch.stack([in_place(t) for t in x.unbind(dim)], dim)
            assert torch.equal(torch.vmap(in_place, dim, dim)(x), loop)
        assert torch.equal(torch.vmap(in_place)(x[0, 0]), x[0, 0])  # scalars
