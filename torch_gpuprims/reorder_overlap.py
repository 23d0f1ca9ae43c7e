"""overlapped: chunks are reordered on side streams while the current stream computes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from .reorder_block import tensors_in

_Chunk = TypeVar("_Chunk")
_Block = TypeVar("_Block")
_Result = TypeVar("_Result")


def overlapped(
    chunks: Iterable[_Chunk],
    reorder: Callable[[_Chunk], _Block],
    compute: Callable[[_Block], _Result],
    streams: int = 4,
    *,
    device: torch.device | str | None = None,
) -> list[_Result]:
    """[compute(reorder(chunk)) for chunk in chunks], with later chunks reordered while one is computed.

    Args:
        chunks: anything that reorder takes. It is iterated with the side stream of the chunk current, so a
            generator may make data there.
        reorder: chunk -> block, called with a side stream current: gathers, copies from pinned memory.
        compute: block -> result, called with the caller's stream current, in the order of the chunks.
        streams: side streams, and so blocks that exist at a time; at least 1.
        device: by default that of the first CUDA tensor in the first chunk, else the current CUDA device. On
            the CPU (or where there is no CUDA) everything runs in order.

    Returns the results, in the order of the chunks, ready on the caller's stream. Each stream waits for the
    others with events; the host waits for nothing. The same calls on the same data as without overlap: the
    same bits.

    Memory: block i is kept until its side stream has been told to wait for compute i, so its memory can serve
    block i + streams and never one that comes earlier; a result may share memory with its block.

    Errors: what reorder, compute or the iterator raises is raised here once all work of this call has ended.
    Chunks before the one that failed have been computed, as they would have been without overlap.

    It pays where one side leaves the device idle: a copy over PCIe beside kernels, small kernels beside each
    other. Two kernels that each fill the memory bus take as long together as one after the other.

    >>> overlapped([1, 2, 3], lambda i: torch.arange(i), lambda block: int(block.sum()))
    [0, 1, 3]
    """
    if not isinstance(streams, int) or streams < 1:
        raise ValueError(f"overlapped: streams must be an int >= 1, got {streams!r}")
    source = iter(chunks)
    first = list(_take_one(source))
    place = _device_of(first, device)
    source = _chain(first, source)
    if place.type != "cuda":
        return [compute(reorder(chunk)) for chunk in source]
    with torch.cuda.device(place):
        return _Pipeline(place, streams).run(source, reorder, compute)


def _take_one(source: Iterator[_Chunk]) -> Iterator[_Chunk]:
    for chunk in source:
        yield chunk
        return


def _chain(first: list[_Chunk], rest: Iterator[_Chunk]) -> Iterator[_Chunk]:
    yield from first
    yield from rest


def _device_of(first: list[Any], device: torch.device | str | None) -> torch.device:
    if device is not None:
        place = torch.device(device)
        if place.type == "cuda" and place.index is None:
            place = torch.device("cuda", torch.cuda.current_device())
        return place
    for t in tensors_in(first):
        if t.is_cuda:
            return t.device
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


class _Side:
    """A stream that reorders, and the block it made last."""

    def __init__(self, device: torch.device, main: torch.cuda.Stream) -> None:
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(main)  # what the chunks were made from
        self.chunk: Any = None
        self.block: Any = None
        self.ready = torch.cuda.Event()
        self.computed: torch.cuda.Event | None = None


class _Pipeline:
    def __init__(self, device: torch.device, streams: int) -> None:
        self.main = torch.cuda.current_stream(device)
        self.sides = [_Side(device, self.main) for _ in range(streams)]

    def run(
        self, chunks: Iterator[Any], reorder: Callable[[Any], Any], compute: Callable[[Any], Any]
    ) -> list[Any]:
        results: list[Any] = []
        waiting: deque[_Side] = deque()
        free = deque(self.sides)
        failure: BaseException | None = None
        try:
            more = True
            while more or waiting:
                if more and free:
                    side = free.popleft()
                    try:
                        more = self._reorder(side, chunks, reorder)
                    except BaseException as error:  # the chunks before this one are still computed
                        failure, more = error, False
                        continue
                    if more:
                        waiting.append(side)
                    continue
                if waiting:
                    side = waiting.popleft()
                    results.append(self._compute(side, compute))
                    free.append(side)
            if failure is not None:
                raise failure
            self._join()
        except BaseException:
            self._join()
            for side in self.sides:
                side.stream.synchronize()
            self.main.synchronize()
            raise
        return results

    def _reorder(self, side: _Side, chunks: Iterator[Any], reorder: Callable[[Any], Any]) -> bool:
        with torch.cuda.stream(side.stream):
            if side.computed is not None:
                side.stream.wait_event(side.computed)
            side.block = side.chunk = None  # from here on their memory serves this stream again
            for chunk in chunks:
                side.chunk = chunk
                side.block = reorder(chunk)
                side.ready.record(side.stream)
                return True
        return False

    def _compute(self, side: _Side, compute: Callable[[Any], Any]) -> Any:
        self.main.wait_event(side.ready)
        result = compute(side.block)
        side.computed = torch.cuda.Event()
        side.computed.record(self.main)
        mine = [t for t in tensors_in(result) if t.is_cuda]
        if mine:  # what shares memory with its block outlives it, and is used here
            block = (t for t in tensors_in((side.block, side.chunk)) if t.is_cuda)
            theirs = {t.untyped_storage().data_ptr() for t in block}
            for t in mine:
                if t.untyped_storage().data_ptr() in theirs:
                    t.record_stream(self.main)
        return result

    def _join(self) -> None:
        """What the caller's stream does next comes after the side streams' work."""
        for side in self.sides:
            if side.computed is not None:
                side.stream.wait_event(side.computed)
            self.main.wait_stream(side.stream)
            side.block = side.chunk = None
