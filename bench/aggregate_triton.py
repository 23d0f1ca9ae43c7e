"""A warp a row in Triton: the plain kernel that aggregation must never lose to (research's yardstick)."""

import torch
import triton
import triton.language as tl


@triton.jit
def _sum_rows(x, indptr, indices, out, features, WIDTH: tl.constexpr, EDGES: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    inside = columns < features
    edges = tl.arange(0, EDGES)
    begin = tl.load(indptr + row)
    end = tl.load(indptr + row + 1)
    total = tl.zeros([WIDTH], dtype=tl.float32)
    for at in range(begin, end, EDGES):
        there = at + edges < end
        source = tl.load(indices + at + edges, mask=there, other=0).to(tl.int64)
        places = x + source[:, None] * features + columns[None, :]
        rows = tl.load(places, mask=there[:, None] & inside[None, :], other=0.0)
        total += tl.sum(rows.to(tl.float32), axis=0)
    tl.store(out + row.to(tl.int64) * features + columns, total.to(out.dtype.element_ty), mask=inside)


def sum_rows(x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    rows, features = len(indptr) - 1, x.shape[1]
    out = torch.empty(rows, features, dtype=x.dtype, device=x.device)
    width = triton.next_power_of_2(features)
    edges = max(4, min(32, 512 // width))
    _sum_rows[(rows,)](x, indptr, indices, out, features, WIDTH=width, EDGES=edges, num_warps=1)
    return out
