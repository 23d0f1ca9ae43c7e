"""Small calls of segment_reduce, segment_expand, histogram and compile_reduction through every kernel; for
compute-sanitizer: python -m bench.sanitize reduce_segment, or called by bench/reduce_sanitize.py."""

import torch

from torch_gpuprims import Segments, bincount, compile_reduction, histogram, segment_expand, segment_reduce

LENGTHS = [
    [3, 0, 10, 32, 1, 31, 0, 20] * 40,  # a thread a segment, staged
    [33, 200, 512, 160, 161, 7, 1025, 3000],  # a warp a segment
    [1000] * 20,
    [10, 70_000, 0, 140_000, 5, 4096, 4097],  # chunks and groups
    [0] * 3000 + [40] + [0] * 3000,
]
OPS = ("sum", "mean", "max", "min", "prod", "logsumexp")


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-3, equal_nan=True)


def check(x: torch.Tensor, indptr: torch.Tensor, op: str) -> None:
    """Against the CPU kernels."""
    want = segment_reduce(x, indptr, op)
    same(segment_reduce(x.cuda(), indptr.cuda(), op), want)
    same(segment_reduce(x.cuda(), Segments(indptr.cuda()), op), want)


def hostile() -> None:
    """Offsets that are no offsets: nothing outside the buffers may be touched."""
    for n in (64, 100_000):
        rows = 40
        cases = [
            torch.tensor([0, n] * (rows // 2) + [0]),
            torch.tensor([0, n] * (rows // 2)),
            torch.arange(rows + 1) - 5,
            torch.arange(rows + 1) * (1 << 40),
        ]
        for indptr in cases:
            for shape in ((n,), (n, 3), (n, 4)):
                assert bool(segment_reduce(torch.ones(shape).cuda(), indptr.cuda()).isnan().all())
            spread = segment_expand(torch.ones(len(indptr) - 1).cuda(), indptr.cuda(), n)
            assert bool(spread.isnan().all())


def run() -> None:
    g = torch.Generator().manual_seed(3)
    dtypes = (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int32,
        torch.uint8,
        torch.uint64,
    )
    for lengths in LENGTHS:
        indptr = torch.tensor([0, *lengths]).cumsum(0)
        n = int(indptr[-1])
        for shape in ((n,), (n, 3), (n, 4)):
            x = torch.randn(shape, generator=g)
            for dtype in dtypes[:1] if n > 20_000 else dtypes if len(shape) == 1 else dtypes[::4]:
                values = x.to(dtype) if dtype.is_floating_point else (8 * x).abs().int().to(dtype)
                ops = OPS if dtype.is_floating_point else ("sum", "max", "min")
                for op in ops if n < 20_000 else ("sum",):
                    small = values if op != "prod" else (values.sign() + (values == 0)).to(dtype)
                    check(small, indptr, op)
        for dtype in (torch.uint8, torch.float16, torch.float32, torch.int64):
            for shape in ((), (5,)):
                y = torch.randint(0, 9, (len(lengths), *shape), generator=g).to(dtype)
                same(segment_expand(y.cuda(), indptr.cuda(), n), segment_expand(y, indptr, n))
    hostile()
    x = torch.rand(50_001, generator=g)
    for dtype in (torch.float32, torch.float64, torch.float16):
        for bins in (1, 7, 1000, 20_000, 70_000):
            values = x.to(dtype)[1:]
            assert torch.equal(histogram(values.cuda(), bins, 0, 1).cpu(), histogram(values, bins, 0, 1))
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        whole = (x * 100).to(dtype)
        assert torch.equal(bincount(whole.cuda(), 90).cpu(), bincount(whole, 90))
    norm = compile_reduction("sanitized", "x * x", "a + b", "0", "sqrt(a)")
    for dim in (None, 0, 1, 2):
        y = torch.randn(3, 5000, 7, generator=g)
        same(norm(y.cuda(), dim), norm(y, dim))
        same(norm(y.half().cuda()[1:], dim), norm(y.half()[1:], dim))
