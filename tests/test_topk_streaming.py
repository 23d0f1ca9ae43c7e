"""StreamingTopK against one topk over the whole, however the stream is cut."""

import doctest
import sys
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_gpuprims import StreamingTopK, topk

cuda = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]
#: (device of the chunks, device of the selection, pinned)
PLACES = [
    pytest.param(("cpu", "cpu", False), id="cpu"),
    pytest.param(("cuda", "cuda", False), id="cuda", marks=cuda),
    pytest.param(("cpu", "cuda", False), id="pageable", marks=cuda),
    pytest.param(("cpu", "cuda", True), id="pinned", marks=cuda),
]


def place(x, where):
    chunks, _, pinned = where
    return x.pin_memory() if pinned else x.to(chunks)


def same(result, whole):
    assert torch.equal(result.values.cpu(), whole.values) and torch.equal(result.indices.cpu(), whole.indices)


@pytest.mark.parametrize("where", PLACES)
class TestStream:
    @given(
        cuts=st.lists(st.integers(0, 5000), max_size=6), k=st.sampled_from([0, 1, 20, 3000]),
        largest=st.booleans(), in_order=st.booleans(), seed=st.integers(0, 1000),
    )  # fmt: skip
    def test_any_chunks(self, where, cuts, k, largest, in_order, seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randint(0, 100, (5000,), generator=generator).float()
        ends = [0, *sorted(cuts), 5000]
        parts = list(pairwise(ends))
        stream = StreamingTopK(k, largest=largest, device=where[1], staging_bytes=4096)
        if not in_order:
            parts = [parts[i] for i in torch.randperm(len(parts), generator=generator).tolist()]
        for begin, end in parts:
            stream.update(place(x[begin:end], where), start=None if in_order else begin)
        assert stream.count == 5000
        same(stream.result(), topk(x, k, largest=largest))

    def test_nan_and_infinities(self, where):
        x = torch.tensor([1.0, torch.nan, -torch.inf, -torch.nan, torch.inf, 0.0, -0.0]).repeat(600)
        for largest in (True, False):
            stream = StreamingTopK(1500, largest=largest, device=where[1], staging_bytes=4096)
            for chunk in x.split(1100):
                stream.update(place(chunk, where))
            result, whole = stream.result(), topk(x, 1500, largest=largest)
            assert torch.equal(result.indices.cpu(), whole.indices)
            assert torch.equal(result.values.cpu().view(torch.int32), whole.values.view(torch.int32))

    def test_rows(self, where):
        x = torch.randint(0, 50, (3, 2, 4000)).to(torch.int32)
        for staging in (4096, 16_384, 1 << 20):  # a row is cut; some rows at a time; all of them
            stream = StreamingTopK(7, device=where[1], staging_bytes=staging)
            for chunk in x.split(1500, -1):
                stream.update(place(chunk, where))
            same(stream.result(), topk(x, 7))

    def test_given_indices(self, where):
        x = torch.randint(0, 9, (4000,)).double()
        order = torch.randperm(4000)
        stream = StreamingTopK(30, device=where[1], staging_bytes=4096)
        for at in order.split(700):
            stream.update(place(x[at], where), indices=at.to(where[0]))
        same(stream.result(), topk(x, 30))

    def test_fewer_than_k(self, where):
        stream = StreamingTopK(4, largest=False, device=where[1])
        stream.update(place(torch.tensor([2.0, 1.0]), where))
        values, indices = stream.result()
        assert values.tolist() == [1, 2, torch.inf, torch.inf] and indices.tolist() == [1, 0, -1, -1]

    def test_chunk_may_be_reused(self, where):
        """At once, or after the event of a call that did not wait."""
        x = torch.randn(20 * 30_000)
        buffer = place(torch.empty(30_000), where)
        waiting, going_on = (StreamingTopK(50, device=where[1], staging_bytes=32_768) for _ in range(2))
        for chunk in x.split(30_000):
            buffer.copy_(chunk)
            assert waiting.update(buffer) is None
            event = going_on.update(buffer, non_blocking=True)
            assert (event is not None) == (where[:2] == ("cpu", "cuda"))
            going_on.wait()
        same(waiting.result(), topk(x, 50))
        same(going_on.result(), topk(x, 50))

    def test_state_and_merge(self, where):
        x = torch.randint(0, 200, (6000,)).float()
        first, second = (StreamingTopK(40, device=where[1]) for _ in range(2))
        first.update(place(x[:1000], where))
        second.update(place(x[3000:], where), start=3000)
        restored = StreamingTopK(40, device=where[1])
        restored.load_state_dict(first.state_dict())
        assert (restored.count, restored.position) == (1000, 1000)
        restored.update(place(x[1000:3000], where))
        same(restored.merge(second).result(), topk(x, 40))
        assert restored.count == 6000 and restored.position == 6000
        empty = StreamingTopK(40)
        same(empty.merge(restored).result(), topk(x, 40))
        fresh = StreamingTopK(40)
        fresh.load_state_dict(StreamingTopK(40).state_dict())
        assert fresh.count == 0 and restored.merge(fresh) is restored

    def test_result_is_a_copy(self, where):
        stream = StreamingTopK(2, device=where[1])
        stream.update(place(torch.tensor([1.0, 2.0, 3.0]), where))
        stream.result().values.zero_()
        assert stream.result().values.tolist() == [3, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_streams_change_between_calls():
    x = torch.randn(400_000).pin_memory()
    stream = StreamingTopK(64, device="cuda", staging_bytes=1 << 18)
    sides = [torch.cuda.Stream() for _ in range(3)]
    for i, chunk in enumerate(x.split(37_000)):
        with torch.cuda.stream(sides[i % 3]):
            torch.cuda._sleep(2_000_000)
            stream.update(chunk, non_blocking=True)
    same(stream.result(), topk(x, 64))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_device_memory_is_bounded():
    x = torch.randn(50_000_000).pin_memory()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    stream = StreamingTopK(100, device="cuda", staging_bytes=8 << 20)
    stream.update(x)
    stream.result()
    assert torch.cuda.max_memory_allocated() - before <= 2 * (8 << 20) + (17 << 20)


@pytest.mark.parametrize("where", PLACES)
def test_inference_mode_comes_and_goes(where):
    x = torch.randn(9000)
    for modes in ((True, False), (False, True)):
        stream = StreamingTopK(5, device=where[1], staging_bytes=4096)
        for chunk, inference in zip(x.split(1500), modes * 3, strict=True):
            with torch.inference_mode(inference):
                stream.update(place(chunk.clone(), where))
        same(stream.result(), topk(x, 5))
        with torch.inference_mode():
            loaded = StreamingTopK(5, device=where[1])
            loaded.load_state_dict(stream.state_dict())
        loaded.update(place(x[:1], where))
        assert loaded.count == 9001


def test_indices_end_before_the_last_int64():
    stream = StreamingTopK(3)
    stream.update(torch.tensor([5, 6]), start=2**63 - 3)
    assert stream.result().indices.tolist() == [2**63 - 2, 2**63 - 3, -1]
    for start in (None, 2**63 - 1, 2**64):
        with pytest.raises(ValueError, match="start \\+ 1 elements must be at most 2\\^63 - 1, got start"):
            stream.update(torch.tensor([9]), start=start)
    assert stream.count == 2 and stream.position == 2**63 - 1
    stream.update(torch.tensor([9]), start=torch.tensor(4))  # an integer all the same
    assert stream.result().indices.tolist() == [4, 2**63 - 2, 2**63 - 3]


def test_numbers_are_integers():
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        StreamingTopK(2.5)
    stream = StreamingTopK(2)
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        stream.update(torch.zeros(3), start=1.5)
    assert stream.count == 0 and stream.dtype is None  # nothing has been taken
    stream.update(torch.zeros(3).double())


BAD = {
    "chunk must be float32, got float64": lambda s: s.update(torch.zeros(3).double()),
    "chunk must have shape ['n'], got [2, 3]": lambda s: s.update(torch.zeros(2, 3)),
    "chunk must have at least 1 dimension, got 0": lambda s: s.update(torch.zeros(())),
    "chunk must be a dense tensor, got a sparse layout": lambda s: s.update(torch.zeros(3).to_sparse()),
    "give start or indices, not both": lambda s: s.update(torch.zeros(3), 1, torch.arange(3)),
    "start must not be negative, got -1": lambda s: s.update(torch.zeros(3), -1),
    "indices must be int64, got int32": lambda s: s.update(torch.zeros(3), indices=torch.arange(3).int()),
    "indices must have the shape of chunk [3], got [2]": lambda s: s.update(
        torch.zeros(3), indices=torch.arange(2)
    ),
    "chunk must be on cpu, got meta": lambda s: s.update(torch.zeros(3, device="meta")),
    "indices must be on the device of chunk (cpu), got meta": lambda s: s.update(
        torch.zeros(3), indices=torch.arange(3, device="meta")
    ),
    "cannot merge largest=False into largest=True": lambda s: s.merge(filled(2, largest=False)),
    "cannot merge the best 1 of 5 into the best 2": lambda s: s.merge(filled(1)),
    "can merge a StreamingTopK alone, got int": lambda s: s.merge(3),
    "the state has k=3, not 2": lambda s: s.load_state_dict(filled(3).state_dict()),
    "chunk must be float32, got int64": lambda s: s.load_state_dict(
        {**filled(2).state_dict(), "values": torch.tensor([7, 8])}
    ),
    "there is no result before the first chunk": lambda s: StreamingTopK(2).result(),
    "k must not be negative, got -1": lambda s: StreamingTopK(-1),
    "dtype complex64 is not supported": lambda s: StreamingTopK(1, dtype=torch.complex64),
    "staging_bytes must be at least 4096, got 5": lambda s: StreamingTopK(1, staging_bytes=5),
}


def filled(k, **options):
    stream = StreamingTopK(k, **options)
    stream.update(torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0]))
    return stream


@pytest.mark.parametrize("words", BAD)
def test_errors_take_nothing(words):
    stream = filled(2)
    with pytest.raises(ValueError) as error:
        BAD[words](stream)
    assert str(error.value) == f"StreamingTopK: {words}"
    assert stream.result().indices.tolist() == [3, 4] and stream.count == 5


def test_docstring():
    assert doctest.testmod(sys.modules[StreamingTopK.__module__], extraglobs={"torch": torch}).failed == 0
    assert repr(filled(2)) == "StreamingTopK(k=2, largest=True, dtype=float32, device=cpu, count=5)"
