"""ReorderCache among threads and CUDA streams."""

import gc
import threading

import pytest
import torch
from devices import no_cuda
from reorder_blocks import KIB, Packed, pair

from torch_gpuprims import ReorderCache


def test_threads_build_once_and_see_one_version(device: str) -> None:
    a, order = pair(device, 4096)
    cache = ReorderCache(1 << 20)
    built, wrong = [], []
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        def build(t: torch.Tensor) -> Packed:
            built.append(number)
            return Packed(t, order)

        for _ in range(20):
            barrier.wait()
            with cache.lease(a, build) as packed:
                wrong.append(not torch.equal(packed.values, a[order]))
            if barrier.wait() == 0:
                a.add_(1)
                if device == "cuda":
                    torch.cuda.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 160
    assert not any(wrong)
    assert len(built) == 1
    assert cache.stats()[:3] == (140, 1, 19)


def test_threads_with_sources_that_come_and_go() -> None:
    cache = ReorderCache(8 * KIB)
    failures: list[str] = []

    def work(seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        for _ in range(200):
            a = torch.randn(128 + seed, generator=g)
            for _ in range(2):
                if not torch.equal(cache.get(a, lambda t: t.flip(0)), a.flip(0)):
                    failures.append("wrong")
                a.mul_(2)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not failures
    stats = cache.stats()
    assert (stats.entries, stats.bytes) == (0, 0)
    assert stats.misses >= 6 * 200
    assert stats.hits + stats.misses + stats.refreshes == 2 * 6 * 200


@pytest.mark.gpu
@no_cuda
def test_a_hit_waits_for_the_stream_that_built() -> None:
    a, order = pair("cuda", 1 << 20)
    expected = a[order]
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(5):
        cache = ReorderCache(1 << 30)

        def build(t: torch.Tensor) -> torch.Tensor:
            torch.cuda._sleep(20_000_000)
            return t[order]

        with torch.cuda.stream(one):
            cache.get(a, build)
        with torch.cuda.stream(two):
            copy = cache.get(a, build).clone()
        two.synchronize()
        assert torch.equal(copy, expected)
        assert cache.stats()[:2] == (1, 1)
        torch.cuda.synchronize()


@pytest.mark.gpu
@no_cuda
def test_a_refresh_waits_for_readers_on_other_streams() -> None:
    a, order = pair("cuda", 1 << 20)
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    cache = ReorderCache(1 << 30)
    for _ in range(5):
        expected = a[order]
        torch.cuda.synchronize()
        with torch.cuda.stream(one):
            packed = cache.get(a, lambda t: Packed(t, order))
            torch.cuda._sleep(20_000_000)
            copy = packed.values.clone()  # still to come when the other stream refreshes
        with torch.cuda.stream(two):
            a.add_(1)
            again = cache.get(a, lambda t: Packed(t, order))
        torch.cuda.synchronize()
        assert torch.equal(copy, expected)
        assert torch.equal(again.values, a[order])
    assert cache.stats()[:3] == (4, 1, 5)


@pytest.mark.gpu
@no_cuda
def test_memory_of_an_evicted_block_is_not_reused_too_early() -> None:
    n = 1 << 20
    cache = ReorderCache(4 * n)  # one entry
    a, b = torch.full((n,), 1.0, device="cuda"), torch.full((n,), 2.0, device="cuda")
    two = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(5):
        cache.get(a, torch.clone)
        with torch.cuda.stream(two):
            packed = cache.get(a, torch.clone)
            torch.cuda._sleep(20_000_000)
            copy = packed.clone()
        del packed
        cache.get(b, torch.clone)  # evicts a's copy, whose reader has not started
        noise = [torch.full((n,), 3.0, device="cuda") for _ in range(4)]
        torch.cuda.synchronize()
        assert (copy == 1).all()
        del noise


@pytest.mark.gpu
@no_cuda
def test_capture_uses_hits_and_keeps_nothing() -> None:
    a, order = pair("cuda")
    cache = ReorderCache(64 * KIB)
    out = torch.empty_like(a)
    cache.get(a, lambda t: t[order])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(cache.get(a, lambda t: t[order]))
        other = cache.get(out, torch.neg)
    assert cache.stats()[:5] == (1, 1, 0, 0, 1)
    expected = a[order]
    for _ in range(3):
        graph.replay()
        assert torch.equal(out, expected)
        assert torch.equal(other, -expected)
