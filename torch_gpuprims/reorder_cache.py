"""ReorderCache: packed copies of tensors, kept while their sources stay as they are."""

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from .reorder_block import Block, alike, bytes_of, unshared


class CacheStats(NamedTuple):
    hits: int
    misses: int  # built for the first time, or anew because a pattern changed
    refreshes: int  # filled again because the source changed
    evictions: int  # left because others needed the room
    uncached: int  # built and not kept: no version, too large, or under capture
    entries: int
    bytes: int
    capacity_bytes: int


def _place(t: torch.Tensor) -> tuple[Hashable, ...]:
    if t.layout is not torch.strided:
        raise RuntimeError(f"ReorderCache: tensors must be dense, got {t.layout}")
    return t.data_ptr(), t.shape, t.stride(), t.dtype, t.device, t.is_conj(), t.is_neg()


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.RLock()  # one thread builds, the others wait for it
        self.source: weakref.ref[torch.Tensor] | None = None
        self.version: int | None = None  # the one that was packed; None: not valid
        self.pattern: tuple[tuple[weakref.ref[torch.Tensor], int], ...] = ()
        self.block: Block | None = None
        self.nbytes = 0

    def holds(self, source: torch.Tensor, pattern: Sequence[torch.Tensor]) -> bool:
        if self.source is None or self.source() is not source or self.version != source._version:
            return False
        return self.block is not None and self.follows(pattern)

    def follows(self, pattern: Sequence[torch.Tensor]) -> bool:
        if len(self.pattern) != len(pattern):
            return False
        for (ref, version), t in zip(self.pattern, pattern, strict=True):
            if ref() is not t or version != t._version:
                return False
        return True


class ReorderCache:
    """Packed copies of tensors, each built once and used until its source changes.

    `get(source, build)` returns the packed copy of `source`: the kept one where it is still good (a hit),
    the same memory filled again where `source` was written to since (a refresh), else build(source) (a miss).
    A packed copy is whatever build returns: a tensor, a tuple of tensors, or an object with
    `refresh(source)` and `nbytes`, such as PackedRows.

    An entry is found by source's address, shape, strides, dtype and device, by `key` and by
    `pattern`. It is good while source is the same tensor object at the same `_version`: PyTorch counts every
    in-place operation, so nobody has to set a flag. A weak reference drops the entry when source dies; a new
    tensor at the old address finds nothing. Pass the same tensor object in each call: a view made anew each
    time has its copy refreshed each time.

    Not seen: writes through `.data`, NumPy, DLPack, other kernels, or a replayed CUDA graph; call
    `invalidate(source)` after them. Tensors made in inference mode have no version and are never kept.

    Args:
        capacity_bytes: how much the packed copies may take, as they are built (not what a PackedRows adds
            later for its gradients). The entry used longest ago leaves first. A copy larger than this is
            built at each call, with one warning. While an entry is built it stands beside the others, so the
            peak is the capacity and one entry more.

    Streams: a copy that another stream wrote is waited for with an event; a refresh waits for all streams
    that were handed the copy; memory returns to the allocator only when they are done. In a captured graph
    a hit is used as it is (warm up before, as for any capture) and a miss is built in the graph, not kept.

    Threads: safe; one thread builds an entry and the others wait. If one thread may write to source while
    another is between `get` and its kernel's launch, that other one should hold a `lease`.

    No gradient passes through a kept copy: it is built without one.

    >>> cache = ReorderCache(1 << 20)
    >>> a, order = torch.arange(4.0), torch.tensor([2, 0, 3, 1])
    >>> cache.get(a, lambda t: t[order])
    tensor([2., 0., 3., 1.])
    >>> _ = cache.get(a, lambda t: t[order]), a.add_(1)
    >>> cache.get(a, lambda t: t[order]), cache.stats()[:3]
    (tensor([3., 1., 4., 2.]), (1, 1, 1))
    """

    def __init__(self, capacity_bytes: int) -> None:
        if not isinstance(capacity_bytes, int) or capacity_bytes < 0:
            raise ValueError(f"ReorderCache: capacity_bytes must be an int >= 0, got {capacity_bytes!r}")
        self.capacity_bytes = capacity_bytes
        self._lock = threading.Lock()  # of the table and the numbers; never held while something is built
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()  # the next to leave first
        self._dead: list[tuple[Hashable, _Entry]] = []
        self._bytes = 0
        self._counts = {"hits": 0, "misses": 0, "refreshes": 0, "evictions": 0, "uncached": 0}
        self._warned = False

    # Use ----------------------------------------------------------------------------------------------------

    def get(
        self, source: torch.Tensor, build: Callable[[torch.Tensor], Any], *, key: Hashable = None,
        pattern: Sequence[torch.Tensor] = (), refresh: Callable[[Any, torch.Tensor], Any] | None = None,
    ) -> Any:  # fmt: skip
        """The packed copy of source, ready on the current stream.

        Args:
            source: a dense tensor whose values are packed.
            build: source -> packed copy.
            key: what else decides the copy (layout, window, ...); hashable.
            pattern: the tensors that `build` also reads (indptr, indices). When one is replaced or written
                to, the copy is built anew.
            refresh: (packed, source) fills packed again; by default packed.refresh(source), or
                packed.copy_(build(source)) where packed is a tensor, else the copy is built anew.
        """
        return self._obtain(source, build, key, pattern, refresh, lease=False)[0]

    @contextmanager
    def lease(
        self, source: torch.Tensor, build: Callable[[torch.Tensor], Any], *, key: Hashable = None,
        pattern: Sequence[torch.Tensor] = (), refresh: Callable[[Any, torch.Tensor], Any] | None = None,
    ) -> Iterator[Any]:  # fmt: skip
        """`get` as a context: inside it no other thread's refresh writes to the copy (it makes another)."""
        packed, block, entry = self._obtain(source, build, key, pattern, refresh, lease=True)
        try:
            yield packed
        finally:
            if block is not None:
                assert entry is not None
                with entry.lock:
                    block.leases -= 1

    def invalidate(self, tensor: torch.Tensor) -> int:
        """Copies of this tensor's memory count as out of date: the next use refreshes them, or builds them
        anew where the tensor is in their pattern. How many."""
        storage, count = tensor.untyped_storage().data_ptr(), 0
        with self._lock:
            entries = list(self._entries.values())
        for entry in entries:
            source = None if entry.source is None else entry.source()
            followed = [t for ref, _ in entry.pattern if (t := ref()) is not None]
            in_pattern = any(t.untyped_storage().data_ptr() == storage for t in followed)
            if in_pattern or (source is not None and source.untyped_storage().data_ptr() == storage):
                with entry.lock:
                    entry.version = None
                    if in_pattern:
                        entry.pattern = ()
                count += 1
        return count

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def stats(self) -> CacheStats:
        with self._lock:
            self._bury()
            return CacheStats(
                **self._counts, entries=len(self._entries), bytes=self._bytes,
                capacity_bytes=self.capacity_bytes,
            )  # fmt: skip

    def __len__(self) -> int:
        return self.stats().entries

    # How ----------------------------------------------------------------------------------------------------

    def _obtain(
        self, source: torch.Tensor, build: Callable[[torch.Tensor], Any], key: Hashable,
        pattern: Sequence[torch.Tensor], refresh: Callable[[Any, torch.Tensor], Any] | None, lease: bool,
    ) -> tuple[Any, Block | None, _Entry | None]:  # fmt: skip
        name = (_place(source), key, tuple(_place(t) for t in pattern))
        if source.is_inference() or any(t.is_inference() for t in pattern):
            return self._uncached(source, build)
        # Whatever the source's device: what is built may be in the graph's memory.
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return self._captured(name, source, build, pattern)
        with self._lock:
            self._bury()
            entry = self._entries.get(name)
            if entry is None:
                entry = self._entries[name] = _Entry()
            self._entries.move_to_end(name)
        with entry.lock:
            kind = "hits"
            if not entry.holds(source, pattern):
                kind = self._bring_up_to_date(entry, name, source, build, pattern, refresh)
            block = entry.block
            assert block is not None
            if lease:
                block.leases += 1
            packed = block.hand_out()
        if kind == "hits":
            with self._lock:
                self._counts[kind] += 1
        else:
            self._settle(name, entry, kind)
        return packed, block, entry

    def _bring_up_to_date(
        self, entry: _Entry, name: Hashable, source: torch.Tensor, build: Callable[[torch.Tensor], Any],
        pattern: Sequence[torch.Tensor], refresh: Callable[[Any, torch.Tensor], Any] | None,
    ) -> str:  # fmt: skip
        entry.version = None  # until all is well
        try:
            with torch.inference_mode(False), torch.no_grad():
                return self._fill(entry, name, source, build, pattern, refresh)
        except BaseException:
            if entry.block is None:
                self._drop(name, entry)
            raise

    def _fill(
        self, entry: _Entry, name: Hashable, source: torch.Tensor, build: Callable[[torch.Tensor], Any],
        pattern: Sequence[torch.Tensor], refresh: Callable[[Any, torch.Tensor], Any] | None,
    ) -> str:  # fmt: skip
        same = entry.block is not None and entry.follows(pattern)
        # Versions are read before the data: a write that comes meanwhile makes the entry old, not wrong.
        version, followed = source._version, tuple((weakref.ref(t), t._version) for t in pattern)
        kind, block = "misses", entry.block
        if same and block is not None:
            kind = "refreshes"
            if block.leases == 0 and (refresh or hasattr(block.packed, "refresh")):
                block.await_readers()
                (refresh or type(block.packed).refresh)(block.packed, source)
            else:
                packed = unshared(build(source), source)
                if block.leases == 0 and alike(block.packed, packed):
                    block.await_readers()
                    block.packed.copy_(packed)
                else:
                    block = Block(packed)
        else:
            block = Block(unshared(build(source), source))
        block.was_written()
        if entry.source is None or entry.source() is not source:
            entry.source = weakref.ref(source, self._undertaker(name, entry))
        entry.block, entry.pattern, entry.version = block, followed, version
        return kind

    def _uncached(self, source: torch.Tensor, build: Callable[[torch.Tensor], Any]) -> tuple[Any, None, None]:
        with self._lock:
            self._counts["uncached"] += 1
        with torch.no_grad():
            return build(source), None, None

    def _captured(
        self, name: Hashable, source: torch.Tensor, build: Callable[[torch.Tensor], Any],
        pattern: Sequence[torch.Tensor],
    ) -> tuple[Any, None, None]:  # fmt: skip
        with self._lock:
            entry = self._entries.get(name)
        if entry is not None:
            with entry.lock:
                if entry.holds(source, pattern):
                    assert entry.block is not None
                    with self._lock:
                        self._counts["hits"] += 1
                    return entry.block.packed, None, None
        return self._uncached(source, build)

    def _settle(self, name: Hashable, entry: _Entry, kind: str) -> None:
        """Counts, and makes room for the entry that was just built."""
        assert entry.block is not None
        nbytes, warn = bytes_of(entry.block.packed), False
        with self._lock:
            if nbytes > self.capacity_bytes:
                self._remove(name, entry)
                self._counts["uncached"] += 1
                warn, self._warned = not self._warned, True
            else:
                self._counts[kind] += 1
                if self._entries.get(name) is entry:
                    self._bytes += nbytes - entry.nbytes
                    entry.nbytes = nbytes
                while self._bytes > self.capacity_bytes:
                    oldest = next(k for k, e in self._entries.items() if e is not entry and e.nbytes)
                    self._remove(oldest, self._entries[oldest])
                    self._counts["evictions"] += 1
        if warn:
            warnings.warn(
                f"ReorderCache: an entry of {nbytes} bytes is larger than the capacity of "
                f"{self.capacity_bytes}: such entries are built at each use",
                stacklevel=4,
            )

    def _remove(self, name: Hashable, entry: _Entry) -> None:
        if self._entries.get(name) is entry:
            del self._entries[name]
            self._bytes -= entry.nbytes

    def _drop(self, name: Hashable, entry: _Entry) -> None:
        with self._lock:
            self._remove(name, entry)

    def _undertaker(self, name: Hashable, entry: _Entry) -> Callable[[Any], None]:
        """What a source's death calls: in any thread, at any point, so it never waits for the lock."""
        of_cache, of_entry = weakref.ref(self), weakref.ref(entry)

        def bury(ref: Any) -> None:
            cache, dead = of_cache(), of_entry()
            if cache is None or dead is None or dead.source is not ref:
                return
            cache._dead.append((name, dead))
            if cache._lock.acquire(blocking=False):
                try:
                    cache._bury()
                finally:
                    cache._lock.release()

        return bury

    def _bury(self) -> None:
        while self._dead:
            name, entry = self._dead.pop()
            if entry.source is None or entry.source() is None:
                self._remove(name, entry)
