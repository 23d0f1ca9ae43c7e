"""PackedRows: the values of CSR rows laid out in the order in which threads read them."""

import numbers
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree

from . import reorder_grad
from .aggregate_csr import sort_rows
from .reorder_block import shares_memory
from .reorder_fake import GROUP

_CHECKED = 1
_LAYOUTS = ("padded", "sliced")
_TENSORS = (
    "values",
    "indices",
    "indptr",
    "_slices",
    "order",
    "units",
    "_fill",
    "t_indptr",
    "t_indices",
    "t_ids",
)
Packing = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def fail(op: str, words: str) -> NoReturn:
    raise ValueError(f"{op}: {words}")


def seen_by_tracer(t: torch.Tensor) -> bool:
    """By a tracer, which would trace a builder, or by the capture of a CUDA graph, which it would break."""
    if torch.compiler.is_compiling() or isinstance(t, FakeTensor):
        return True
    return t.is_cuda and torch.cuda.is_current_stream_capturing()


def groups_of(widths: torch.Tensor) -> torch.Tensor:
    return ((widths + GROUP - 1) // GROUP).clamp(min=1)


def units_of(widths: torch.Tensor, count: int) -> torch.Tensor:
    """[2, count] int32: strip and group of 256 columns of each unit of work, in order.

    A strip of empty rows is a unit too: somebody writes its zeros."""
    groups = groups_of(widths)
    strips = torch.arange(len(widths), device=widths.device)
    strip = strips.repeat_interleave(groups, output_size=count)
    first = groups.cumsum(0) - groups
    group = torch.arange(count, device=widths.device) - first[strip]
    return torch.stack([strip, group]).int()


class PackedRows:
    """What pack_rows makes; take it as it is, its tensors belong together.

    Slot (i, p) holds value i of the row at position p: in the padded layout at i * num_rows + p, i below the
    longest row; in the sliced one at slices[s] + i * 32 + lane, where s, lane = divmod(p, 32) and i is below
    the longest row of the slice. Slots that no value fills hold `fill`, and in `indices` -1.

    A registered pytree: its leaves are its tensors. What comes back from a tree_map promises nothing to the
    ops, which then look at the offsets on each call.

    Attributes:
        values: [slots, ...]
        indices: [slots] int32 or int64, -1 in empty slots; or None
        indptr: [num_rows + 1], the offsets of the rows before packing
        order: [num_rows], the row at each position; None where row p is at position p
        units: [2, units] int32, how the kernels part slices wider than 256; or None
        layout: "padded" or "sliced"
        fill: what is in empty slots
    """

    values: torch.Tensor
    indices: torch.Tensor | None
    indptr: torch.Tensor
    order: torch.Tensor | None
    units: torch.Tensor | None
    layout: str
    fill: Any
    _slices: torch.Tensor | None  # None: padded
    _fill: torch.Tensor | None  # one element; None: zero
    t_indptr: torch.Tensor | None
    t_indices: torch.Tensor | None
    t_ids: torch.Tensor | None
    _entries: int | None
    _columns: int | None  # the largest index and one; None: not known
    _promises: int

    @classmethod
    def _of(
        cls,
        tensors: dict[str, Any],
        layout: str,
        fill: Any,
        entries: int | None,
        columns: int | None,
        promises: int,
    ) -> "PackedRows":
        packed = cls.__new__(cls)
        for name in _TENSORS:
            setattr(packed, name, tensors.get(name))
        packed.layout, packed.fill = layout, fill
        packed._entries, packed._columns, packed._promises = entries, columns, promises
        return packed

    def _with(self, **tensors: Any) -> "PackedRows":
        every = {name: getattr(self, name) for name in _TENSORS} | tensors
        return PackedRows._of(every, self.layout, self.fill, self._entries, self._columns, self._promises)

    @property
    def num_rows(self) -> int:
        return self.indptr.shape[0] - 1

    @property
    def num_entries(self) -> int:
        """Values before packing; read from the device where it is not known."""
        return int(self.indptr[-1]) if self._entries is None else self._entries

    @property
    def num_slots(self) -> int:
        return self.values.shape[0]

    @property
    def slices(self) -> torch.Tensor:
        """Where each slice begins, and the end: [slices + 1] int64; a padded layout is one slice."""
        if self._slices is not None:
            return self._slices
        return torch.tensor([0, self.num_slots], device=self.indptr.device)

    @property
    def lengths(self) -> torch.Tensor:
        """Of each row, [num_rows]"""
        return self.indptr[1:] - self.indptr[:-1]

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Of every tensor that it holds."""
        every = [getattr(self, name) for name in _TENSORS]
        return sum(t.nbytes for t in every if t is not None)

    @property
    def _packing(self) -> Packing:
        return self.indptr, self._slices, self.order, self.units

    def refresh(self, values: torch.Tensor) -> "PackedRows":
        """Fills the same memory with new values [num_entries, ...] of the same rows; returns itself.

        One launch on the current stream, no allocation, no synchronisation: a CUDA graph can capture it. Not
        differentiable (`repack` is). What reads the old values on another stream must be waited for.

        Raises:
            RuntimeError: shape, dtype or device differ from what was packed, or the packed values are part
                of an autograd graph.
        """
        if torch.is_grad_enabled() and (values.requires_grad or self.values.requires_grad):
            raise RuntimeError("refresh: values are written in place, without a gradient; use repack(values)")
        entries = self._entries
        if entries is None and not seen_by_tracer(values):
            entries = self.num_entries
        shape = (values.shape[0] if entries is None else entries, *self.values.shape[1:])
        check_same("refresh", values, shape, self.values)
        with torch.no_grad():
            torch.ops.gpuprims._pack_rows(self.values, values, *self._packing, self._fill, self._promises)
        if not torch.compiler.is_compiling():
            torch.autograd.graph.increment_version(self.values)
        return self

    def repack(self, values: torch.Tensor) -> "PackedRows":
        """The same rows with other values [num_entries, ...], in memory of their own. Differentiable; does
        not wait for the device, and can be traced. The values may have another dtype if fill is 0."""
        if self._fill is not None and values.dtype != self.dtype:
            raise RuntimeError(
                f"repack: values must have the dtype of the fill ({self.dtype}), got {values.dtype}"
            )
        slots, promises = self.num_slots, self._promises
        return self._with(values=reorder_grad.pack(values, *self._packing, slots, self._fill, promises))

    def unpack(self) -> torch.Tensor:
        """The values before packing, [num_entries, ...]; differentiable."""
        return reorder_grad.unpack(self.values, *self._packing, self.num_entries, self._promises)

    def prepare(self, columns: int | None = None) -> "PackedRows":
        """Builds the transposed entries, which gradients of spmv need; waits for the device. Returns itself.

        columns: the size of x (by default the largest index plus one; ValueError where it is less)."""
        if self.indices is None:
            raise ValueError("prepare: there are no indices to transpose; give pack_rows indices")
        built = None if self.t_indptr is None else self.t_indptr.shape[0] - 1
        if built is not None and built == (self._columns if columns is None else columns):
            return self
        if seen_by_tracer(self.indptr):
            fail("spmv", "the transpose is not built: call packed.prepare(columns) before tracing or capture")
        if self._columns is None:
            self._columns = int(self.indices.max()) + 1 if len(self.indices) else 0
        columns = self._columns if columns is None else columns
        if columns < self._columns:
            words = f"columns must be at least {self._columns} (the largest index and one), got {columns}"
            fail("prepare", words)
        if built != columns:
            with torch.inference_mode(False), torch.no_grad():
                args = (self.indices, *self._packing, self.num_entries, self._promises)
                columns_of = reorder_grad.unpack(*args)
                t_indptr, ids, _ = sort_rows(columns_of, columns)
                every = torch.arange(self.num_rows, device=self.device, dtype=self.indptr.dtype)
                rows = every.repeat_interleave(self.lengths.long(), output_size=self.num_entries)
                dtype = self.indptr.dtype
                parts = t_indptr.to(dtype), rows[ids].to(dtype), ids.to(dtype)
                self.t_indptr, self.t_indices, self.t_ids = parts
        return self

    def chunks(self, count: int) -> list["PackedRows"]:
        """At most `count` parts that share this memory, about equally large, to be consumed one by one.

        Padded: consecutive columns of the layout, each with every row; what the parts of spmv give adds up
        (start=). Sliced: consecutive slices, each with rows of its own (32 x slices of them, in `order` if
        the parts do not cut windows): results are concatenated. Waits for the device once.
        """
        from .reorder_chunks import chunks

        return chunks(self, count)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "PackedRows":
        """On another device; itself where it is there already."""
        if self.values.to(device, non_blocking=non_blocking) is self.values:
            return self
        moved = {
            name: None if t is None else t.to(device, non_blocking=non_blocking)
            for name, t in ((name, getattr(self, name)) for name in _TENSORS)
        }
        return self._with(**moved)

    def __repr__(self) -> str:
        slots = self.num_slots
        padding = (
            ""
            if self._entries is None
            else f", {100 * (slots - self._entries) / max(slots, 1):.1f} % padding"
        )
        with_indices = (
            "" if self.indices is None else f", {str(self.indices.dtype).removeprefix('torch.')} indices"
        )
        order = "" if self.order is None else ", rows sorted in windows"
        features = f" x {list(self.values.shape[1:])}" if self.values.dim() > 1 else ""
        return (
            f"PackedRows({self.layout}, {self.num_rows} rows, {slots} slots{features}{padding}, "
            f"{str(self.dtype).removeprefix('torch.')}{with_indices}{order}, {self.nbytes / 2**20:.3g} MiB, "
            f"device='{self.device}')"
        )


def filler_of(op: str, fill: Any, like: torch.Tensor) -> torch.Tensor | None:
    """What empty slots hold, one element; None: zero. What an integer dtype does not hold is refused."""
    held = isinstance(fill, numbers.Number | torch.Tensor)
    if held and like.dtype == torch.bool:
        held = fill in (0, 1)
    elif held and not (like.is_floating_point() or like.is_complex()):
        bounds = torch.iinfo(like.dtype)
        held = not isinstance(fill, complex) and bounds.min <= fill <= bounds.max and fill == int(fill)
    if not held:
        name = str(like.dtype).removeprefix("torch.")
        fail(op, f"fill must be a number that {name} holds, got {fill!r}")
    return None if fill == 0 else torch.full((1,), fill, dtype=like.dtype, device=like.device)


def check_same(op: str, values: torch.Tensor, shape: tuple[Any, ...], like: torch.Tensor) -> None:
    """Before memory is filled again."""
    if tuple(values.shape) != tuple(shape):
        raise RuntimeError(f"{op}: values must have shape {list(shape)} as before, got {list(values.shape)}")
    if values.dtype != like.dtype:
        raise RuntimeError(f"{op}: values must be {like.dtype} as before, got {values.dtype}")
    if values.device != like.device:
        raise RuntimeError(f"{op}: values must be on {like.device} as before, got {values.device}")
    if not torch.compiler.is_compiling() and shares_memory(values, like):
        raise RuntimeError(f"{op}: values must not lie in the memory that is filled")


def _flatten(packed: PackedRows) -> tuple[list[Any], tuple[Any, ...]]:
    names = tuple(name for name in _TENSORS if getattr(packed, name) is not None)
    return [getattr(packed, name) for name in names], (names, packed.layout, packed.fill)


def _flatten_with_keys(packed: PackedRows) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    leaves, context = _flatten(packed)
    return [(_pytree.GetAttrKey(n), leaf) for n, leaf in zip(context[0], leaves, strict=True)], context


def _unflatten(leaves: Any, context: Any) -> PackedRows:
    """Leaves may be anything (tree_map): nothing is looked at, and so nothing is promised to the ops."""
    names, layout, fill = context
    return PackedRows._of(dict(zip(names, leaves, strict=True)), layout, fill, None, None, 0)


def _load_context(context: Any) -> Any:
    names, layout, fill = context
    return tuple(names), layout, fill


_pytree.register_pytree_node(
    PackedRows,
    _flatten,
    _unflatten,
    serialized_type_name="torch_gpuprims.PackedRows",
    flatten_with_keys_fn=_flatten_with_keys,
    to_dumpable_context=list,
    from_dumpable_context=_load_context,
)
