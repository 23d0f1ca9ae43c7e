"""Segments: the offsets that cut a flat tensor into segments, validated once."""

from typing import Any, NoReturn

import torch
from torch.utils import _pytree

#: kSegmentsChecked, kNoLongSegments and kShortSegments of csrc/topk: what the ops need not look at again.
_CHECKED, _NO_LONG, _SHORT = 1, 2, 4
_LONG_SEGMENT, _SHORT_SEGMENT = 65_536, 128


def _fail(words: str) -> NoReturn:
    raise ValueError(f"Segments: {words}")


def _check_vector(name: str, t: Any) -> None:
    if not isinstance(t, torch.Tensor):
        _fail(f"{name} must be a tensor, got {type(t).__name__}")
    if t.dim() != 1:
        _fail(f"{name} must have 1 dimension, got {t.dim()}")
    if t.dtype not in (torch.int32, torch.int64):
        _fail(f"{name} must be int32 or int64, got {str(t.dtype).removeprefix('torch.')}")


def _first(mask: torch.Tensor) -> int:
    return int(mask.nonzero()[0])


class Segments:
    """Segment s of a flat tensor is elements indptr[s] to indptr[s + 1]; CSR offsets.

    Segments may be empty. Making one validates the offsets on their device and waits for the answer; ops that
    are given Segments in place of indptr skip the check, and where all segments are short also the search for
    long ones. Offsets are copied, and kept as int32 where that holds them. A registered pytree: its leaf is
    indptr.

    Args:
        indptr: int32 or int64 [segments + 1], from 0 up to the number of elements, never decreasing.
        numel: the number of elements, to be compared with the last offset.

    Raises:
        ValueError: an offset is wrong; the message names the first.

    >>> Segments(torch.tensor([0, 2, 2, 5]))
    Segments(num_segments=3, numel=5, length mean 1.7 max 3, device='cpu')
    """

    def __init__(self, indptr: torch.Tensor, numel: int | None = None) -> None:
        _check_vector("indptr", indptr)
        if len(indptr) == 0:
            _fail("indptr must have at least 1 element, got 0")
        with torch.inference_mode(False):
            lengths = indptr[1:] - indptr[:-1]
            falls = indptr[1:] < indptr[:-1]
            longest = lengths.max() if len(lengths) else indptr.new_zeros(())
            # One wait for the device where all is well.
            start, end, any_falls, most = torch.stack(
                [indptr[0].long(), indptr[-1].long(), falls.any().long(), longest.long()]
            ).tolist()
            if start != 0:
                _fail(f"indptr must start at 0, got {start}")
            if any_falls:
                at = _first(falls) + 1
                _fail(
                    f"indptr must not decrease, but indptr[{at}] = {int(indptr[at])} follows "
                    f"{int(indptr[at - 1])}"
                )
            if numel is not None and end != numel:
                _fail(f"indptr must end at the number of elements ({numel}), got {end}")
            dtype = torch.int32 if end < 2**31 else torch.int64
            promises = _CHECKED | _NO_LONG * (most <= _LONG_SEGMENT) | _SHORT * (most <= _SHORT_SEGMENT)
            self._set(indptr.to(dtype, copy=True).contiguous(), end, promises)

    def _set(self, indptr: torch.Tensor, numel: int | None, promises: int) -> None:
        self.indptr = indptr
        self._numel = numel
        #: What the ops need not look at again (csrc/topk/segment_schema.cpp).
        self.promises = promises

    @classmethod
    def _of(cls, indptr: Any, numel: int | None, promises: int) -> "Segments":
        segments = cls.__new__(cls)
        segments._set(indptr, numel, promises)
        return segments

    @classmethod
    def from_lengths(cls, lengths: torch.Tensor) -> "Segments":
        """From the length of each segment, int32 or int64 [segments]."""
        _check_vector("lengths", lengths)
        if bool((lengths < 0).any()):
            at = _first(lengths < 0)
            _fail(f"lengths must not be negative, but lengths[{at}] = {int(lengths[at])}")
        return cls(torch.nn.functional.pad(lengths.long().cumsum(0), (1, 0)))

    @classmethod
    def from_ids(cls, ids: torch.Tensor, num_segments: int | None = None) -> "Segments":
        """From the segment of each element (as PyTorch Geometric's batch), never decreasing."""
        _check_vector("ids", ids)
        falls = ids[1:] < ids[:-1]
        if bool(falls.any()):
            at = _first(falls) + 1
            _fail(f"ids must not decrease, but ids[{at}] = {int(ids[at])} follows {int(ids[at - 1])}")
        last = int(ids[-1]) if len(ids) else -1
        count = last + 1 if num_segments is None else int(num_segments)
        if len(ids) and (int(ids[0]) < 0 or last >= count):
            wrong = int(ids[0]) if int(ids[0]) < 0 else last
            _fail(f"ids must be in [0, {count}), got {wrong}")
        bounds = torch.arange(count + 1, device=ids.device, dtype=ids.dtype)
        return cls(torch.searchsorted(ids.contiguous(), bounds))

    @property
    def num_segments(self) -> int:
        return self.indptr.shape[0] - 1

    @property
    def numel(self) -> int:
        """The number of elements; read from the device where the offsets were not validated."""
        return int(self.indptr[-1]) if self._numel is None else self._numel

    @property
    def device(self) -> torch.device:
        return self.indptr.device

    def lengths(self) -> torch.Tensor:
        """[segments]"""
        return self.indptr[1:] - self.indptr[:-1]

    def ids(self) -> torch.Tensor:
        """The segment of each element, int64 [numel]."""
        every = torch.arange(self.num_segments, device=self.device)
        return every.repeat_interleave(self.lengths().long(), output_size=self.numel)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Segments":
        """The same segments on another device; themselves where they are there already."""
        moved = self.indptr.to(device, non_blocking=non_blocking)
        return self if moved is self.indptr else Segments._of(moved, self._numel, self.promises)

    def __len__(self) -> int:
        return self.num_segments

    def __getstate__(self) -> tuple[Any, ...]:
        return self.indptr, self._numel, self.promises

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._set(*state)

    def __repr__(self) -> str:
        lengths = ""
        if self.num_segments > 0 and self.device.type != "meta":
            mean = self.numel / self.num_segments
            lengths = f"length mean {mean:.1f} max {int(self.lengths().max())}, "
        return (
            f"Segments(num_segments={self.num_segments}, numel={self.numel}, {lengths}device='{self.device}')"
        )


def _unflatten(leaves: Any, context: Any) -> Segments:
    """The leaf may be anything (tree_map): nothing is looked at, and so nothing is promised to the ops."""
    (indptr,) = leaves
    return Segments._of(indptr, None, 0)


_pytree.register_pytree_node(
    Segments,
    lambda segments: ([segments.indptr], None),
    _unflatten,
    serialized_type_name="torch_gpuprims.Segments",
    flatten_with_keys_fn=lambda segments: ([(_pytree.GetAttrKey("indptr"), segments.indptr)], None),
    to_dumpable_context=lambda context: context,
    from_dumpable_context=lambda context: context,
)
