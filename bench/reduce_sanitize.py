"""Small reductions through every kernel, around the limits of each; for compute-sanitizer."""

import torch

import torch_gpuprims
from bench import reduce_segment_sanitize

LENGTHS = (1, 5, 64, 128, 129, 300, 4096, 4097, 40_000)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint32, torch.bool)
FLOAT_OPS = ("sum", "prod", "max", "argmin", "any", "norm", "var", "logsumexp")


def check(x: torch.Tensor, op: str, dim: int) -> None:
    got = torch_gpuprims.reduce(x.cuda(), op, dim).cpu()
    want = torch_gpuprims.reduce(x, op, dim)
    bound = 2e-2 if x.dtype.itemsize == 2 else 1e-4
    name = f"{op} {list(x.shape)} {dim} {x.dtype}"  # the variance of one element is NaN
    torch.testing.assert_close(got, want, rtol=bound, atol=bound, equal_nan=True, msg=name)


def check_stats(x: torch.Tensor, dim: int) -> None:
    got = torch_gpuprims.stats(x.cuda(), dim, indices=True)
    for a, e in zip(got, torch_gpuprims.stats(x, dim, indices=True), strict=True):
        bound = 2e-2 if x.dtype.itemsize == 2 else 1e-4
        torch.testing.assert_close(a.cpu(), e, rtol=bound, atol=bound, equal_nan=True)


def run() -> None:
    g = torch.Generator().manual_seed(1)
    for n in LENGTHS:
        for dtype in FLOATS + INTEGERS:
            if n > 5000 and dtype not in (torch.float32, torch.int32, torch.float16):
                continue
            wide = torch.randn(3, n + 1, generator=g)
            wide = wide.to(dtype) if dtype.is_floating_point else (wide * 40).abs().to(dtype)
            for x in (wide[:, 1:], wide[:, 1:].contiguous()):  # rows that no vector is aligned with
                for op in FLOAT_OPS if dtype.is_floating_point else ("sum", "min", "argmax", "all"):
                    if op == "prod" and n > 200:
                        continue
                    check(x, op, 1)
                    check(x.t().contiguous(), op, 0)
                if dtype.is_floating_point and n > 1:
                    check_stats(x, 1)
                    check_stats(x.t().contiguous(), 0)
    x = torch.randn(6, 50, 7, generator=g)
    for dim in ((0, 2), (1, 2), (0, 1)):
        got = torch_gpuprims.reduce(x.permute(2, 0, 1).cuda(), "sum", dim).cpu()
        assert torch.equal(got, torch_gpuprims.reduce(x.permute(2, 0, 1), "sum", dim))
    long = torch.randn(300_000, generator=g)
    for at in (0, 1):
        got = torch_gpuprims.reduce(long[at:].cuda(), "sum").cpu()
        assert torch.equal(got, torch_gpuprims.reduce(long[at:], "sum"))
        got = torch_gpuprims.dot(long[at:].cuda(), long[at:].cuda()).cpu()
        assert torch.equal(got, torch_gpuprims.dot(long[at:], long[at:]))
    reduce_segment_sanitize.run()
    torch.cuda.synchronize()
