"""Neighbour lists, the Morton order, forces in torch ops, and the float64 reference of the checks."""

import dataclasses
from typing import Any

import torch

from torch_gpuprims import reduce, segment_expand, segment_reduce, sort_by_key


def morton(cell: torch.Tensor) -> torch.Tensor:
    """[n] int32: the Morton codes of cells [n, 3] int32 below 1024."""
    for shift, mask in ((16, 0x030000FF), (8, 0x0300F00F), (4, 0x030C30C3), (2, 0x09249249)):
        cell = (cell | (cell << shift)) & mask  # spreads 10 bits over 30
    return cell[:, 0] | (cell[:, 1] << 1) | (cell[:, 2] << 2)


@dataclasses.dataclass
class Cells:
    """The atoms in the order of their cells, and these along a Morton curve: one sort, ours, of few bits."""

    side: int
    code: torch.Tensor  # [n] int32, rising
    order: torch.Tensor  # [n] int32: the atom at each place

    @staticmethod
    def of(position: torch.Tensor, box: float, reach: float, kernels: Any) -> "Cells":
        n, side = len(position), int(box / reach)
        if side < 3 or side > 1024:
            raise SystemExit(f"the box ({box:.1f}) must be 3 to 1024 times as wide as the reach ({reach})")
        if position.is_cuda:
            code, number = torch.empty(2, n, device=position.device, dtype=torch.int32).unbind()
            kernels("cells", n, n, side, position, code, number, 1 / box)
        else:
            code = morton((position[:, :3] * (side / box)).int().clamp(0, side - 1))
            number = torch.arange(n, dtype=torch.int32)
        return Cells(side, *sort_by_key(code, number, end_bit=3 * (side - 1).bit_length()))

    def starts(self) -> torch.Tensor:
        """[codes + 1] int32: where each cell begins."""
        codes = 1 << 3 * (self.side - 1).bit_length()
        every = torch.arange(codes + 1, device=self.code.device, dtype=torch.int32)
        return torch.searchsorted(self.code, every, out_int32=True)


@dataclasses.dataclass
class Lists:
    """The atoms within reach of each atom, cell by cell; CSR, or slices of 32 rows in thread order."""

    indptr: torch.Tensor  # [n + 1] int32
    indices: torch.Tensor  # int32
    slices: torch.Tensor | None = None  # [slices + 1] int64

    def rows(self, begin: int, end: int) -> "Lists":
        first, last = int(self.indptr[begin]), int(self.indptr[end])
        return Lists(self.indptr[begin : end + 1] - first, self.indices[first:last])

    @staticmethod
    def build(
        position: torch.Tensor, box: float, reach: float, kernels: Any, cells: Cells | None = None
    ) -> "Lists":
        """CSR. Waits for the device once, to know how many pairs there are. cells: of atoms that stand in
        their order already."""
        n, device = len(position), position.device
        found = cells or Cells.of(position, box, reach, kernels)
        starts = found.starts()
        order = None if cells else found.order
        if not position.is_cuda:
            return Lists._on_cpu(position, box, reach, found, starts, order)
        by_cell = position
        if order is not None:
            by_cell = torch.empty_like(position)
            kernels("renumber", n, n, order, position, None, None, by_cell, None, None)
        counts = torch.empty(n, device=device, dtype=torch.int32)
        place, same = (n, found.side, by_cell, order, starts), (box, 1 / box, reach**2)
        kernels("neighbours", n, *place, None, 0, counts, None, *same)
        indptr = offsets(counts)
        indices = torch.empty(int(indptr[-1]), device=device, dtype=torch.int32)
        kernels("neighbours", n, *place, indptr, 0, None, indices, *same)
        return Lists(indptr, indices)

    @staticmethod
    def build_sliced(
        position: torch.Tensor, box: float, reach: float, kernels: Any, cells: Cells, old: "Lists | None"
    ) -> "Lists":
        """Slices of one width, written in a single pass over the cells, into the memory of `old` where that
        is wide enough: empty slots are never read, so they cost memory alone. Waits for the device once."""
        n, device = len(position), position.device
        width = 0 if old is None or old.slices is None else len(old.indices) // (-(-n // 32) * 32)
        indices = None if old is None else old.indices
        starts, counts = cells.starts(), torch.empty(n, device=device, dtype=torch.int32)
        while True:
            if width:
                place = (n, cells.side, position, None, starts, None)
                kernels("neighbours", n, *place, width, counts, indices, box, 1 / box, reach**2)
                longest = int(counts.max())
                if longest <= width:
                    break
                width = longest + longest // 4
            else:
                width = 96
            slots = -(-n // 32) * 32 * width
            indices = torch.empty(slots, device=device, dtype=torch.int32)
        assert indices is not None
        slices = torch.arange(0, len(indices) + 1, 32 * width, device=device)
        return Lists(offsets(counts), indices, slices)

    @staticmethod
    def _on_cpu(
        position: torch.Tensor, box: float, reach: float, cells: Cells, starts: torch.Tensor,
        order: torch.Tensor | None,
    ) -> "Lists":  # fmt: skip
        n, side, owners, others = len(position), cells.side, [], []
        cell = (position[:, :3] * (side / box)).int().clamp(0, side - 1)
        shifts = [(dx, dy, dz) for dz in (-1, 0, 1) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
        for shift in shifts:
            near = morton((cell + torch.tensor(shift, dtype=torch.int32)) % side).long()
            begin, count = starts[near].long(), (starts[near + 1] - starts[near]).long()
            owner = torch.arange(n).repeat_interleave(count)
            slot = torch.arange(len(owner)) - (count.cumsum(0) - count)[owner] + begin[owner]
            other = slot if order is None else order[slot].long()
            d = position[owner, :3] - position[other, :3]
            d -= box * (d * (1 / box)).round()
            close = ((d * d).sum(1) < reach**2) & (owner != other)
            owners.append(owner[close])
            others.append(other[close])
        owner, other = sort_by_key(torch.cat(owners), torch.cat(others))  # stable: cells stay in order
        indptr = torch.zeros(n + 1, dtype=torch.int32)
        torch.cumsum(torch.bincount(owner, minlength=n), 0, dtype=torch.int32, out=indptr[1:])
        return Lists(indptr, other.int())


def offsets(counts: torch.Tensor) -> torch.Tensor:
    """[n + 1] int32"""
    out = torch.zeros(len(counts) + 1, device=counts.device, dtype=torch.int32)
    torch.cumsum(counts, 0, dtype=torch.int32, out=out[1:])
    return out


def _pairs(d: torch.Tensor, cut2: float, shift: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(forces [pairs, 3], energies [pairs]) of separations d."""
    r2 = (d * d).sum(-1)
    close = (r2 < cut2) & (r2 > 0)
    s2 = torch.where(close, 1 / torch.where(close, r2, 1), 0)
    s6 = s2 * s2 * s2
    f = 48 * s6 * (s6 - 0.5) * s2
    return f[..., None] * d, torch.where(close, 4 * s6 * (s6 - 1) - shift, 0)


def pair_sums(
    state: Any, lists: Lists, others: torch.Tensor, cutoff: float, shift: float, energy: torch.Tensor | None,
    packed: Any = None, first: int = 0,
) -> None:  # fmt: skip
    """The forces in torch ops. others: the neighbours' positions in the order of the list, or, where `packed`
    is the packed list, in its slots from atom `first` on."""
    n = len(lists.indptr) - 1
    if packed is not None:  # slot (k, lane) of a slice -> entry k of row 32 slice + lane
        owner = segment_expand(torch.arange(n, dtype=torch.int32), lists.indptr, len(lists.indices)).long()
        k = torch.arange(len(owner)) - lists.indptr[owner].long()
        row = owner + first
        slot = packed.slices[row // 32] - packed.slices[first // 32] + 32 * k + row % 32
        others = others[slot]
    own = state.position[first : first + n, :3]
    mine = segment_expand(own, lists.indptr, len(lists.indices))
    d = mine - others[:, :3]
    d -= state.box * (d * (1 / state.box)).round()
    force, pair_energy = _pairs(d, cutoff**2, shift)
    state.force[first : first + n, :3] = segment_reduce(force, lists.indptr, "sum")
    if energy is not None:
        energy[first : first + n] = 0.5 * segment_reduce(pair_energy, lists.indptr, "sum")


def energies(potential: torch.Tensor, velocity: torch.Tensor) -> float:
    """Total energy in float64, with our reduce."""
    kinetic = 0.5 * velocity[:, :3].double().square().sum(1)
    return float(reduce(potential.double(), "sum") + reduce(kinetic, "sum"))


def force_error(state: Any, cutoff: float, atoms: int = 128) -> float:
    """The largest difference between the forces on some atoms and float64 sums over all atoms, relative to
    the mean force on them."""
    position = state.position[:, :3].double()
    chosen = torch.linspace(0, len(position) - 1, atoms, device=position.device).long()
    expected = []
    for part in chosen.split(8):
        d = position[part, None] - position[None]
        d -= state.box * (d / state.box).round()
        expected.append(_pairs(d, cutoff**2, 0)[0].sum(1))
    truth = torch.cat(expected)
    worst = (state.force[chosen, :3].double() - truth).norm(dim=1).max()
    return float(worst / truth.norm(dim=1).mean())
