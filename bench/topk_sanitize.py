"""Small topk calls through every algorithm, around the limits of each; for compute-sanitizer."""

import os
from collections.abc import Iterator

import torch

import torch_gpuprims
from bench import topk_segment_sanitize
from bench.topk_gate_sanitize import run_gate

Case = tuple[int, int, int, torch.dtype, dict]


def topk_cases() -> Iterator[Case]:
    """(rows, n, k, dtype, options): row lengths around each algorithm's limits, k from 1 to n."""
    shapes = [
        (1, 1, 1), (3, 7, 3), (5, 33, 8), (64, 256, 8), (9, 511, 24),  # a warp a row
        (600, 41, 5), (530, 600, 16), (7, 300, 16),  # a thread or some lanes a row
        (6, 512, 200), (270, 2100, 20), (2, 4097, 50), (3, 9001, 1000), (2, 20_000, 2048),  # a block a row
        (1, 100_003, 20), (2, 300_000, 100), (1, 400_000, 4096),  # several blocks a row
        (1, 4_500_000, 256),  # and a threshold they share
        (1, 600_000, 20), (40, 33_000, 150), (3, 500_000, 40), (100, 20_000, 120),  # parts of long rows
        (2, 5000, 5000), (3, 300, 300), (40, 256, 200), (1, 10_000, 9000),  # everything is sorted
        (1, 10_000, 4097), (2, 30_001, 9000),  # the best are selected, then sorted
        (70, 10, 9), (3, 1000, 700), (1, 4096, 2000),  # ranks are counted
        (1070, 1024, 20),  # a warp a row of middling length
        (4000, 150, 100), (65_000, 33, 20),  # a warp sorts and writes the first k
    ]  # fmt: skip
    for rows, n, k in shapes:
        yield rows, n, k, torch.float32, {}
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8):
        for rows, n, k in ((5, 33, 8), (530, 65, 4), (3, 3001, 64), (1, 100_003, 20), (2, 3000, 3000)):
            yield rows, n, k, dtype, {}
        yield 2, 20_001, 5000, dtype, {}
    for rows, n, k in ((5, 33, 8), (3, 3001, 64), (1, 100_003, 20)):
        yield rows, n, k, torch.float32, {"largest": False}
        yield rows, n, k, torch.float32, {"sorted": False}
        yield rows, n, k, torch.float32, {"index_dtype": torch.int32}


def check_topk(x: torch.Tensor, k: int, options: dict) -> None:
    values, indices = torch_gpuprims.topk(x.cuda(), k, **options)
    got, at = values.cpu(), indices.cpu().long()
    largest = options.get("largest", True)
    order = x.sort(dim=-1, descending=largest, stable=True)
    if options.get("sorted", True):
        assert torch.equal(at, order.indices[..., :k]), (x.shape, x.dtype, k, options)
    else:
        expected = order.indices[..., :k].sort(dim=-1).values
        assert torch.equal(at.sort(dim=-1).values, expected), (x.shape, x.dtype, k, options)
    assert torch.equal(got, x.gather(-1, at))


def run() -> None:
    g = torch.Generator().manual_seed(1)
    for rows, n, k, dtype, options in topk_cases():
        x = torch.randn(rows, n, generator=g)
        x = x.to(dtype) if dtype.is_floating_point else (x * 40).abs().to(dtype)
        check_topk(x, k, options)
        if n < 10_000:
            check_topk(torch.full_like(x, 1), k, options)
    os.environ["GPUPRIMS_APPROX_TOPK_ALGO"] = "buckets"
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.uint8):  # the two stages of approx_topk
        x = (torch.randn(3, 5001, generator=g) * 40).abs().to(dtype).cuda()
        for target in (0.8, 0.95, 0.99):
            approx = torch_gpuprims.approx_topk(x, 48, target)
            assert torch.equal(approx.values, x.gather(1, approx.indices))
    x = torch.randn(4, 700, 6, generator=g)
    for dim in (0, 1, 2):  # strided rows
        got = torch_gpuprims.topk(x.cuda(), 3, dim=dim)
        assert torch.equal(got.values.cpu(), torch.topk(x, 3, dim=dim).values)
    x = torch.randn(3, 5001, generator=g)[:, 1:]  # an odd storage offset
    check_topk(x, 10, {})
    keep = torch.rand(x.shape, generator=g) < 0.001
    got = torch_gpuprims.topk(x.cuda(), 10, mask=keep.cuda())
    expected = torch.topk(x.masked_fill(~keep, float("-inf")), 10)
    assert torch.equal(got.values.cpu(), expected.values)
    x = torch.randn(1, 6000, generator=g)  # merges
    keep = torch.rand(x.shape, generator=g) < 0.9
    got = torch_gpuprims.topk(x.cuda(), 5000, mask=keep.cuda())
    assert torch.equal(got.values.cpu(), torch.topk(x.masked_fill(~keep, float("-inf")), 5000).values)
    run_gate(g)
    topk_segment_sanitize.run()
