"""Small calls through every reordering kernel: layouts, widths, long and empty rows, hostile offsets."""

import torch

from torch_gpuprims import Segments, gather_packed, pack_rows, spmv, spmv_csr

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LAYOUTS = ({}, {"layout": "sliced"}, {"layout": "sliced", "window": 64})


def small_rows(long: bool) -> torch.Tensor:
    """Offsets with empty rows, and rows that are cut into groups."""
    lengths = torch.randint(0, 9, (300,), generator=torch.Generator().manual_seed(1))
    lengths[40:80] = 0
    if long:
        lengths[7], lengths[299], lengths[100] = 900, 257, 33
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def check_packing(indptr: torch.Tensor) -> None:
    g = torch.Generator().manual_seed(2)
    for how in LAYOUTS:
        for dtype in (torch.int8, torch.float16, torch.float32, torch.float64, torch.complex128):
            for features in ((), (3,), (40,)):
                values = torch.randint(-9, 9, (int(indptr[-1]), *features), generator=g).to(dtype)
                want = pack_rows(values, indptr, fill=3, budget_bytes=1 << 40, **how)
                got = pack_rows(values.cuda(), indptr.cuda(), fill=3, budget_bytes=1 << 40, **how)
                assert torch.equal(got.values.cpu(), want.values)
                assert torch.equal(got.unpack().cpu(), values)
                assert torch.equal(got.refresh(values.cuda()).values.cpu(), want.values)
                raw = torch.ops.gpuprims
                packing = (got.indptr, got._slices, got.order, None)  # looked at: nothing is promised
                again = raw.pack_rows(values.cuda(), *packing, got.num_slots, got._fill)
                assert torch.equal(again.cpu(), want.values)
                assert torch.equal(raw.unpack_rows(again, *packing, len(values)).cpu(), values)


def check_products(indptr: torch.Tensor) -> None:
    g = torch.Generator().manual_seed(3)
    count = int(indptr[-1])
    indices = torch.randint(50, (count,), generator=g)
    for dtype in DTYPES:
        values = torch.randn(count, generator=g).to(dtype)
        for shape in ((50,), (50, 3)):
            x = torch.randn(shape, generator=g).to(dtype)
            want = spmv_csr(indptr, indices, values, x)
            rows, there, columns = indptr.cuda(), values.cuda(), x.cuda()
            for ids in (indices.cuda(), indices.cuda().int()):
                assert torch.equal(spmv_csr(rows, ids, there, columns).cpu(), want)
                assert torch.equal(spmv_csr(Segments(rows), ids, there, columns).cpu(), want)
                for how in LAYOUTS:
                    packed = pack_rows(there, rows, indices=ids, budget_bytes=1 << 40, **how)
                    assert torch.equal(spmv(packed, columns).cpu(), want)
                    sums = spmv(packed, columns, start=torch.zeros_like(want, device="cuda"))
                    assert torch.equal(sums.cpu(), want + 0)


def hostile() -> None:
    """Raw ops given offsets that are no offsets: they must stay inside every buffer."""
    raw = torch.ops.gpuprims
    rows, count = 40, 64
    values, x = torch.randn(count).cuda(), torch.randn(50).cuda()
    indices = (torch.arange(count) % 50).cuda()
    outside = indices.clone()
    outside[3], outside[9] = -9, 1 << 40
    good = torch.linspace(0, count, rows + 1).long()
    up_and_down = torch.tensor([0, count] * (rows // 2) + [0])
    for indptr in (good, up_and_down, torch.arange(rows + 1) - 5, torch.arange(rows + 1) << 40):
        for order in (None, torch.arange(rows), torch.arange(rows) << 33, torch.full((rows,), -1)):
            for slices in (None, torch.tensor([0, 32, 160]), torch.tensor([0, 1 << 40, -3])):
                slots = 160
                there = (indptr.cuda(), *(None if t is None else t.cuda() for t in (slices, order)), None)
                raw.pack_rows(values, *there, slots)
                raw.unpack_rows(torch.randn(slots).cuda(), *there, count)
                padded = torch.full((slots,), -1).cuda()
                padded[:count] = outside
                raw.spmv(torch.randn(slots).cuda(), padded, *there, x)
        raw.spmv_csr(indptr.cuda(), outside, values, x)
        torch.cuda.synchronize()
    raw.gather_packed(values, outside)


def run() -> None:
    g = torch.Generator().manual_seed(4)
    for long in (False, True):
        check_packing(small_rows(long))
        check_products(small_rows(long))
    for dtype in (torch.int8, torch.float16, torch.float32, torch.float64, torch.complex128):
        for features in ((), (3,), (40,)):
            a = torch.randint(-9, 9, (33, *features), generator=g).to(dtype)
            b = torch.randint(-1, 33, (700,), generator=g)
            got = gather_packed(a.cuda(), b.cuda(), fill=2).values
            assert torch.equal(got.cpu(), gather_packed(a, b, fill=2).values)
    hostile()
