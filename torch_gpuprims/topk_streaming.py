"""StreamingTopK: topk of a stream that comes in chunks, from host or device memory."""

from collections.abc import Iterator
from operator import index
from typing import Any, NoReturn

import torch

from .topk import _DTYPES, TopK, _name, topk
from .topk_merge import merge_topk

_LAST = 2**63 - 1  # the greatest index


def _fail(words: str) -> NoReturn:
    raise ValueError(f"StreamingTopK: {words}")


class _Staging:
    """Two device buffers, filled by a copy stream while the selection reads the other one."""

    def __init__(self, numel: int, dtype: torch.dtype, device: torch.device) -> None:
        self.numel = numel
        with torch.inference_mode(False):  # as in _begin
            self.buffers = [torch.empty(numel, dtype=dtype, device=device) for _ in range(2)]
        self.copies = torch.cuda.Stream(device)
        self.copies.wait_stream(torch.cuda.current_stream(device))  # the memory is free from here on
        self.copied = [torch.cuda.Event() for _ in range(2)]
        self.free = [torch.cuda.Event() for _ in range(2)]
        self.turn = 0

    def load(self, piece: torch.Tensor, compute: torch.cuda.Stream) -> tuple[torch.Tensor, int]:
        """The piece on the device, for work queued on `compute`; and the slot to `release`."""
        slot = self.turn
        self.turn = 1 - slot
        target = self.buffers[slot][: piece.numel()].view(piece.shape)
        self.copies.wait_event(self.free[slot])
        with torch.cuda.stream(self.copies):
            target.copy_(piece, non_blocking=True)
            self.copied[slot].record(self.copies)
        compute.wait_event(self.copied[slot])
        return target, slot

    def release(self, slot: int, compute: torch.cuda.Stream) -> None:
        self.free[slot].record(compute)


class StreamingTopK:
    """The k largest (or smallest) elements of a stream of chunks, with their global indices.

    After the last chunk `result()` equals one topk over the whole, bit for bit, whatever the chunks' sizes
    (0 included) and, where each is given its `start`, their order. Only k candidates a row are kept.

    Args:
        k: how many.
        largest: the largest elements; otherwise the smallest.
        dtype: of the elements; by default that of the first chunk. As in topk.
        device: where to select; by default the device of the first chunk. With "cuda", chunks in host memory
            are copied there through two buffers, by a stream of their own, so that a chunk is copied while
            the one before is looked at. Copies overlap with the host only from pinned memory
            (tensor.pin_memory()).
        staging_bytes: of each of the two buffers; longer chunks are cut.

    Memory: 2 k candidates a row and, for host chunks on CUDA, the two buffers; none on the host.

    Not differentiable (merge_topk is). Not for several threads at a time, nor for the capture of a CUDA
    graph: a replay does not count, and starts anew where the first chunk is in it.

    >>> stream = StreamingTopK(2)
    >>> for chunk in torch.tensor([[5, 1, 9], [9, 7, 0]]):
    ...     stream.update(chunk)
    >>> stream.result()
    TopK(values=tensor([9, 9]), indices=tensor([2, 3]))
    """

    def __init__(
        self, k: int, *, largest: bool = True, dtype: torch.dtype | None = None,
        device: torch.device | str | None = None, staging_bytes: int = 64 << 20,
    ) -> None:  # fmt: skip
        k = index(k)
        if k < 0:
            _fail(f"k must not be negative, got {k}")
        if staging_bytes < 4096:
            _fail(f"staging_bytes must be at least 4096, got {staging_bytes}")
        if dtype is not None and dtype not in _DTYPES:
            _fail(f"dtype {_name(dtype)} is not supported")
        self.k, self.largest, self.dtype = k, bool(largest), dtype
        self.device = None if device is None else torch.empty(0, device=device).device  # "cuda" is "cuda:0"
        self.staging_bytes = int(staging_bytes)
        #: Elements a row seen so far, and where a chunk without `start` would begin.
        self.count = self.position = 0
        self._shape: tuple[int, ...] | None = None  # of the rows
        self._values: torch.Tensor | None = None  # [rows, k], missing ones last
        self._indices: torch.Tensor | None = None
        self._staging: _Staging | None = None
        self._stream: torch.cuda.Stream | None = None  # on which the state was last written

    def update(
        self, chunk: torch.Tensor, start: int | None = None, indices: torch.Tensor | None = None,
        non_blocking: bool = False,
    ) -> "torch.cuda.Event | None":  # fmt: skip
        """Take a chunk [n], or [rows, n] (any leading dimensions), the same rows each time.

        Args:
            chunk: elements, on the device of the selection or in host memory.
            start: global index of the chunk's first element; by default where the last one ended. The
                chunk must end before 2^63 - 1.
            indices: instead, the global index of every element, int64 of the chunk's shape (negative: no
                element). An element given twice counts twice.
            non_blocking: for chunks in pinned memory. False: returns when the chunk has been copied and may
                be overwritten; the selection goes on. True: returns at once, with an event; the chunk must
                stay as it is until event.synchronize(), or wait().

        Returns:
            None, or with non_blocking=True for a host chunk on CUDA the event of its copy.

        Raises:
            ValueError: shape, dtype, device, start or indices do not fit; nothing has been taken.
            TypeError: start is not an integer; nothing has been taken.
        """
        chunk = chunk.detach()
        given, start = start is not None, self.position if start is None else index(start)
        device = self._check(chunk, start if given else None, indices)
        n, rows = chunk.shape[-1], chunk.shape[:-1].numel()
        if indices is None and start + n > _LAST:
            _fail(f"start + {n} elements must be at most 2^63 - 1, got start {start}")
        compute = self._join(device)
        self._begin(chunk, device)
        flat = chunk.reshape(rows, n)
        places = None if indices is None else indices.detach().reshape(rows, n)
        event = None
        if chunk.device == device:
            if n > 0:
                self._absorb(flat, slice(0, rows), start, places)
        else:
            assert compute is not None
            event = self._stage(flat, start, places, compute)
        self.count += n
        if indices is None:
            self.position = start + n
        if event is None or non_blocking:
            return event
        event.synchronize()
        return None

    def wait(self) -> None:
        """Wait until every chunk given so far has been copied and may be overwritten."""
        if self._staging is not None:
            self._staging.copies.synchronize()

    def result(self) -> TopK:
        """(values, indices), [k] or [rows, k], of all that was given. Where that is less than k a row,
        missing slots come last: index -1, value -inf (largest) or +inf, integers' least or greatest."""
        if self._values is None or self._indices is None or self._shape is None:
            _fail("there is no result before the first chunk")
        self._join(self._values.device)
        shape = (*self._shape, self.k)
        return TopK(self._values.clone().view(shape), self._indices.clone().view(shape))

    def merge(self, other: "StreamingTopK") -> "StreamingTopK":
        """Take what another one has seen (of other parts of the same whole); returns self.

        Both must have the same rows, dtype and direction; the other's k must be no smaller, unless it has
        seen no more than its k.
        """
        if not isinstance(other, StreamingTopK):
            _fail(f"can merge a StreamingTopK alone, got {type(other).__name__}")
        if other._values is None or other._indices is None:
            return self
        if other.largest != self.largest:
            _fail(f"cannot merge largest={other.largest} into largest={self.largest}")
        if other.k < self.k and other.count > other.k:
            _fail(f"cannot merge the best {other.k} of {other.count} into the best {self.k}")
        values, indices = other.result()
        count, position = self.count, self.position
        if self.device is None:
            self.device = values.device
        self.update(values.to(self.device), indices=indices.to(self.device))
        self.count, self.position = count + other.count, max(position, other.position)
        return self

    def state_dict(self) -> dict[str, Any]:
        """What load_state_dict needs to go on from here; tensors and numbers alone."""
        values, indices = (None, None) if self._values is None else self.result()
        numbers = {name: getattr(self, name) for name in ("k", "largest", "count", "position")}
        return {**numbers, "values": values, "indices": indices}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace what was seen by a saved state; k and largest must be those of the state."""
        for name in ("k", "largest"):
            if state[name] != getattr(self, name):
                _fail(f"the state has {name}={state[name]}, not {getattr(self, name)}")
        values, indices = state["values"], state["indices"]
        fresh = StreamingTopK(
            self.k, largest=self.largest, dtype=self.dtype, device=self.device,
            staging_bytes=self.staging_bytes,
        )  # fmt: skip
        if values is not None:
            device = self.device or values.device
            fresh.update(values.to(device), indices=indices.to(device))
        fresh.count, fresh.position = state["count"], state["position"]
        self.wait()
        self.__dict__.update(fresh.__dict__)

    def __repr__(self) -> str:
        dtype = "None" if self.dtype is None else _name(self.dtype)
        return (
            f"StreamingTopK(k={self.k}, largest={self.largest}, dtype={dtype}, device={self.device}, "
            f"count={self.count})"
        )

    def _check(self, chunk: torch.Tensor, start: int | None, indices: torch.Tensor | None) -> torch.device:
        """Where to select; raises before anything has changed."""
        if chunk.layout is not torch.strided:
            _fail("chunk must be a dense tensor, got a sparse layout")
        if chunk.dim() < 1:
            _fail("chunk must have at least 1 dimension, got 0")
        dtype = self.dtype or chunk.dtype
        if dtype not in _DTYPES:
            _fail(f"dtype {_name(dtype)} is not supported")
        if chunk.dtype != dtype:
            _fail(f"chunk must be {_name(dtype)}, got {_name(chunk.dtype)}")
        device = self.device or chunk.device
        if chunk.device != device and (chunk.device.type != "cpu" or device.type != "cuda"):
            _fail(f"chunk must be on {device}{' or cpu' * (device.type == 'cuda')}, got {chunk.device}")
        if self._shape is not None and tuple(chunk.shape[:-1]) != self._shape:
            _fail(f"chunk must have shape {[*self._shape, 'n']}, got {list(chunk.shape)}")
        if start is not None and indices is not None:
            _fail("give start or indices, not both")
        if start is not None and start < 0:
            _fail(f"start must not be negative, got {start}")
        if indices is not None:
            if indices.dtype != torch.int64:
                _fail(f"indices must be int64, got {_name(indices.dtype)}")
            if indices.shape != chunk.shape:
                _fail(f"indices must have the shape of chunk {list(chunk.shape)}, got {list(indices.shape)}")
            if indices.device != chunk.device:
                _fail(f"indices must be on the device of chunk ({chunk.device}), got {indices.device}")
        return device

    def _join(self, device: torch.device) -> "torch.cuda.Stream | None":
        """The current stream, behind the work that wrote the state."""
        if device.type != "cuda":
            return None
        current = torch.cuda.current_stream(device)
        if self._stream is not None and self._stream != current:
            current.wait_stream(self._stream)
            kept = [self._values, self._indices, *(self._staging.buffers if self._staging else ())]
            for tensor in kept:
                if tensor is not None:
                    tensor.record_stream(current)  # made on another stream: not to be reused too early
        self._stream = current
        return current

    def _begin(self, chunk: torch.Tensor, device: torch.device) -> None:
        if self._values is not None:
            return
        self.dtype, self.device, self._shape = chunk.dtype, device, tuple(chunk.shape[:-1])
        rows = chunk.shape[:-1].numel()
        with torch.inference_mode(False):  # inference tensors could not be written to outside of that mode
            nothing = torch.empty(rows, 0, dtype=chunk.dtype, device=device)
            self._values, self._indices = merge_topk(
                nothing, nothing.to(torch.int64), self.k, largest=self.largest
            )

    def _absorb(self, piece: torch.Tensor, rows: slice, start: int, indices: torch.Tensor | None) -> None:
        """Merge the best of a piece [rows, n] into the state of these rows."""
        assert self._values is not None and self._indices is not None
        if indices is None:  # positions rise with the indices, so topk's ties are right
            best, places = topk(piece, min(self.k, piece.shape[-1]), largest=self.largest)
            places = places + start
        else:
            best, places = merge_topk(piece, indices, self.k, largest=self.largest)
        values, merged = merge_topk(
            torch.cat([self._values[rows], best], -1),
            torch.cat([self._indices[rows], places], -1),
            self.k,
            largest=self.largest,
        )
        self._values[rows], self._indices[rows] = values, merged

    def _stage(
        self, flat: torch.Tensor, start: int, indices: torch.Tensor | None, compute: torch.cuda.Stream
    ) -> torch.cuda.Event:
        """Copy a host chunk [rows, n] piece by piece, and queue the selection of each."""
        assert self.device is not None
        room = max(self.staging_bytes // flat.element_size(), 1)
        if self._staging is None or self._staging.numel < min(flat.numel(), room):
            if self._staging is not None:
                compute.wait_stream(self._staging.copies)  # the old buffers are free only then
            self._staging = _Staging(min(flat.numel(), room), flat.dtype, self.device)
        staging = self._staging
        for rows, columns in _pieces(flat.shape[0], flat.shape[1], staging.numel):
            piece = flat[rows, columns]
            there, slot = staging.load(piece, compute)
            places = None
            if indices is not None:
                places = indices[rows, columns].to(self.device)
            self._absorb(there, rows, start + columns.start, places)
            staging.release(slot, compute)
        event = torch.cuda.Event()
        event.record(staging.copies)
        return event


def _pieces(rows: int, n: int, room: int) -> Iterator[tuple[slice, slice]]:
    """Cuts [rows, n] into contiguous pieces of at most `room` elements: of whole rows where one fits."""
    if n == 0:
        return
    if n <= room:
        step = room // n
        for first in range(0, rows, step):
            yield slice(first, min(first + step, rows)), slice(0, n)
        return
    for row in range(rows):
        for first in range(0, n, room):
            yield slice(row, row + 1), slice(first, min(first + room, n))
