"""A packed block among CUDA streams: its tensors, bytes, writer and readers."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch


def tensors_in(thing: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """The tensors of a block: itself, its items, its attributes."""
    if isinstance(thing, torch.Tensor):
        yield thing
        return
    if depth == 0 or isinstance(thing, str | bytes | int | float | type):
        return
    parts: list[Any] = []
    if isinstance(thing, dict):
        parts += thing.values()
    elif isinstance(thing, Sequence):
        parts += thing
    else:
        parts += getattr(thing, "__dict__", {}).values()
        for name in getattr(type(thing), "__slots__", ()):
            parts.append(getattr(thing, name, None))
    for part in parts:
        yield from tensors_in(part, depth - 1)


def bytes_of(block: Any) -> int:
    known = getattr(block, "nbytes", None)
    if isinstance(known, int):
        return known
    return sum({t.data_ptr(): t.nbytes for t in tensors_in(block)}.values())


def shares_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != 0
    except (NotImplementedError, RuntimeError):  # what torch.func wraps says nothing of its storage
        return False


def unshared(packed: Any, source: torch.Tensor) -> Any:
    """A copy of its own where `build` gave back source or a view of it: a refresh must not write there."""
    if isinstance(packed, torch.Tensor):
        return packed.clone() if shares_memory(packed, source) else packed
    if type(packed) is tuple:
        return tuple(unshared(part, source) for part in packed)
    return packed


def alike(old: Any, new: Any) -> bool:
    return (
        isinstance(old, torch.Tensor)
        and isinstance(new, torch.Tensor)
        and (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    )


class Block:
    """A packed copy and what is known of its readers and writer. A refresh that may not touch it (someone
    holds a lease) makes another."""

    def __init__(self, packed: Any) -> None:
        self.packed = packed
        self.leases = 0
        self.device = next((t.device for t in tensors_in(packed) if t.is_cuda), None)
        self.written: torch.cuda.Event | None = None
        self.readers: dict[
            int, torch.cuda.Stream
        ] = {}  # streams that were handed the block, ordered after it

    def was_written(self) -> None:
        """On the current stream, which alone is in order with the contents now."""
        if self.device is not None:
            stream = torch.cuda.current_stream(self.device)
            self.written = torch.cuda.Event()
            self.written.record(stream)
            self.readers = {stream.cuda_stream: stream}

    def hand_out(self) -> Any:
        """To the current stream, which waits for the writer's."""
        if self.device is not None:
            stream = torch.cuda.current_stream(self.device)
            if stream.cuda_stream not in self.readers:
                assert self.written is not None
                stream.wait_event(self.written)
                self.readers[stream.cuda_stream] = stream
                for t in tensors_in(self.packed):  # its memory goes back only when this stream is done, too
                    if t.is_cuda:
                        t.record_stream(stream)
        return self.packed

    def await_readers(self) -> None:
        """The current stream waits for whatever the others were given to do so far."""
        if self.device is not None:
            stream = torch.cuda.current_stream(self.device)
            for other in self.readers.values():
                if other.cuda_stream != stream.cuda_stream:
                    stream.wait_stream(other)
                    for t in tensors_in(self.packed):
                        if t.is_cuda:
                            t.record_stream(stream)
