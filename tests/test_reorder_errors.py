"""What reordering refuses, and says."""

import copy

import pytest
import torch
from torch.utils import _pytree

from torch_gpuprims import (
    Segments,
    explain,
    gather_packed,
    pack_rows,
    redirect,
    spmv,
    spmv_csr,
    unpack_rows,
)

raw = torch.ops.gpuprims


def at(*ends: int) -> torch.Tensor:
    return torch.tensor(ends)


def test_budget_is_checked_before_anything_is_allocated():
    rows, longest = 100_000, 30_000
    indptr = torch.zeros(rows + 1, dtype=torch.int64)
    indptr[-1] = longest
    words = (
        f"pack_rows: the packed copy of {longest} entries would take {rows * longest * 4} bytes "
        f"\\(rows x longest row = {rows} x {longest} -> {rows * longest} slots of 4 bytes\\), the budget is "
        f"{4 * 4 * longest + (16 << 20)}; layout='sliced' takes less where rows differ, or raise budget_bytes"
    )
    with pytest.raises(ValueError, match=f"^{words}$"):
        pack_rows(torch.zeros(longest), indptr)
    assert f"{rows * longest * 4} bytes, over the budget" in explain(
        "pack_rows", torch.zeros(longest), indptr
    )
    sliced = pack_rows(torch.zeros(longest), indptr, layout="sliced")
    assert sliced.num_slots == 32 * longest
    assert "within the budget" in explain("pack_rows", torch.zeros(longest), indptr, layout="sliced")
    with pytest.raises(ValueError, match="the budget is 100; a window takes less"):
        pack_rows(torch.zeros(longest), indptr, layout="sliced", budget_bytes=100)
    pack_rows(torch.zeros(3), at(0, 3), budget_bytes=12)
    with pytest.raises(ValueError, match="would take 12 bytes"):
        pack_rows(torch.zeros(3), at(0, 3), budget_bytes=11)


@pytest.mark.parametrize(
    "indptr, words",
    [
        (at(1, 3), "indptr must start at 0, got 1"),
        (at(0, 2, 1, 3), r"indptr must not decrease, but indptr\[2\] = 1 follows 2"),
        (at(0, 2), r"indptr must end at the number of values \(3\), got 2"),
    ],
)
def test_offsets_that_are_none(indptr, words, device):
    for how in ({}, {"layout": "sliced"}, {"layout": "sliced", "window": 32}):
        with pytest.raises(ValueError, match=f"^pack_rows: {words}$"):
            pack_rows(torch.zeros(3, device=device), indptr.to(device), **how)
    out = spmv_csr(
        indptr.to(device), at(0, 0, 0).to(device), torch.ones(3, device=device), torch.ones(1, device=device)
    )
    assert out.isnan().all()
    slots = 3 * (len(indptr) - 1)
    filled = raw.pack_rows(torch.ones(3, device=device), indptr.to(device), None, None, None, slots)
    assert filled.isnan().all()
    assert (
        raw.pack_rows(torch.ones(3, device=device).int(), indptr.to(device), None, None, None, slots) == 0
    ).all()


def test_bad_slices_and_orders_fill(device):
    values = torch.ones(5, device=device)
    indptr = at(0, 2, 5).to(device)
    for slices, order, slots in (
        (at(0, 64), None, 96),
        (at(0, 96), at(0, 2), 96),
        (None, at(-1, 0), 6),
        (None, None, 4),
    ):
        there = [None if t is None else t.to(device) for t in (slices, order)]
        assert raw.pack_rows(values, indptr, *there, None, slots).isnan().all()
        assert raw.unpack_rows(torch.ones(slots, device=device), indptr, *there, None, 5).isnan().all()
    good = raw.pack_rows(values, indptr, at(0, 96).to(device), at(1, 0).to(device), None, 96)
    assert good.sum() == 5


def test_indices(device):
    indptr, values = at(0, 2, 3).to(device), torch.ones(3, device=device)
    with pytest.raises(ValueError, match=r"indices must not be negative, but indices\[1\] = -4"):
        pack_rows(values, indptr, indices=at(0, -4, 0).to(device))
    packed = pack_rows(values, indptr, indices=at(0, 4, 0).to(device))
    with pytest.raises(
        RuntimeError, match=r"x must have at least 5 rows \(the largest index and one\), got 3"
    ):
        spmv(packed, torch.ones(3, device=device))
    # Raw ops: a row that reads outside of x is NaN, the others are not.
    for bad in (5, -2, 1 << 40):
        out = spmv_csr(indptr, at(0, bad, 0).to(device), values, torch.ones(3, device=device))
        assert out[0].isnan() and out[1] == 1
    slots = at(0, 0, 7, -1).int().to(device)
    out = raw.spmv(
        torch.ones(4, device=device), slots, indptr, None, None, None, torch.ones(3, device=device)
    )
    assert out[0].isnan() and out[1] == 1


def test_padding_is_not_multiplied(device):
    """0 * inf is NaN: slots that no entry fills are no products."""
    indptr, indices = at(0, 1, 4).to(device), at(1, 1, 1, 1).to(device)
    x = torch.tensor([float("inf"), 1.0], device=device)
    for layout in ("padded", "sliced"):
        packed = pack_rows(
            torch.ones(4, device=device), indptr, indices=indices, layout=layout, fill=float("nan")
        )
        assert spmv(packed, x).tolist() == [1, 3]


def test_words_about_arguments():
    values, indptr = torch.ones(3), at(0, 2, 3)
    for how, words in (
        ({"layout": "csr"}, "layout must be 'padded' or 'sliced', got 'csr'"),
        ({"window": 32}, "window is for layout='sliced'"),
        ({"layout": "sliced", "window": 33}, "window must be a positive multiple of 32, got 33"),
    ):
        with pytest.raises(ValueError, match=words):
            pack_rows(values, indptr, **how)
    with pytest.raises(RuntimeError, match="indices must have 3 elements, got 2"):
        pack_rows(values, indptr, indices=at(0, 1))
    with pytest.raises(RuntimeError, match="must be a dense tensor"):
        pack_rows(values.to_sparse(), indptr)
    with pytest.raises(ValueError, match="packed must have indices"):
        spmv(pack_rows(values, indptr), torch.ones(3))
    with pytest.raises(TypeError, match="packed must be PackedRows, got Tensor"):
        spmv(values, torch.ones(3))
    with pytest.raises(RuntimeError, match="spmv_csr: values must have 3 elements"):
        spmv_csr(Segments(indptr), at(0, 1), torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match=r"b must be in \[-1, 3\), but element 1 is 3"):
        redirect(at(0, 3), num_rows=3)
    with pytest.raises(ValueError, match="b must be an int32 or int64 tensor, got float32"):
        redirect(values)
    with pytest.raises(ValueError, match="a must have at least 3 rows, got 2"):
        redirect(at(0, 2)).pack(torch.ones(2))
    with pytest.raises(TypeError):
        gather_packed(values, at(0), out=values)
    with pytest.raises(RuntimeError, match=r"values must have shape \[3\] as before, got \[4\]"):
        gather_packed(values, at(0, 1)).refresh(torch.ones(4))


def test_builders_refuse_tracers():
    indptr = at(0, 2, 3)
    with pytest.raises(Exception, match="pack before tracing or capture"):
        torch.compile(lambda v: pack_rows(v, indptr).values, fullgraph=True, backend="eager")(torch.ones(3))


def test_pytree_and_pickle_keep_the_tensors(device):
    indptr = at(0, 2, 3).to(device)
    packed = pack_rows(
        torch.arange(3.0, device=device), indptr, indices=at(0, 1, 0).to(device), layout="sliced"
    )
    leaves, spec = _pytree.tree_flatten(packed)
    again = _pytree.tree_unflatten(leaves, spec)
    x = torch.ones(2, device=device)
    assert torch.equal(spmv(again, x), spmv(packed, x))
    assert torch.equal(unpack_rows(again), unpack_rows(packed))
    assert torch.equal(
        copy.deepcopy(packed).refresh(torch.ones(3, device=device)).unpack(), torch.ones(3, device=device)
    )
    assert torch.equal(unpack_rows(packed).cpu(), torch.arange(3.0))
    assert "sliced, 2 rows, 64 slots, 95.3 % padding" in repr(packed)
