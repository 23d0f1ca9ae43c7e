"""Unknown columns, wrapped offsets, memory that is shared, odd shapes and dtypes of the reordering ops."""

import pytest
import torch
from torch.utils import _pytree

from torch_gpuprims import ReorderCache, gather_packed, pack_rows, spmv

INDPTR, INDICES = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 2, 0, 1])
VALUES = torch.tensor([1.0, -2.0, 3.0, 0.5, 4.0])


def packed_on(device, **how):
    return pack_rows(VALUES.to(device), INDPTR.to(device), indices=INDICES.to(device), **how)


def gradient(packed, size=3):
    x = torch.ones(size, device=packed.device, dtype=packed.dtype, requires_grad=True)
    spmv(packed, x).sum().backward()
    return x.grad.tolist()


def test_gradients_after_a_tree_map(device):
    want = [1.5, 2.0, 3.0]
    for packed in (packed_on(device), packed_on(device).prepare(3), packed_on(device).prepare(8)):
        again = _pytree.tree_map(lambda t: t.clone(), packed)
        assert gradient(again) == gradient(packed) == want
    double = _pytree.tree_map(lambda t: t.double() if t.is_floating_point() else t, packed_on(device))
    assert gradient(double) == want
    x = torch.ones(3, device=device)
    found = torch.func.grad(lambda x, p: spmv(p, x).sum())(x, packed_on(device))
    assert found.tolist() == want


def test_prepare_refuses_fewer_columns(device):
    for columns in (2, 0, -1):
        with pytest.raises(ValueError, match=r"prepare: columns must be at least 3 \(the largest index"):
            packed_on(device).prepare(columns)
    again = _pytree.tree_map(lambda t: t, packed_on(device))
    with pytest.raises(ValueError, match="prepare: columns must be at least 3"):
        again.prepare(2)
    assert gradient(packed_on(device).prepare(5), 5) == [1.5, 2.0, 3.0, 0.0, 0.0]


def test_offsets_whose_differences_wrap(device):
    ends = torch.tensor([0, 2**31 - 1, -(2**31) + 4, 3], dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="pack_rows: indptr must not decrease"):
        pack_rows(torch.zeros(3, dtype=torch.int8, device=device), ends, budget_bytes=1 << 40)
    slices = torch.tensor([0, 2**62, -(2**62) - 32, 64], device=device)
    ends = torch.zeros(97, dtype=torch.int32, device=device)
    out = torch.ops.gpuprims.pack_rows(torch.zeros(0, device=device), ends, slices, None, None, 64)
    assert out.isnan().all()


def test_gradients_of_gather_packed(device):
    a = torch.randn(3, 4, device=device, requires_grad=True)
    gather_packed(a, torch.empty(0, dtype=torch.int64, device=device)).values.sum().backward()
    assert torch.equal(a.grad, torch.zeros_like(a))
    b = torch.tensor([2, 0, 2, -1], device=device)
    for shape in ((3,), (3, 4)):
        z = torch.randn(shape, dtype=torch.complex64, device=device, requires_grad=True)
        weight = torch.randn((4, *shape[1:]), dtype=torch.complex64, device=device)
        (found,) = torch.autograd.grad((gather_packed(z, b).values * weight).sum().abs(), z)
        (want,) = torch.autograd.grad((z[b[:3]] * weight[:3]).sum().abs(), z)
        torch.testing.assert_close(found, want)


def test_view_of_one_element_and_of_its_own_memory(device):
    a = torch.arange(3.0, device=device)
    assert gather_packed(a, torch.tensor(1, device=device)).view().item() == 1
    packed = gather_packed(a, torch.tensor([2, 1, 0], device=device))
    rows = packed_on(device)
    for call in (lambda: packed.refresh(packed.values), lambda: rows.refresh(rows.values[:5])):
        with pytest.raises(RuntimeError, match="values must not lie in the memory that is filled"):
            call()


def test_fill_that_the_dtype_does_not_hold(device):
    b, ends = torch.tensor([0, -1], device=device), torch.tensor([0, 1], device=device)
    for dtype, fill in ((torch.int64, 1.5), (torch.uint8, -1), (torch.bool, 2), (torch.int8, float("nan")),
                        (torch.float32, None), (torch.int32, "x"), (torch.int16, 1j)):  # fmt: skip
        a = torch.zeros(1, dtype=dtype, device=device)
        with pytest.raises(ValueError, match="gather_packed: fill must be a number that"):
            gather_packed(a, b, fill=fill)
        with pytest.raises(ValueError, match="pack_rows: fill must be a number that"):
            pack_rows(a, ends, fill=fill)
    for dtype, fill in ((torch.int8, -128), (torch.uint8, 255.0), (torch.bool, True), (torch.float16, 1e-3)):
        a = torch.zeros(1, dtype=dtype, device=device)
        assert gather_packed(a, b, fill=fill).values[1] == torch.full((), fill, dtype=dtype)


def test_cache_and_what_shares_memory(device):
    cache = ReorderCache(1 << 20)
    z = torch.randn(4, dtype=torch.complex64, device=device)
    first, second = (cache.get(t, torch.clone) for t in (z, z.conj()))
    assert torch.equal(first, z) and torch.equal(second, z.conj())
    for build in (torch.Tensor.contiguous, lambda t: (t.view(-1), t * 2)):
        x = torch.randn(4, device=device)
        cache.get(x, build, key=build)
        x += 1
        version = x._version
        for _ in range(2):
            packed = cache.get(x, build, key=build)
            assert torch.equal(packed if isinstance(packed, torch.Tensor) else packed[0], x)
        assert x._version == version


def test_cache_invalidates_by_pattern(device):
    cache, a = ReorderCache(1 << 20), torch.arange(4.0, device=device)
    order = torch.tensor([3, 2, 1, 0], device=device)

    def read():
        return cache.get(a, lambda t: t[order], pattern=(order,)).tolist()

    assert read() == [3, 2, 1, 0]
    order.data.copy_(torch.tensor([0, 0, 1, 1]))
    assert cache.invalidate(order) == 1
    assert read() == [0, 0, 1, 1] and cache.stats().misses == 2
