"""Small sorts through every kernel, around the limits of each; for compute-sanitizer."""

import torch

import torch_gpuprims

LENGTHS = (
    1,
    7,
    16,
    17,
    32,
    33,
    64,
    65,
    128,
    129,
    256,
    257,
    512,
    513,
    1024,
    1025,
    2048,
    4096,
    4097,
    8192,
    8193,
    40_000,
)
FLOATS = (torch.float32, torch.float64, torch.float16)
INTEGERS = (torch.int64, torch.uint8, torch.int16)


def check(x: torch.Tensor, descending: bool) -> None:
    got = torch_gpuprims.sort(x.cuda(), descending=descending)
    order = x.sort(dim=-1, descending=descending, stable=True)
    assert torch.equal(got.indices.cpu(), order.indices), (x.shape, x.dtype, descending)
    assert torch.equal(got.values.cpu(), order.values), (x.shape, x.dtype, descending)
    keys = torch_gpuprims.sort_keys(x.cuda(), descending=descending).cpu()
    assert torch.equal(keys, order.values), (x.shape, x.dtype, descending, "keys")


def segments(dtype: torch.dtype, g: torch.Generator) -> None:
    lengths = torch.tensor([0, 3, 70, 0, 257, 5000, 900, 0, 9000, 2, 20_000, 0, 8193])
    indptr = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    keys = torch.randint(0, 90, (int(indptr[-1]),), generator=g).to(dtype)
    got = torch_gpuprims.segment_sort(keys.cuda(), indptr.cuda())
    expected = torch_gpuprims.segment_sort(keys, indptr)
    assert torch.equal(got.indices.cpu(), expected.indices)
    assert torch.equal(got.keys.cpu(), expected.keys)
    bad = torch_gpuprims.segment_sort(keys.cuda(), indptr.flip(0).cuda())
    assert bool((bad.indices == -1).all())


def run() -> None:
    g = torch.Generator().manual_seed(1)
    for n in LENGTHS:
        for dtype in FLOATS + INTEGERS:
            if n > 8193 and dtype not in (torch.float32, torch.int64):
                continue
            x = torch.randn(3, n, generator=g)
            check(x.to(dtype) if dtype.is_floating_point else (x * 40).abs().to(dtype), n % 2 == 0)
    for kind in ("equal", "sorted", "reversed"):
        x = torch.arange(20_000.0)
        x = x * 0 if kind == "equal" else x if kind == "sorted" else x.flip(0)
        check(x, False)
    x = torch.randint(0, 1 << 20, (20_000,), generator=g)
    check(x, False)
    order = torch_gpuprims.argsort(x.cuda(), index_dtype=torch.int32).cpu()
    assert torch.equal(order.long(), x.sort(stable=True).indices)
    got = torch_gpuprims.sort_by_key(x.cuda(), x.cuda(), begin_bit=4, end_bit=15)[1].cpu()
    assert torch.equal(got, x[((x >> 4) % 2048).sort(stable=True).indices])
    for dtype in (torch.float32, torch.int64):
        segments(dtype, g)
    torch.cuda.synchronize()
