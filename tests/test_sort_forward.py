"""Tangents through the sorts: forward-mode derivatives, alone and over the backward pass."""

import pytest
import torch
from torch.autograd import forward_ad

from torch_gpuprims import segment_sort, sort, sort_by_key, sort_keys


def segments(t, indptr=(0, 2, 2, 6)):
    flat = t.reshape(-1)
    return segment_sort(flat, torch.tensor([*indptr[:-1], len(flat)], device=t.device)).keys


CALLS = {
    "sort": (lambda t: sort(t).values, lambda t: torch.sort(t).values),
    "sort, int32 indices": (
        lambda t: sort(t, 0, True, index_dtype=torch.int32).values,
        lambda t: torch.sort(t, 0, True).values,
    ),
    "sort_keys": (lambda t: sort_keys(t, 0, True), lambda t: torch.sort(t, 0, True).values),
    "segment_sort": (
        segments,
        lambda t: torch.cat([torch.sort(t.reshape(-1)[:2]).values, torch.sort(t.reshape(-1)[2:]).values]),
    ),
    "sort_by_key": (
        lambda t: torch.stack(sort_by_key(t.reshape(-1), t.reshape(-1) ** 2)),
        lambda t: torch.stack([torch.sort(t.reshape(-1)).values, torch.sort(t.reshape(-1)).values ** 2]),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_forward_mode(name, device):
    mine, theirs = CALLS[name]
    if name == "sort_by_key":  # torch.sort of positive numbers sorts their squares
        x = torch.rand(3, 4, device=device, dtype=torch.float64) + 0.1
    else:
        x = torch.randn(3, 4, device=device, dtype=torch.float64)
    tangent = torch.randn_like(x)
    want = torch.func.jvp(theirs, (x,), (tangent,))
    assert all(map(torch.equal, torch.func.jvp(mine, (x,), (tangent,)), want))
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(mine(forward_ad.make_dual(x, tangent)))
        assert torch.equal(dual.primal, want[0]) and torch.equal(dual.tangent, want[1])
        with torch.no_grad():
            dual = forward_ad.unpack_dual(mine(forward_ad.make_dual(x, tangent)))
            assert torch.equal(dual.tangent, want[1])
    assert torch.equal(torch.func.jacfwd(mine)(x), torch.func.jacfwd(theirs)(x))
    batch = torch.stack([x, x + 1 if name == "sort_by_key" else -x])
    tangents = torch.randn_like(batch)
    loop = [torch.func.jvp(mine, (t,), (d,))[1] for t, d in zip(batch, tangents, strict=True)]
    assert torch.equal(torch.func.jvp(torch.vmap(mine), (batch,), (tangents,))[1], torch.stack(loop))
    got = torch.vmap(lambda t, d: torch.func.jvp(mine, (t,), (d,))[1])(batch, tangents)
    assert torch.equal(got, torch.stack(loop))


@pytest.mark.parametrize("name", CALLS)
def test_second_derivatives(name, device):
    mine, theirs = CALLS[name]
    x = torch.rand(2, 3, device=device, dtype=torch.float64) + 0.1
    weight = torch.arange(1, 13, device=device, dtype=torch.float64)

    def loss(call):
        def weighted(t):
            out = call(t).reshape(-1)
            return (out.sin() * weight[: len(out)]).sum()

        return weighted

    torch.testing.assert_close(torch.func.hessian(loss(mine))(x), torch.func.hessian(loss(theirs))(x))
    assert torch.autograd.gradcheck(
        mine, x.requires_grad_(), check_forward_ad=True, check_batched_forward_grad=True
    )


def test_wrong_offsets_have_no_tangent(device):
    x = torch.randn(3, device=device)
    indptr = torch.tensor([0, 2], device=device)
    out, tangent = torch.func.jvp(lambda t: segment_sort(t, indptr).keys, (x,), (torch.ones_like(x),))
    assert bool(out.isnan().all()) and tangent.tolist() == [0, 0, 0]


def test_scalars_and_empty_rows(device):
    for x in (torch.tensor(2.0, device=device), torch.zeros(2, 0, device=device)):
        tangent = torch.ones_like(x)
        for call in (lambda t: sort(t).values, sort_keys):
            assert torch.equal(torch.func.jvp(call, (x,), (tangent,))[1], tangent)
