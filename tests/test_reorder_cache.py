"""ReorderCache: each hazard of a cache keyed by addresses, and those of threads and streams."""

import gc
import warnings

import pytest
import torch
from reorder_blocks import KIB, Packed, pair

from torch_gpuprims import ReorderCache


def test_hit_refresh_and_same_memory(device: str) -> None:
    a, order = pair(device)
    cache = ReorderCache(64 * KIB)
    first = cache.get(a, lambda t: Packed(t, order))
    address = first.values.data_ptr()
    assert cache.get(a, lambda t: Packed(t, order)) is first
    a.mul_(2)
    again = cache.get(a, lambda t: Packed(t, order))
    assert again is first
    assert again.values.data_ptr() == address
    assert torch.equal(again.values, a[order])
    assert cache.stats()[:5] == (1, 1, 1, 0, 0)
    assert cache.stats().bytes == first.values.nbytes
    assert again.filled == 2


def test_a_tensor_as_block_is_refreshed_in_its_memory(device: str) -> None:
    a, order = pair(device)
    cache = ReorderCache(64 * KIB)
    first = cache.get(a, lambda t: t[order])
    a[3] = 7
    again = cache.get(a, lambda t: t[order])
    assert again.data_ptr() == first.data_ptr()
    assert torch.equal(again, a[order])


def test_a_refresh_of_the_users_own(device: str) -> None:
    a, order = pair(device)
    cache = ReorderCache(64 * KIB)

    def refresh(packed: tuple[torch.Tensor, int], source: torch.Tensor) -> None:
        packed[0].copy_(source[order])

    first = cache.get(a, lambda t: (t[order], 5), refresh=refresh)
    a.neg_()
    assert cache.get(a, lambda t: (t[order], 5), refresh=refresh) is first
    assert torch.equal(first[0], a[order])
    assert cache.stats().bytes == first[0].nbytes


def test_every_way_of_writing_is_seen() -> None:
    a, order = pair()
    cache = ReorderCache(64 * KIB)
    parameter = torch.nn.Parameter(a.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        parameter.square().sum().backward()
        optimizer.step()

    def in_inference_mode() -> None:
        with torch.inference_mode():
            parameter.add_(1)

    def through_a_view() -> None:
        with torch.no_grad():
            parameter[3:5].fill_(9)

    def out() -> None:
        with torch.no_grad():
            torch.sin(a, out=parameter)

    cache.get(parameter, lambda t: t[order])
    for number, write in enumerate((step, in_inference_mode, through_a_view, out), 1):
        write()
        assert torch.equal(cache.get(parameter, lambda t: t[order]), parameter.detach()[order])
        assert cache.stats().refreshes == number
    assert not cache.get(parameter, lambda t: t[order]).requires_grad


def test_the_source_dies_and_its_address_is_reused(device: str) -> None:
    order = pair(device)[1]
    cache = ReorderCache(64 * KIB)
    memory = torch.zeros(256, device=device)  # views at one address, each a tensor of its own
    reused = 0
    for value in range(20):
        a = memory[:].detach() if value % 2 else torch.full((256,), float(value), device=device)
        if value % 2:
            a.data.fill_(value)  # neither address nor version tell it from the one before
        found = cache.get(a, lambda t: Packed(t, order))
        assert (found.values == value).all()
        reused += len(cache) == 1
        del a, found
        gc.collect()
        assert len(cache) == 0
        assert cache.stats().bytes == 0
    assert reused == 20


def test_another_tensor_at_a_living_entrys_address() -> None:
    """Two tensor objects of one memory: the second one's version says nothing about the first one's copy."""
    a, order = pair()
    cache = ReorderCache(64 * KIB)
    cache.get(a, lambda t: t[order])
    other = a.data  # a version counter of its own, at 0 like a's
    other.fill_(3)
    assert (other._version, a._version)[1] == 0
    assert (cache.get(other, lambda t: t[order]) == 3).all()


def test_shape_stride_dtype_and_key_are_told_apart() -> None:
    a = torch.arange(64.0)
    cache = ReorderCache(64 * KIB)
    square = a.view(8, 8)
    ways = (a, square, square.t(), a[8:], a.view(torch.int32), a[::2])
    for source in ways:
        assert torch.equal(cache.get(source, torch.clone), source)
        assert torch.equal(cache.get(source, torch.neg, key="neg"), -source)
    assert cache.stats()[:2] == (0, 2 * len(ways))
    assert len(cache) == 2 * len(ways)


def test_a_pattern_that_changes_makes_the_copy_anew() -> None:
    a, order = pair()
    cache = ReorderCache(64 * KIB)

    def get(pattern: torch.Tensor) -> torch.Tensor:
        return cache.get(a, lambda t: Packed(t, pattern.clone()), pattern=[pattern]).values

    assert torch.equal(get(order), a[order])
    assert torch.equal(get(order), a[order])
    order.copy_(order.flip(0).clone())
    assert torch.equal(get(order), a[order])
    other = torch.arange(256)
    assert torch.equal(get(other), a)
    assert cache.stats()[:3] == (1, 3, 0)


def test_invalidate_covers_what_versions_cannot_see(device: str) -> None:
    a, order = pair(device)
    cache = ReorderCache(64 * KIB)
    cache.get(a, lambda t: t[order])
    cache.get(a[10:], torch.clone)
    a.data.fill_(4)
    assert cache.get(a, lambda t: t[order])[0] != 4  # as documented
    assert cache.invalidate(a) >= 1
    assert (cache.get(a, lambda t: t[order]) == 4).all()
    assert cache.invalidate(torch.zeros(3, device=device)) == 0


def test_least_recently_used_leaves() -> None:
    cache = ReorderCache(3 * KIB)
    tensors = [torch.full((256,), float(i)) for i in range(4)]  # 1 KiB each
    for t in tensors[:3]:
        cache.get(t, torch.clone)
    cache.get(tensors[0], torch.clone)
    cache.get(tensors[3], torch.clone)  # 1 leaves
    assert cache.stats()[:4] == (1, 4, 0, 1)
    assert cache.stats().bytes == 3 * KIB
    cache.get(tensors[0], torch.clone)
    assert cache.stats().hits == 2
    cache.get(tensors[1], torch.clone)
    assert cache.stats()[:4] == (2, 5, 0, 2)


def test_larger_than_the_capacity_works_with_one_warning() -> None:
    a, order = pair()
    cache = ReorderCache(100)
    with pytest.warns(UserWarning, match="an entry of 1024 bytes is larger than the capacity of 100"):
        assert torch.equal(cache.get(a, lambda t: t[order]), a[order])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            a.add_(1)
            assert torch.equal(cache.get(a, lambda t: t[order]), a[order])
    assert cache.stats()[:6] == (0, 0, 0, 0, 4, 0)
    assert cache.stats().bytes == 0


def test_inference_tensors_are_never_kept() -> None:
    cache = ReorderCache(64 * KIB)
    with torch.inference_mode():
        a = torch.arange(4.0)
        cache.get(a, torch.clone)
        a.add_(1)
        assert torch.equal(cache.get(a, torch.clone), a)
    assert cache.stats()[:6] == (0, 0, 0, 0, 2, 0)


def test_a_block_built_in_inference_mode_can_be_refreshed_outside() -> None:
    a, order = pair()
    cache = ReorderCache(64 * KIB)
    with torch.inference_mode():
        cache.get(a, lambda t: t[order])
    a.add_(1)
    assert torch.equal(cache.get(a, lambda t: t[order]), a[order])


def test_a_build_or_refresh_that_raises_leaves_nothing_wrong() -> None:
    a, order = pair()
    cache = ReorderCache(64 * KIB)

    def fails(*_: object) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        cache.get(a, fails)
    assert len(cache) == 0
    cache.get(a, lambda t: t[order])
    a.add_(1)
    with pytest.raises(KeyError, match="mine"):
        cache.get(a, lambda t: t[order], refresh=fails)
    assert torch.equal(cache.get(a, lambda t: t[order]), a[order])


def test_a_lease_keeps_its_copy() -> None:
    a, order = pair()
    cache = ReorderCache(64 * KIB)
    before = a[order]
    with cache.lease(a, lambda t: Packed(t, order)) as packed:
        a.add_(1)
        other = cache.get(a, lambda t: Packed(t, order))
        assert torch.equal(packed.values, before)
        assert torch.equal(other.values, a[order])
    a.add_(1)
    assert cache.get(a, lambda t: Packed(t, order)) is other  # nobody holds it: the same memory
    assert torch.equal(other.values, a[order])


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="capacity_bytes must be an int >= 0, got -1"):
        ReorderCache(-1)
    with pytest.raises(RuntimeError, match="tensors must be dense"):
        ReorderCache(1).get(torch.eye(3).to_sparse(), torch.clone)
