"""segment_reduce bit for bit: the written trees, any place, any neighbours, any threads, both devices."""

import numpy as np
import pytest
import torch
from reduce_segment_reference import FLOATS, OPS, cut, draw, tree, tree_of_rows

from torch_gpuprims import reduce, segment_reduce


class TestBits:
    @pytest.mark.parametrize("length", [1, 5, 10, 32, 33, 127, 128, 129, 1000, 4096, 4097, 40_000, 300_001])
    def test_written_tree(self, device, length):
        x = np.random.default_rng(length).normal(size=length).astype(np.float32)
        out = segment_reduce(torch.from_numpy(x).to(device), torch.tensor([0, length], device=device))
        assert out.item() == tree(x)
        mean = segment_reduce(
            torch.from_numpy(x).to(device), torch.tensor([0, length], device=device), "mean"
        )
        assert mean.item() == tree(x) / np.float32(length)

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    @pytest.mark.parametrize("op", ["sum", "mean", "prod", "max", "min"])
    def test_bits_of_reduce(self, device, dtype, op):
        for length in (1, 9, 16, 17, 32, 33, 129, 300, 1000, 4096, 4097, 40_000, 300_001):
            x = draw((length + 1,), dtype, length, op == "prod").to(device)[1:]
            out = segment_reduce(x, torch.tensor([0, length], device=device), op)
            assert torch.equal(out[0], reduce(x, op)), length

    @pytest.mark.parametrize("length", [1, 7, 64, 65, 256, 257, 4096, 5000, 20_000])
    def test_written_tree_of_rows(self, device, length):
        x = np.random.default_rng(length).normal(size=(length, 4)).astype(np.float32)
        for columns in (3, 4):
            values = torch.from_numpy(x[:, :columns].copy()).to(device)
            out = segment_reduce(values, torch.tensor([0, length], device=device))
            assert np.array_equal(out.cpu().numpy()[0], tree_of_rows(x)[:columns])

    @pytest.mark.parametrize("op", OPS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
    @pytest.mark.parametrize("shape", [(), (3,), (4,)])
    def test_place_and_neighbours_change_nothing(self, device, op, dtype, shape):
        for length in (7, 31, 33, 500, 1100, 5000, 50_000):
            part = draw((length, *shape), dtype, length, op == "prod").to(device)
            alone = segment_reduce(part, torch.tensor([0, length], device=device), op)
            for before, after in (
                ([1], []),
                ([3, 0, 2], [4000]),
                ([10] * 3001, [10] * 5000),
                ([100_001], []),
            ):
                indptr = cut([*before, length, *after]).to(device)
                x = torch.zeros((int(indptr[-1]), *shape), dtype=dtype, device=device)
                at = int(indptr[len(before)])
                x[at : at + length] = part
                out = segment_reduce(x, indptr, op)[len(before)]
                assert torch.equal(out, alone[0]), (length, before[:3])

    def test_threads_do_not_matter(self):
        indptr = cut([100_000, 7, 0, 3_000_000, 50, *[30] * 20_000])
        x = torch.randn(int(indptr[-1]))
        threads, results = torch.get_num_threads(), []
        try:
            for count in (1, 2, 7):
                torch.set_num_threads(count)
                results.append((segment_reduce(x, indptr), segment_reduce(x, indptr, "logsumexp")))
        finally:
            torch.set_num_threads(threads)
        for other in results[1:]:
            assert all(map(torch.equal, results[0], other))

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_cuda_has_the_bits_of_the_cpu(self, dtype):
        indptr = cut(
            [3, 0, 150_000, 20, 9000, 700, 0, 1_040_001, 33, 160, 4096, 4097, *[10] * 3000, *range(300)]
        )
        for shape in ((), (4,), (5,)):
            x = draw((int(indptr[-1]), *shape), dtype, 0)
            for op in ("sum", "mean", "max", "min"):
                cpu, cuda = segment_reduce(x, indptr, op), segment_reduce(x.cuda(), indptr.cuda(), op)
                assert torch.equal(cpu.nan_to_num(7), cuda.cpu().nan_to_num(7)), (op, shape)
