"""The bits of reductions: the written tree, the same ones in any batch, at any offset, on any grid."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from reduce_cases import FLOATS, LENGTHS, make
from reduce_reference import strided_class, tree

import torch_gpuprims as gp
from torch_gpuprims.reduce import REDUCE_OPS


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_follow_the_written_tree(dtype: torch.dtype, device: str) -> None:
    acc = np.float64 if dtype == torch.float64 else np.float32
    for n in (*LENGTHS, 12_345, 36_864, 70_001):
        x = make((2, n), dtype, device, n) * 3
        values = (x.cpu() if dtype in (torch.float32, torch.float64) else x.cpu().float()).numpy()
        for source, dim in ((x, 1), (x.t().contiguous(), 0), (x.t().contiguous().t(), 1)):
            strided = strided_class(source.stride(dim), n)
            want = torch.from_numpy(tree(values, dtype.itemsize, strided=strided).astype(acc))
            got = gp.reduce(source, "sum", dim)
            assert torch.equal(got.cpu(), want.to(dtype)), (n, dim)
            mean = torch.from_numpy((want.numpy() / acc(n)).astype(acc))
            assert torch.equal(gp.reduce(source, "mean", dim).cpu(), mean.to(dtype)), (n, dim)


def test_float64_sum_of_float32(device: str) -> None:
    for n in (5, 128, 1000, 5000, 40_000):
        x = make((2, n), torch.float32, device, n)
        for source, dim in ((x, 1), (x.t().contiguous(), 0)):
            strided = strided_class(source.stride(dim), n)
            want = torch.from_numpy(tree(x.cpu().double().numpy(), 4, strided=strided))
            got = gp.reduce(source, "sum", dim, dtype=torch.float64)
            assert got.dtype == torch.float64 and torch.equal(got.cpu(), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("op", [op for op in REDUCE_OPS if op not in ("any", "all")])
def test_same_bits_alone_in_a_batch_and_at_odd_offsets(op: str, dtype: torch.dtype, device: str) -> None:
    for n in (7, 64, 100, 130, 300, 1001, 4096, 5000, 33_000):
        rows = make((5, n), dtype, device, n) / 4
        rows = 1 + rows / 16 if op == "prod" else rows  # products of many numbers below 1 are all 0
        whole = gp.reduce(rows, op, -1)
        for i in range(5):
            assert torch.equal(gp.reduce(rows[i], op), whole[i]), (n, i)
        for shift in (1, 2, 3, 5):
            wide = rows.new_zeros(5, n + shift)
            wide[:, shift:] = rows
            assert torch.equal(gp.reduce(wide[:, shift:], op, -1), whole), (n, shift)
        many = rows.repeat(200 if n < 1000 else 8, 1)
        assert torch.equal(gp.reduce(many, op, -1)[:5], whole), n
        turned = rows.t().contiguous()
        columns = gp.reduce(turned, op, 0)  # the strided class has bits of its own
        alone = torch.stack([gp.reduce(turned[:, i : i + 1].expand(n, 2), op, 0)[0] for i in range(5)])
        if n > 1:
            assert torch.equal(columns, alone), n
            wide = turned.repeat(1, 30)
            assert torch.equal(gp.reduce(wide, op, 0)[:5], columns), n


def test_sum_depends_on_the_class_of_strides_alone(device: str) -> None:
    x = make((6, 50, 7), torch.float32, device)
    want = gp.reduce(x, "sum", 1)
    assert torch.equal(gp.reduce(x.permute(2, 1, 0), "sum", 1), want.t())
    assert torch.equal(gp.reduce(x.permute(1, 2, 0).contiguous(), "sum", 0), want.t())
    assert torch.equal(gp.reduce(torch.stack([x, x], -1), "sum", 1)[..., 1], want)
    assert torch.equal(gp.reduce(x, "sum"), gp.reduce(x.permute(2, 0, 1), "sum"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_other_grids_give_the_same_bits() -> None:
    """Subprocesses, because the switch is read once."""
    script = (
        "import torch, torch_gpuprims as gp, hashlib\n"
        "g = torch.Generator().manual_seed(5); h = hashlib.sha256()\n"
        "for dtype in (torch.float32, torch.float16, torch.bfloat16):\n"
        " for shape, dim in (((3, 50_000), 1), ((2**21 + 5,), 0), ((20_000, 70), 0), ((5000, 3), 0)):\n"
        "  x = torch.randn(shape, generator=g).to(dtype).cuda()\n"
        "  for op in gp.reduce.__globals__['REDUCE_OPS']:\n"
        "   for ord in (1, 2, float('inf')) if op == 'norm' else (2,):\n"
        "    y = 1 + x / 1000 if op == 'prod' else x\n"
        "    h.update(gp.reduce(y, op, dim, ord=ord).double().cpu().numpy().tobytes())\n"
        "  h.update(gp.dot(x.flatten(), x.flatten()).double().cpu().numpy().tobytes())\n"
        "  for t in gp.stats(x, dim, indices=True): h.update(t.double().cpu().numpy().tobytes())\n"
        "print(h.hexdigest())\n"
    )
    seen = set()
    for chunks in ("", "1", "2", "4", "8"):
        env = {**os.environ, "GPUPRIMS_REDUCE_CHUNKS": chunks}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        seen.add(done.stdout)
    assert len(seen) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_cuda_sums_have_the_bits_of_the_cpu() -> None:
    for dtype in (torch.float32, torch.float64):
        for shape, dim in (
            ((2**20 + 3,), 0),
            ((300, 1000), 1),
            ((5000, 64), 0),
            ((9, 40_001), 1),
            ((8, 300, 70), 1),
        ):
            x = make(shape, dtype, "cpu", shape[0]) * 1e-3
            x.reshape(-1)[::97] *= 1e-38  # denormal
            word = torch.int64 if dtype == torch.float64 else torch.int32
            for op in ("sum", "mean", "norm"):
                there, here = (gp.reduce(t, op, dim, ord=1).cpu() for t in (x.cuda(), x))
                assert torch.equal(there.view(word), here.view(word)), (op, shape)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_streams_and_repeats_leave_the_tickets_clean() -> None:
    x = torch.randn(2**20, device="cuda")
    want = gp.reduce(x, "sum")
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results = []
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(gp.reduce(x, "sum"))
    torch.cuda.synchronize()
    assert all(torch.equal(r, want) for r in results)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("op", ["max", "argmin", "var", "logsumexp", "stats"])
def test_rows_alone_have_the_bits_that_they_have_among_many(op: str) -> None:
    """Other grids, and for positions in columns another loop."""
    torch.manual_seed(0)

    def of(x: torch.Tensor, dim: int) -> list[torch.Tensor]:
        found = gp.stats(x, dim) if op == "stats" else gp.reduce(x, op, dim)
        return [f for f in found if f is not None] if isinstance(found, tuple) else [found]

    columns = torch.randn(66_001, 256, device="cuda") + 3
    rows = torch.randn(300_000, 64, device="cuda") - 50
    long = torch.randn(256, 65_536, device="cuda")
    for x in (columns, rows, long):
        x[60, 3], x[2, 60], x[3, 3] = math.nan, math.inf, -math.inf
    for x, alone, dim in (
        (columns, columns[:, :4].contiguous(), 0), (columns, columns[:, :5].contiguous(), 0),
        (columns[:64].repeat(1, 300), columns[:64], 0),
        (rows, rows[:64], 1), (long, long[:4], 1), (long, long[2:3, :], 1),
    ):  # fmt: skip
        first = 2 if alone.shape[0] == 1 else 0
        for a, b in zip(of(x, dim), of(alone, dim), strict=True):
            torch.testing.assert_close(a[first : first + len(b)], b, rtol=0, atol=0, equal_nan=True)
