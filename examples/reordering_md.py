"""Neighbour lists, the Morton order, forces in torch ops, and the float64 reference of the checks."""

import dataclasses
from typing import Any

import torch

from torch_gpuprims import reduce, segment_expand, segment_reduce, sort_by_key


def morton_order(position: torch.Tensor, box: float) -> torch.Tensor:
    """[n] int64: the atoms along a Morton curve of 2^10 cells a side; our radix sort on 30 bits."""
    cell = (position[:, :3] * (1024 / box)).int().clamp(0, 1023)
    for shift, mask in ((16, 0x030000FF), (8, 0x0300F00F), (4, 0x030C30C3), (2, 0x09249249)):
        cell = (cell | (cell << shift)) & mask  # spreads 10 bits over 30
    code = cell[:, 0] | (cell[:, 1] << 1) | (cell[:, 2] << 2)
    number = torch.arange(len(code), device=code.device, dtype=torch.int32)
    return sort_by_key(code, number, end_bit=30)[1].long()


@dataclasses.dataclass
class Lists:
    """CSR: the atoms within reach of each atom, cell after cell."""

    indptr: torch.Tensor  # [n + 1] int32
    indices: torch.Tensor  # int32

    def rows(self, begin: int, end: int) -> "Lists":
        first, last = int(self.indptr[begin]), int(self.indptr[end])
        return Lists(self.indptr[begin : end + 1] - first, self.indices[first:last])

    @staticmethod
    def build(position: torch.Tensor, box: float, reach: float, kernels: Any) -> "Lists":
        """Waits for the device once, to know how many pairs there are."""
        n, side = len(position), int(box / reach)
        if side < 3:
            raise SystemExit(f"the box ({box:.1f}) must be at least 3 times as wide as the reach ({reach})")
        cell = (position[:, :3] * (side / box)).int().clamp(0, side - 1)
        cell = (cell[:, 2] * side + cell[:, 1]) * side + cell[:, 0]
        number = torch.arange(n, device=cell.device, dtype=torch.int32)
        bits = max((side**3 - 1).bit_length(), 1)
        ordered, order = sort_by_key(cell, number, end_bit=bits)
        cells = torch.arange(side**3 + 1, device=cell.device, dtype=torch.int32)
        starts = torch.searchsorted(ordered, cells, out_int32=True)
        if not position.is_cuda:
            return Lists._on_cpu(position, box, reach, side, order, cell, starts)
        by_cell = position[order.long()]
        counts = torch.empty(n, device=cell.device, dtype=torch.int32)
        same = (box, 1 / box, reach**2)
        kernels("neighbours", n, n, side, by_cell, order, starts, None, counts, None, *same)
        indptr = torch.zeros(n + 1, device=cell.device, dtype=torch.int32)
        torch.cumsum(counts, 0, dtype=torch.int32, out=indptr[1:])
        indices = torch.empty(int(indptr[-1]), device=cell.device, dtype=torch.int32)
        kernels("neighbours", n, n, side, by_cell, order, starts, indptr, None, indices, *same)
        return Lists(indptr, indices)

    @staticmethod
    def _on_cpu(
        position: torch.Tensor, box: float, reach: float, side: int, order: torch.Tensor, cell: torch.Tensor,
        starts: torch.Tensor,
    ) -> "Lists":  # fmt: skip
        n, owners, others = len(position), [], []
        x, y, z = cell % side, cell // side % side, cell // side**2
        shifts = [(dx, dy, dz) for dz in (-1, 0, 1) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
        for dx, dy, dz in shifts:
            near = (((z + dz) % side) * side + (y + dy) % side) * side + (x + dx) % side
            begin, count = starts[near].long(), (starts[near + 1] - starts[near]).long()
            owner = torch.arange(n).repeat_interleave(count)
            ends = count.cumsum(0)
            slot = torch.arange(len(owner)) - (ends - count)[owner] + begin[owner]
            other = order[slot].long()
            d = position[owner, :3] - position[other, :3]
            d -= box * (d * (1 / box)).round()
            close = ((d * d).sum(1) < reach**2) & (owner != other)
            owners.append(owner[close])
            others.append(other[close])
        owner, other = sort_by_key(torch.cat(owners), torch.cat(others))  # stable: cells stay in order
        indptr = torch.zeros(n + 1, dtype=torch.int32)
        torch.cumsum(torch.bincount(owner, minlength=n), 0, dtype=torch.int32, out=indptr[1:])
        return Lists(indptr, other.int())


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
