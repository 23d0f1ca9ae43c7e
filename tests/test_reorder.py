"""Packing, gathering and the products over packed and CSR rows, against loops in Python and float64."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_gpuprims import (
    PackedRows,
    Segments,
    gather_packed,
    pack_rows,
    redirect,
    spmv,
    spmv_csr,
    unpack_rows,
)

HERE = Path(__file__).parent
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
BITS = (torch.uint8, torch.bool, torch.int16, torch.int32, torch.int64, torch.complex64, torch.complex128)
LAYOUTS = [("padded", None), ("sliced", None), ("sliced", 64)]
layouts = pytest.mark.parametrize("layout, window", LAYOUTS)
KINDS = ("short", "mixed", "long", "empty rows", "one row", "no rows", "none")


def rows_of(kind: str, seed: int = 0) -> torch.Tensor:
    """indptr of a few hundred rows."""
    g = torch.Generator().manual_seed(seed)
    count = {"one row": 1, "no rows": 0}.get(kind, 331)
    lengths = torch.randint(0, 9, (count,), generator=g)
    if kind == "mixed":
        lengths[5], lengths[40], lengths[300] = 33, 71, 256
    if kind == "long":
        lengths[7], lengths[8], lengths[330], lengths[100] = 257, 3001, 700, 512
        lengths[128:256] = 0  # slices of no width beside slices that are cut
    if kind == "empty rows":
        lengths[::2], lengths[200:] = 0, 0
    if kind == "one row":
        lengths[0] = 45
    if kind == "none":
        lengths[:] = 0
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def entries_of(indptr: torch.Tensor, columns: int = 97, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    count = int(indptr[-1])
    return torch.randn(count, generator=g, dtype=torch.float64), torch.randint(columns, (count,), generator=g)


def slots(indptr: torch.Tensor, layout: str, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(entry of each slot or -1, row at each position), by the words of the docstring."""
    lengths = (indptr[1:] - indptr[:-1]).tolist()
    rows = len(lengths)
    order = list(range(rows))
    if window:
        order = [r for w in range(0, rows, window)
                 for r in sorted(range(w, min(w + window, rows)), key=lambda r: -lengths[r])]  # fmt: skip
    if layout == "padded":
        longest = max(lengths, default=0)
        strips = [(order, rows, longest)] if rows else []
    else:
        parts = [order[s : s + 32] for s in range(0, rows, 32)]
        strips = [(part, 32, max(lengths[r] for r in part)) for part in parts]
    out = []
    for part, height, width in strips:
        for i in range(width):
            for lane in range(height):
                row = part[lane] if lane < len(part) else None
                out.append(int(indptr[row]) + i if row is not None and i < lengths[row] else -1)
    return torch.tensor(out, dtype=torch.int64), torch.tensor(order, dtype=torch.int64)


def product(
    indptr: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    """In float64."""
    rows = torch.arange(len(indptr) - 1).repeat_interleave(indptr[1:] - indptr[:-1])
    terms = values.double().reshape(-1, *[1] * (x.dim() - 1)) * x.double()[indices]
    return torch.zeros(len(indptr) - 1, *x.shape[1:], dtype=torch.float64).index_add_(0, rows, terms)


@layouts
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("features", [(), (1,), (3,), (4,), (2, 5), (0,)])
def test_pack_is_the_layout(kind, features, layout, window, device):
    indptr = rows_of(kind)
    count = int(indptr[-1])
    values = torch.randn(count, *features, generator=torch.Generator().manual_seed(2))
    for index in (torch.int32, torch.int64):
        packed = pack_rows(
            values.to(device),
            indptr.to(device, index),
            layout=layout,
            window=window,
            fill=-7,
            budget_bytes=1 << 40,
        )
        entry, order = slots(indptr, layout, window)
        padded = torch.cat([values, torch.full((1, *features), -7.0)])
        assert torch.equal(packed.values.cpu(), padded[entry])
        assert torch.equal(packed.unpack().cpu(), values)
        assert torch.equal(unpack_rows(packed).cpu(), values)
        if window and len(order):
            assert torch.equal(packed.order.cpu().long(), order)


@layouts
@pytest.mark.parametrize("dtype", [*DTYPES, *BITS, torch.float8_e4m3fn])
def test_every_dtype(dtype, layout, window, device):
    indptr = rows_of("mixed")
    count = int(indptr[-1])
    for features in ((), (3,)):
        size = torch.Size((count, *features)).numel() * torch.empty((), dtype=dtype).element_size()
        bits = torch.randint(
            0, 2 if dtype == torch.bool else 256, (size,), generator=torch.Generator().manual_seed(3)
        )
        values = bits.to(torch.uint8).view(dtype).view(count, *features).to(device)
        packed = pack_rows(values, indptr.to(device), layout=layout, window=window, budget_bytes=1 << 40)
        assert packed.values.dtype == dtype
        back = packed.unpack()
        assert torch.equal(back.cpu().view(torch.uint8), values.cpu().view(torch.uint8))
        odd = torch.cat([values[:1], values])[1:]  # another address
        assert torch.equal(packed.repack(odd).values.view(torch.uint8), packed.values.view(torch.uint8))


@layouts
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products(kind, dtype, layout, window, device):
    indptr = rows_of(kind)
    wide, indices = entries_of(indptr)
    values = wide.to(dtype)
    for shape in ((97,), (97, 1), (97, 3)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(dtype)
        expected = product(indptr, indices, values, x)
        scale = product(indptr, indices, values.abs(), x.abs())
        eps = {torch.float64: 1e-14, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
        where = [t.to(device) for t in (indptr, indices, values, x)]
        packed = pack_rows(
            where[2], where[0], indices=where[1], layout=layout, window=window, budget_bytes=1 << 40
        )
        out = spmv(packed, where[3])
        assert out.dtype == dtype
        assert out.shape == expected.shape
        assert ((out.cpu().double() - expected).abs() <= eps * (scale + 1e-3)).all()
        for rows in (where[0], where[0].int(), Segments(where[0])):
            for ids in (where[1], where[1].int()):
                assert torch.equal(out, spmv_csr(rows, ids, *where[2:])), "bits of the packed product"
        # A product of parts, and by offsets that nobody validated.
        raw = PackedRows._of(vars(packed) | {"values": packed.values}, layout, 0, None, 0, 0)
        assert torch.equal(out, spmv(raw, where[3]))
        parts = packed.chunks(3)
        if layout == "padded":
            summed = torch.zeros_like(out)
            for part in parts:
                summed = spmv(part, where[3], start=summed)
            assert ((summed.cpu().double() - expected).abs() <= 3 * eps * (scale + 1e-3)).all()
        else:
            assert torch.equal(out, torch.cat([spmv(part, where[3]) for part in parts]))
        cpu = [t.cpu() for t in where]
        assert torch.equal(out.cpu(), spmv_csr(*cpu)), "bits of the CPU"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 4096])
def test_products_of_more_slices_than_a_card_has_warps(dtype, window, device):
    """Each warp walks over several slices, of none to a few batches of columns."""
    g = torch.Generator().manual_seed(6)
    lengths = torch.randint(0, 9, (300_000,), generator=g)
    lengths[torch.randint(len(lengths), (5_000,), generator=g)] = torch.randint(9, 90, (5_000,), generator=g)
    lengths[1000:2000] = 0
    indptr = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    wide, indices = entries_of(indptr)
    indices = indices.int()
    indices[12345], indices[-1] = 97, -5  # outside of x
    where = [t.to(device) for t in (indptr, indices, wide.to(dtype), torch.randn(97, generator=g).to(dtype))]
    expected = spmv_csr(*where)
    assert int(expected.isnan().sum()) == 2
    packed = pack_rows(
        where[2],
        where[0],
        indices=where[1].clamp(min=0),
        layout="sliced",
        window=window,
        budget_bytes=1 << 30,
    )  # fmt: skip
    columns = torch.where(packed.indices >= 0, packed.repack(where[1]).values, -1)
    out = torch.ops.gpuprims.spmv(packed.values, columns, *packed._packing, where[3], promises=1)
    assert torch.equal(out.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("features", [(), (1,), (3,), (16,), (65,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float64, torch.complex128])
def test_gather(features, dtype, device):
    g = torch.Generator().manual_seed(4)
    a = torch.randint(-9, 9, (50, *features), generator=g).to(dtype)
    b = torch.randint(-1, 50, (7, 33), generator=g)
    expected = torch.cat([a, torch.full((1, *features), 5).to(dtype)])[b]
    packed = gather_packed(a.to(device), b.to(device), fill=5)
    assert torch.equal(packed.view().cpu(), expected)
    plan = redirect(b.to(device).int(), num_rows=50)
    again = plan.pack(a.to(device), fill=5)
    assert torch.equal(again.values, packed.values)
    memory = again.values.data_ptr()
    assert again.refresh(a.to(device) + 1) is again
    assert again.values.data_ptr() == memory
    assert torch.equal(again.view().cpu()[b >= 0], (a + 1)[b[b >= 0]])
    assert torch.equal(torch.cat(again.chunks(4)), again.values)


@layouts
def test_refresh_fills_the_same_memory(layout, window, device):
    indptr = rows_of("mixed")
    values, _ = entries_of(indptr)
    packed = pack_rows(
        values.to(device), indptr.to(device), layout=layout, window=window, budget_bytes=1 << 40
    )
    memory, version = packed.values.data_ptr(), packed.values._version
    assert packed.refresh(3 * values.to(device)) is packed
    assert packed.values.data_ptr() == memory
    assert packed.values._version > version
    assert torch.equal(packed.unpack().cpu(), 3 * values)
    for wrong in (values[1:], values.float(), values[:, None]):
        with pytest.raises(RuntimeError, match="refresh: values must"):
            packed.refresh(wrong.to(device))
    with pytest.raises(RuntimeError, match="without a gradient"):
        packed.refresh(values.to(device).requires_grad_())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@layouts
def test_capture_of_refresh_and_product(layout, window):
    indptr = rows_of("long").cuda()
    values, indices = (t.cuda() for t in entries_of(indptr.cpu()))
    x = torch.randn(97, dtype=torch.float64, device="cuda")
    packed = pack_rows(values, indptr, indices=indices, layout=layout, window=window, budget_bytes=1 << 40)
    spmv(packed, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        packed.refresh(values)
        out = spmv(packed, x)
    for factor in (2.0, -1.0, 0.5):
        values.mul_(factor)
        graph.replay()
        assert torch.equal(out, spmv_csr(indptr, indices, values, x))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_forced_kernels_give_the_same_bits():
    code = (
        "import torch, torch_gpuprims as g, test_reorder as t\n"
        "for kind in t.KINDS:\n"
        "    p = t.rows_of(kind).cuda(); v, i = (e.cuda() for e in t.entries_of(p.cpu()))\n"
        "    x = torch.arange(97.0, device='cuda', dtype=torch.float64).sin()\n"
        "    i = i.int(); print(g.spmv_csr(p, i, v, x).tolist())\n"
        "    print(g.spmv_csr(p, i, v.half(), x.half()).tolist())\n"
    )
    printed = set()
    for name in ("lane", "stream", ""):
        env = {**os.environ, "GPUPRIMS_SPMV_CSR_ALGO": name, "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
        printed.add(done.stdout)
    assert len(printed) == 1
