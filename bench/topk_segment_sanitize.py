"""Small calls of segment_topk, merge_topk and StreamingTopK through every kernel; for compute-sanitizer."""

import torch

from torch_gpuprims import StreamingTopK, merge_topk, segment_topk, topk

LENGTHS = [
    ([3, 0, 10, 32, 1, 31, 0, 20], (1, 5, 40)),  # lanes shared
    ([33, 200, 512, 160, 161, 7], (3, 30)),  # a warp a segment
    ([600, 0, 9000, 33, 40_000], (3, 100, 1100)),  # a block a segment
    ([10, 70_000, 0, 140_000, 5], (1, 20, 300)),  # chunks
    ([9000, 100, 4097], (4100,)),  # two passes
]


def check(x: torch.Tensor, lengths: list[int], k: int, largest: bool) -> None:
    """Against the CPU kernel."""
    indptr = torch.tensor([0, *lengths]).cumsum(0)
    got = segment_topk(x.cuda(), indptr.cuda(), k, largest=largest)
    expected = segment_topk(x, indptr, k, largest=largest)
    assert torch.equal(got.indices.cpu(), expected.indices), (x.dtype, lengths, k)
    assert torch.equal(got.values.cpu(), expected.values), (x.dtype, lengths, k)


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
            got = segment_topk(torch.ones(n).cuda(), indptr.cuda(), 30)
            assert bool((got.indices == -1).all())
    got = segment_topk(
        torch.ones(64).cuda(), torch.tensor([0, 30, 64]).cuda(), torch.tensor([-1, 2]).cuda(), max_k=3
    )
    assert bool((got.indices == -1).all())


def merges(g: torch.Generator) -> None:
    for rows, m, k in ((5, 16, 4), (3, 64, 70), (3, 65, 10), (2, 513, 513), (1, 5000, 100)):
        x = torch.randn(rows, m, generator=g).mul(4).round()
        ids = torch.randint(-1, 2 * m, (rows, m), generator=g)
        got, expected = merge_topk(x.cuda(), ids.cuda(), k), merge_topk(x, ids, k)
        assert torch.equal(got.indices.cpu(), expected.indices), (rows, m, k)
        assert torch.equal(got.values.cpu(), expected.values), (rows, m, k)


def run() -> None:
    g = torch.Generator().manual_seed(3)
    dtypes = (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int32,
        torch.int16,
        torch.uint8,
    )
    for dtype in dtypes:
        for lengths, widths in LENGTHS:
            x = torch.randn(sum(lengths), generator=g).mul(20)
            x = x.to(dtype) if dtype.is_floating_point else x.abs().to(dtype)
            for k in widths:
                check(x, lengths, k, largest=k != 20)
    hostile()
    merges(g)
    x = torch.randn(30_000, generator=g)
    stream = StreamingTopK(25, device="cuda", staging_bytes=16_384)
    for chunk in x.split(7000):
        stream.update(chunk.pin_memory())
    assert torch.equal(stream.result().indices.cpu(), topk(x, 25).indices)
