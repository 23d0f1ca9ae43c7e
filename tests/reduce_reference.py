"""The tree of docs/reduce.md, written down once more in NumPy, one addition at a time."""

from collections.abc import Callable

import numpy as np

CHUNK, SLOTS, GROUP, FINALS = 4096, 32, 8, 256
PIECE, LANES = 64, 4


def _halve(parts: list[np.ndarray], add: Callable[..., np.ndarray]) -> np.ndarray:
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [add(parts[i], parts[i + half]) for i in range(half)]
    return parts[0]


def _pairs(parts: list[np.ndarray], add: Callable[..., np.ndarray]) -> np.ndarray:
    while len(parts) > 1:
        parts = [add(parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
    return parts[0]


def strided_class(step: int, n: int) -> bool:
    """Which of the two trees `reduce` takes, by the distance of reduced elements."""
    return n > 1 and step != 1


def tree(
    values: np.ndarray,
    itemsize: int,
    add: Callable[..., np.ndarray] = np.add,
    empty: float = 0.0,
    strided: bool = False,
) -> np.ndarray:
    """Adds up the last axis of `values`, whose dtype is the accumulator's; itemsize is the input's.

    strided: see strided_class.
    """
    n, vector = values.shape[-1], 16 // itemsize
    zero = np.full(values.shape[:-1], empty, values.dtype)
    with np.errstate(all="ignore"):
        chunks = [
            _strided(values[..., at : at + CHUNK], zero, add)
            if strided
            else _chunk(values[..., at : at + CHUNK], vector, zero, add)
            for at in range(0, n, CHUNK)
        ]
        groups = []
        for at in range(0, len(chunks), GROUP):
            mine = chunks[at : at + GROUP]
            groups.append(_pairs(mine + [zero] * (GROUP - len(mine)), add))
        finals = [zero] * FINALS
        for g, group in enumerate(groups):
            finals[g % FINALS] = add(finals[g % FINALS], group)
        return _halve(finals, add)


def _chunk(x: np.ndarray, vector: int, zero: np.ndarray, add: Callable[..., np.ndarray]) -> np.ndarray:
    accumulators = [zero] * (SLOTS * vector)
    for p in range(x.shape[-1]):
        a = p % len(accumulators)
        accumulators[a] = add(accumulators[a], x[..., p])
    slots = [_halve(accumulators[s * vector : (s + 1) * vector], add) for s in range(SLOTS)]
    return _halve(slots, add)


def _strided(x: np.ndarray, zero: np.ndarray, add: Callable[..., np.ndarray]) -> np.ndarray:
    pieces = [zero] * (CHUNK // PIECE)
    for at in range(0, x.shape[-1], PIECE):
        lanes = [zero] * LANES
        for p in range(at, min(at + PIECE, x.shape[-1])):
            lanes[p % LANES] = add(lanes[p % LANES], x[..., p])
        pieces[at // PIECE] = _halve(lanes, add)
    return _pairs(pieces, add)
