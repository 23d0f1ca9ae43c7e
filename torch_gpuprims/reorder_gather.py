"""redirect and gather_packed: A[B] laid out once in the order of B, and read by place from then on."""

from typing import Any

import torch

from . import reorder_grad
from ._dispatch import reraise
from .reorder_packed import check_same, filler_of, seen_by_tracer


class Redirect:
    """An access pattern B into the rows of some A, validated once; what `redirect` makes.

    Attributes:
        index: [B.numel()], int32 where that holds it, in the order of access; -1 reads nothing.
        shape: of B.
        num_rows: rows that A must have at least.
    """

    def __init__(self, index: torch.Tensor, shape: torch.Size, num_rows: int) -> None:
        self.index, self.shape, self.num_rows = index, shape, num_rows
        self._inverse: tuple[int, torch.Tensor, torch.Tensor] | None = None

    def pack(self, a: torch.Tensor, fill: Any = 0) -> "PackedGather":
        """The rows of `a` in the order of access, as gather_packed."""
        return gather_packed(a, self, fill=fill)

    def inverse(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(offsets [rows + 1], positions): who reads each row. Built once for a number of rows."""
        if self._inverse is None or self._inverse[0] != rows:
            with torch.inference_mode(False), torch.no_grad():
                self._inverse = (rows, *reorder_grad.inverse(self.index, rows))
        return self._inverse[1:]

    @property
    def device(self) -> torch.device:
        return self.index.device

    def __repr__(self) -> str:
        return (
            f"Redirect({self.index.numel()} accesses {list(self.shape)} into at least {self.num_rows} rows, "
            f"device='{self.device}')"
        )


def redirect(b: torch.Tensor, *, num_rows: int | None = None) -> Redirect:
    """Take an access pattern A[B] once, so that packed copies of any A can be made and read in order.

    Args:
        b: int32 or int64, any shape: rows of A in the order of access; -1 reads nothing (fill).
        num_rows: rows that A has; by default the largest index and one.

    A builder: validates b and waits for the device.

    Raises:
        ValueError: an index is below -1 or not below num_rows.

    >>> plan = redirect(torch.tensor([[2, 0], [-1, 2]]))
    >>> plan.pack(torch.tensor([1.0, 2.0, 3.0])).view()
    tensor([[3., 1.],
            [0., 3.]])
    """
    if not isinstance(b, torch.Tensor) or b.dtype not in (torch.int32, torch.int64):
        got = str(b.dtype).removeprefix("torch.") if isinstance(b, torch.Tensor) else type(b).__name__
        raise ValueError(f"redirect: b must be an int32 or int64 tensor, got {got}")
    if seen_by_tracer(b):
        raise ValueError("redirect: b is read on the host: make it before tracing or capture")
    flat = b.detach().reshape(-1)
    lowest, highest = -1, -1
    if flat.numel():
        lowest, highest = torch.stack([flat.min(), flat.max()]).tolist()
    rows = highest + 1 if num_rows is None else num_rows
    if lowest < -1 or highest >= rows:
        wrong = (flat < -1) | (flat >= rows)
        at = int(wrong.nonzero()[0])
        raise ValueError(f"redirect: b must be in [-1, {rows}), but element {at} is {int(flat[at])}")
    dtype = torch.int32 if highest < 2**31 - 1 else torch.int64
    with torch.inference_mode(False):
        return Redirect(flat.to(dtype, copy=True), b.shape, rows)


class PackedGather:
    """A[B] in the order of B: element i of the access is row i of `values`.

    Attributes:
        values: [B.numel(), ...]; differentiable in A.
        redirect: the access pattern.
    """

    def __init__(self, values: torch.Tensor, plan: Redirect, fill: torch.Tensor | None, rows: int) -> None:
        self.values, self.redirect, self._fill, self._rows = values, plan, fill, rows

    def view(self) -> torch.Tensor:
        """The same memory as [*B.shape, ...]."""
        return self.values.view((*self.redirect.shape, *self.values.shape[1:]))

    def refresh(self, a: torch.Tensor) -> "PackedGather":
        """Fills the same memory from an A of the same shape and dtype; returns itself.

        One launch on the current stream, no allocation, no synchronisation; not differentiable.
        """
        if torch.is_grad_enabled() and (a.requires_grad or self.values.requires_grad):
            raise RuntimeError(
                "refresh: values are written in place, without a gradient; use redirect.pack(a)"
            )
        check_same("refresh", a, (self._rows, *self.values.shape[1:]), self.values)
        with torch.no_grad():
            torch.ops.gpuprims._gather_packed(self.values, a, self.redirect.index, self._fill)
        if not torch.compiler.is_compiling():
            torch.autograd.graph.increment_version(self.values)
        return self

    def chunks(self, count: int) -> list[torch.Tensor]:
        """At most `count` views of consecutive rows of `values`."""
        return list(self.values.chunk(count)) if len(self.values) else [self.values]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    @property
    def device(self) -> torch.device:
        return self.values.device

    def __repr__(self) -> str:
        shape = [*self.redirect.shape, *self.values.shape[1:]]
        dtype = str(self.values.dtype).removeprefix("torch.")
        return f"PackedGather({shape} {dtype}, {self.nbytes / 2**20:.3g} MiB, device='{self.device}')"


def gather_packed(a: torch.Tensor, b: torch.Tensor | Redirect, *, fill: Any = 0) -> PackedGather:
    """A[B] in the order of B, in memory that can be filled again (`refresh`).

    Args:
        a: [rows, ...], of any dtype.
        b: int32 or int64 of any shape, or a Redirect of it, which was validated when it was made. -1 reads
            nothing.
        fill: what -1 gives.

    Differentiable in a: the gradient of a row is the sum over its reads in order (deterministic; 16-bit in
    float32), by a sort of b that a Redirect keeps.

    Cost: reads b and the rows that it names, writes B.numel() rows. Worth it where the copy is read several
    times in this order: a kernel that reads A[B] once moves less (docs/reorder.md).

    Raises:
        ValueError: b has an index below -1 or outside of a, or the dtype of a does not hold fill.
        RuntimeError: dtypes or devices are not as above.
    """
    if a.dim() == 0:
        raise RuntimeError("gather_packed: values must have at least 1 dimension, got 0")
    plan = b if isinstance(b, Redirect) else redirect(b, num_rows=a.shape[0])
    if a.shape[0] < plan.num_rows:
        raise ValueError(f"gather_packed: a must have at least {plan.num_rows} rows, got {a.shape[0]}")
    filler = filler_of("gather_packed", fill, a)
    inverse: tuple[Any, Any] = (None, None)
    if a.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        inverse = plan.inverse(a.shape[0])
    try:
        values = reorder_grad.gather(a, plan.index, filler, *inverse)
    except RuntimeError as error:
        reraise(error)
    return PackedGather(values, plan, filler, a.shape[0])
