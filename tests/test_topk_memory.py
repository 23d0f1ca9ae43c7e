"""topk's memory: at most 5 % of the input and 16 MiB for k up to 4096, above no more than torch.sort, except
for a mask, whose large k take what explain states."""

from typing import Any

import pytest
import torch

from torch_gpuprims import explain, topk

MIB = 1 << 20
SHAPES = [
    (1, 1_000_000, 20, torch.float32),
    (1, 100_000_000, 4096, torch.float32),
    (1, 50_000_000, 2048, torch.float64),
    (64, 1_000_000, 100, torch.float32),
    (64, 131_072, 2048, torch.bfloat16),
    (7, 3_000_001, 1, torch.uint8),
    (1024, 32_768, 64, torch.float32),
    (4096, 4096, 32, torch.int64),
    (16_384, 256, 8, torch.float32),
]
LARGE_K = [(1, 10_000_000, 5_000_000), (1, 1_000_000, 4097), (64, 100_000, 100_000), (4096, 8192, 8192)]


def stated(x: torch.Tensor, k: int, **options: Any) -> float:
    """Bytes of workspace that explain() names; it rounds to 0.001 MB."""
    line = explain("topk", x, k, **options)
    if "nothing to launch" in line:
        return 0.0
    return float(line.split("workspace ")[1].split(" MB")[0]) * 1e6


def limit(x: torch.Tensor) -> float:
    return 0.05 * x.numel() * x.element_size() + 16 * MIB


@pytest.mark.parametrize("rows, n, k, dtype", SHAPES)
def test_explain_states_a_workspace_within_the_limit(rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    x = torch.empty(rows, n, dtype=dtype, device="meta")
    assert stated(x, k) <= limit(x)


def peak_bytes(call) -> int:
    """What a call asks for beyond what was there before it, its result included. Not what the allocator hands
    out: the end of another tensor's segment may be given whole (2 MB for 1.1)."""
    call()  # first calls load kernels
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    del result
    return peak


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
class TestPeak:
    @pytest.mark.parametrize("rows, n, k, dtype", SHAPES)
    def test_workspace_is_as_stated_and_within_the_limit(self, rows, n, k, dtype):
        x = torch.ones(rows, n, dtype=dtype, device="cuda")  # all ties: candidates galore
        outputs = rows * k * (x.element_size() + 8)
        peak = peak_bytes(lambda: topk(x, k))
        slack = 4 * 512 + 1000  # the allocator's rounding of each block, and that of explain
        assert peak <= outputs + stated(x, k) + slack
        assert peak <= outputs + limit(x) + slack

    @pytest.mark.parametrize("rows, n, k", LARGE_K)
    def test_large_k_takes_no_more_than_sort(self, rows, n, k):
        x = torch.randn(rows, n, device="cuda")
        assert peak_bytes(lambda: topk(x, k)) <= peak_bytes(lambda: torch.sort(x, descending=True)) + 16 * MIB

    def test_a_mask_with_large_k_takes_what_is_stated(self):
        x = torch.randn(2, 500_000, device="cuda")
        mask = torch.rand(500_000, device="cuda") < 0.5
        peak = peak_bytes(lambda: topk(x, 5000, mask=mask))
        assert peak <= 2 * 5000 * 12 + stated(x, 5000, mask=mask) + 4 * 512 + 1000

    def test_copies_are_stated(self):
        x = torch.randn(3000, 4, 2000, device="cuda")
        for dim, k in ((0, 8), (0, 2500), (1, 2)):
            outputs = x.numel() // x.shape[dim] * k * 12
            peak, said = peak_bytes(lambda dim=dim, k=k: topk(x, k, dim)), stated(x, k, dim=dim)
            assert said >= x.nbytes - 1000 and abs(peak - outputs - said) <= 8 * 512 + 1000
        gaps = torch.randn(20_000, 600, device="cuda")[:, :500]  # sorted whole
        peak, said = peak_bytes(lambda: topk(gaps, 400)), stated(gaps, 400)
        assert said >= gaps.numel() * 4 - 1000 and abs(peak - 20_000 * 400 * 12 - said) <= 8 * 512 + 1000

    def test_strided_rows_are_not_copied(self):
        x = torch.randn(2000, 40_000, device="cuda")[:, :20_000]  # rows apart, elements adjacent
        assert peak_bytes(lambda: topk(x, 8)) <= limit(x) / 4
