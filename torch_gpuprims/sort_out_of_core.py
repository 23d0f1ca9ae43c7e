"""Sorting more than the device holds: chunks are sorted there, and then blocks of the chunks' merge."""

import bisect
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .sort import check_payload, sort_by_key
from .topk import _DTYPES, _name

_Columns = tuple[torch.Tensor, ...]


def _row_bytes(columns: _Columns) -> int:
    return sum(t[:1].numel() * t.element_size() if len(t) else t.element_size() for t in columns)


def _needed(columns: _Columns) -> int:
    """Device bytes an element of a chunk takes: columns in and out, 64-bit indices, the sort's workspace (a
    second buffer of keys and 32-bit indices, and 5 %)."""
    return 2 * _row_bytes(columns) + 8 + max(8, columns[0].element_size() + 4) + 1


def _default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def sort_out_of_core(
    keys: torch.Tensor,
    *values: torch.Tensor,
    budget: int,
    descending: bool = False,
    device: torch.device | str | None = None,
) -> tuple[torch.Tensor, ...]:
    """Sort an array in host memory on a device that need not hold it; stable, as `sort`.

    Args:
        keys: [n] on the CPU, any dtype that `sort` takes.
        values: payloads [n, ...] on the CPU, brought into the same order.
        budget: device memory that may be used, in bytes.
        descending: the largest first; equal keys keep their order.
        device: where to sort; by default the CUDA device, or the CPU where there is none.

    Returns:
        (keys, *values), new CPU tensors. The inputs are never written: an interrupted call loses nothing.

    Method: chunks of half the budget are sorted and come back as runs. Splitters, taken from a regular
    sample of the runs and made distinct by (run, position), cut all runs into blocks of at most a chunk; the
    pieces of a block, run after run, are sorted in turn, which merges them stably. Copies to and from the
    device overlap with sorting; host memory: one more copy of the data. Waits for the device.

    Not differentiable. Deterministic: the answer, as that of `sort`, is unique.

    Raises:
        TypeError: the budget is not an integer.
        RuntimeError: the budget is too small for the splitters to work with (the message says how much is
            needed), keys and values do not fit each other or are not dense CPU tensors, or the keys' dtype or
            the device is not as above.

    >>> sort_out_of_core(torch.tensor([3, 1, 2]), budget=1 << 20)
    (tensor([1, 2, 3]),)
    """
    op = "sort_out_of_core"
    try:
        budget = operator.index(budget)
    except TypeError:
        raise TypeError(f"{op}: budget must be an integer, got {budget!r}") from None
    columns = (keys, *values)
    for at, t in enumerate(columns):
        name = f"payload {at - 1}" if at else "keys"
        if t.layout is not torch.strided:
            raise RuntimeError(f"{op}: {name} must be a dense tensor, got a sparse layout")
        if t.device.type != "cpu":
            raise RuntimeError(f"{op}: keys and payloads must be on the CPU, got {t.device}")
    if keys.dtype not in _DTYPES:
        raise RuntimeError(f"{op}: dtype {_name(keys.dtype)} is not supported")
    if keys.dim() != 1:
        raise RuntimeError(f"{op}: keys must have 1 dimension, got {keys.dim()}")
    n = len(keys)
    for at, payload in enumerate(values):
        check_payload(op, f"payload {at}", payload, keys)
    place = _default_device() if device is None else torch.device(device)
    if place.type not in ("cpu", "cuda"):
        raise RuntimeError(f"{op}: device must be a CUDA device or the CPU, got {place}")
    chunk = budget // (2 * _needed(columns))  # two chunks are under way at a time
    least = max(1, next(m for m in _halves(n) if m * m >= 4 * n))
    if chunk < min(least, n):
        need = 2 * _needed(columns) * min(least, n)
        raise RuntimeError(f"{op}: budget must be at least {need} bytes for {n} elements, got {budget}")
    columns = tuple(t.detach() for t in columns)
    if n <= chunk:
        return _drained(_pipeline([columns], place, descending))[0]
    runs = _drained(_pipeline(_chunks(columns, chunk), place, descending))
    out = tuple(torch.empty(t.shape, dtype=t.dtype) for t in columns)
    begin = 0
    for block in _pipeline(_blocks(runs, chunk, descending), place, descending):
        end = begin + len(block[0])
        for to, part in zip(out, block, strict=True):
            to[begin:end] = part
        begin = end
    return out


def _halves(n: int) -> Iterator[int]:
    """1, 2, 4 ... and on."""
    m = 1
    while True:
        yield m
        m *= 2


def _chunks(columns: _Columns, size: int) -> Iterator[_Columns]:
    for begin in range(0, len(columns[0]), size):
        yield tuple(t[begin : begin + size] for t in columns)


def _drained(blocks: Iterator[_Columns]) -> list[_Columns]:
    return [tuple(t.clone() for t in block) for block in blocks]


def _sorted(columns: _Columns, descending: bool) -> _Columns:
    return sort_by_key(*columns, descending=descending)


def _pipeline(blocks: Any, device: torch.device, descending: bool) -> Iterator[_Columns]:
    """Each block sorted, in turn; one is computed while its neighbours are copied. A result that is handed
    out is valid until the next one is asked for."""
    if device.type != "cuda":
        for block in blocks:
            yield _sorted(block, descending)
        return
    slots = [_Slot(device), _Slot(device)]
    waiting: list[_Slot] = []
    for i, block in enumerate(blocks):
        if len(waiting) == len(slots):
            yield waiting.pop(0).result()
        slot = slots[i % len(slots)]
        slot.start(block, descending)
        waiting.append(slot)
    for slot in waiting:
        yield slot.result()


class _Slot:
    """A stream with pinned buffers for what goes up and comes down."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.device = device
        self.up: list[torch.Tensor] = []
        self.down: list[torch.Tensor] = []
        self.size = 0

    def _staged(self, buffers: list[torch.Tensor], block: _Columns) -> list[torch.Tensor]:
        n = len(block[0])
        if not buffers or len(buffers[0]) < n:
            buffers[:] = [torch.empty((n, *t.shape[1:]), dtype=t.dtype, pin_memory=True) for t in block]
        return [t[:n] for t in buffers]

    def start(self, block: _Columns, descending: bool) -> None:
        up, down = self._staged(self.up, block), self._staged(self.down, block)
        for to, t in zip(up, block, strict=True):
            to.copy_(t)
        with torch.cuda.stream(self.stream):
            on_device = tuple(t.to(self.device, non_blocking=True) for t in up)
            for to, t in zip(down, _sorted(on_device, descending), strict=True):
                to.copy_(t, non_blocking=True)
        self.size = len(block[0])

    def result(self) -> _Columns:
        self.stream.synchronize()
        return tuple(t[: self.size] for t in self.down)


# Cutting runs into blocks ---------------------------------------------------------------------------------


def _order(descending: bool) -> Callable[[Any], Any]:
    """A function of an element whose values Python compares in the order of the sort, NaN last."""

    def ascending(value: Any) -> tuple[bool, Any]:
        return (True, 0) if value != value else (False, value)

    def reverse(value: Any) -> tuple[bool, Any]:
        return (False, 0) if value != value else (True, -value)

    return reverse if descending else ascending


class _Run(Sequence[Any]):
    """A run's keys, one at a time, for bisection."""

    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, at: Any) -> Any:
        return self.keys[at].item()


def _blocks(runs: list[_Columns], size: int, descending: bool) -> Iterator[_Columns]:
    """Blocks of at most `size` elements that follow each other in the order of the sort; in each the runs'
    pieces stand in the order of the runs."""
    spacing = max(1, size // (4 * len(runs)))
    samples, run_of, at = [], [], []
    for r, columns in enumerate(runs):
        positions = torch.arange(len(columns[0]) // spacing) * spacing + (spacing - 1)
        samples.append(columns[0][positions])
        run_of.append(torch.full_like(positions, r))
        at.append(positions)
    every = size // spacing - len(runs)  # samples between two cuts: a run adds less than one spacing
    order = _sorted((torch.cat(samples), torch.cat(run_of), torch.cat(at)), descending)
    rank = _order(descending)
    before = [0] * len(runs)
    for i in range(every, len(order[0]), every):
        splitter = rank(order[0][i].item())
        owner, position = int(order[1][i]), int(order[2][i])
        cut = [
            position if r == owner
            else bisect.bisect_right(_Run(run[0]), splitter, key=rank) if r < owner
            else bisect.bisect_left(_Run(run[0]), splitter, key=rank)
            for r, run in enumerate(runs)
        ]  # fmt: skip
        yield _gathered(runs, before, cut)
        before = cut
    yield _gathered(runs, before, [len(run[0]) for run in runs])


def _gathered(runs: list[_Columns], begin: list[int], end: list[int]) -> _Columns:
    pieces = [tuple(t[b:e] for t in run) for run, b, e in zip(runs, begin, end, strict=True)]
    return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))
