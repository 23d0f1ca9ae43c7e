"""Molecular dynamics: a Lennard-Jones fluid whose neighbour lists are read as they are, or reordered.

    python examples/reorder_md.py                                   # 1 M atoms, all variants
    python examples/reorder_md.py --device cpu --side 12 --steps 20
    python examples/reorder_md.py --side 126 --variant sorted       # 2 M atoms

Density 0.8442, cutoff 2.5, velocity Verlet in float32. Lists are rebuilt every few steps from cells (our
radix sort puts atoms in the order of their cells). Atoms are numbered at random, the worst case for a list.

    original         a thread an atom walks its row of the CSR list (the seed's original)
    csr              8 lanes an atom: what a good kernel makes of the same list
    packed           the seed: neighbours' positions copied in thread-access order at each step, then streamed
    overlapped       the same in chunks of atoms, copied on side streams while others are computed
    cached           the list itself in thread-access order, once a rebuild, through ReorderCache
    sorted_original  atoms renumbered along a Morton curve at each rebuild, then as original
    sorted           the same, and the list is written in thread-access order from the start: the index
                     moves from loads to stores, and nothing is copied

Checked: forces of 128 atoms against float64 sums over all atoms, energy at the start and the end, and that no
atom moved further than half the skin between rebuilds.
"""

import dataclasses
import math
from typing import Any

import torch
from reordering import Kernels, finish, milliseconds, options, whole
from reordering_md import Cells, Lists, energies, force_error, pair_sums

from torch_gpuprims import ReorderCache, overlapped, pack_rows, redirect

VARIANTS = ("original", "csr", "packed", "overlapped", "cached", "sorted_original", "sorted")
CUTOFF, SKIN, DT, DENSITY = 2.5, 0.4, 0.005, 0.8442
SHIFT = 4 * (CUTOFF**-12 - CUTOFF**-6)
kernels = Kernels("reorder_md.cu")


@dataclasses.dataclass
class State:
    box: float
    position: torch.Tensor  # [n, 4]: x, y, z, 0
    velocity: torch.Tensor
    force: torch.Tensor


def lattice(side: int, temperature: float, device: str, seed: int) -> State:
    """side^3 atoms on a cubic lattice, numbered at random, with Maxwell's velocities and no drift."""
    g = torch.Generator().manual_seed(seed)
    n, box = side**3, side * DENSITY ** (-1 / 3)
    axis = torch.arange(side, dtype=torch.float32)
    grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(n, 3)
    grid = (grid[torch.randperm(n, generator=g)] + 0.5) * (box / side)
    velocity = torch.randn(n, 3, generator=g) * math.sqrt(temperature)
    velocity -= velocity.mean(0)
    zero = torch.zeros(n, 1)
    position, velocity = torch.cat([grid, zero], 1), torch.cat([velocity, zero], 1)
    return State(box, position.to(device), velocity.to(device), torch.zeros(n, 4, device=device))


class Simulation:
    """One variant's steps."""

    def __init__(self, variant: str, state: State, every: int, chunks: int, streams: int) -> None:
        self.variant, self.state, self.every = variant, state, every
        self.chunks, self.streams = chunks, streams
        self.sorts = variant.startswith("sorted")
        self.way = {"sorted_original": "original"}.get(variant, variant)
        self.cache = ReorderCache(8 << 30)
        self.built = state.position.clone()
        self.moved = 0.0
        self.lists: Lists | None = None

    # Lists and their reordering, once a rebuild --------------------------------------------

    def rebuild(self) -> None:
        s = self.state
        if self.lists is not None:
            step = s.position.sub(self.built)  # positions are wrapped below, after a rebuild's steps
            self.moved = max(self.moved, float(step.square_().sum(1).max()) ** 0.5)
        s.position.remainder_(s.box)
        cells = None
        if self.sorts:
            cells = Cells.of(s.position, s.box, CUTOFF + SKIN, kernels)
            self.renumber(cells)
        self.built.copy_(s.position)
        reach = CUTOFF + SKIN
        if self.way == "sorted" and cells is not None and s.position.is_cuda:
            self.lists = Lists.build_sliced(s.position, s.box, reach, kernels, cells, self.lists)
        else:
            self.lists = Lists.build(s.position, s.box, reach, kernels, cells)
        if self.way in ("packed", "overlapped"):
            self.redirect_lists()

    def renumber(self, cells: Cells) -> None:
        """Atoms in the order of their cells, which lists need anyway."""
        s, order = self.state, cells.order
        if s.position.is_cuda:
            old = s.position, s.velocity, s.force
            new = tuple(torch.empty_like(t) for t in old)
            kernels("renumber", len(order), len(order), order, *old, *new)
            s.position, s.velocity, s.force = new
        else:
            at = order.long()
            s.position, s.velocity, s.force = s.position[at], s.velocity[at], s.force[at]

    def packed_list(self) -> Any:
        """The list in thread-access order: a hit in all steps but a rebuild's."""
        lists = self.lists
        assert lists is not None
        return self.cache.get(
            lists.indices, lambda v: pack_rows(v, lists.indptr, layout="sliced", fill=-1),
            key="sliced", pattern=[lists.indptr],
        )  # fmt: skip

    def redirect_lists(self) -> None:
        """Chunks of whole slices; for each where its positions come from, and memory for them."""
        lists, n = self.lists, len(self.state.position)
        assert lists is not None
        packed = self.packed = pack_rows(lists.indices, lists.indptr, layout="sliced", fill=-1)
        count = self.chunks if self.way == "overlapped" else 1
        slices = -(-n // 32)
        cuts = [min(32 * (slices * i // count), n) for i in range(count + 1)]
        cuts[-1] = n
        at = packed.slices[torch.tensor([-(-c // 32) for c in cuts], device=packed.slices.device)].tolist()
        self.parts = []
        for first, last, begin, end in zip(cuts, cuts[1:], at, at[1:], strict=False):
            if last > first:
                access = redirect(packed.values[begin:end])
                self.parts.append((first, last - first, access.pack(self.state.position)))

    # Forces ------------------------------------------------------------------------------

    def run_kernel(self, name: str, *middle: Any, rows: int, lanes: int = 1, energy: Any = None) -> None:
        s = self.state
        kernels(
            name, rows * lanes, rows, *middle, s.position, s.force, energy,
            s.box, 1 / s.box, CUTOFF**2, SHIFT,
        )  # fmt: skip

    def compute(self, energy: torch.Tensor | None = None) -> None:
        lists, s = self.lists, self.state
        assert lists is not None
        n = len(s.position)
        if self.way in ("original", "csr", "sorted"):
            if lists.slices is not None:
                self.run_kernel(
                    "force_sliced", lists.indptr, lists.slices, lists.indices, rows=n, energy=energy
                )
            elif s.position.is_cuda:
                lanes = 8 if self.way == "csr" else 1
                self.run_kernel(
                    f"force_{self.way}", lists.indptr, lists.indices, rows=n, lanes=lanes, energy=energy
                )
            else:
                pair_sums(s, lists, s.position[lists.indices.long()], CUTOFF, SHIFT, energy)
        elif self.way == "cached":
            packed = self.packed_list()
            if s.position.is_cuda:
                self.run_kernel(
                    "force_sliced", lists.indptr, packed.slices, packed.values, rows=n, energy=energy
                )
            else:
                pair_sums(s, lists, s.position[packed.unpack().long()], CUTOFF, SHIFT, energy)
        elif self.way == "packed":
            self.compute_part(self.refreshed(self.parts[0]), energy)
        else:
            overlapped(
                self.parts, self.refreshed, lambda part: self.compute_part(part, energy), self.streams,
                device=s.position.device,
            )  # fmt: skip

    def refreshed(self, part: Any) -> Any:
        part[2].refresh(self.state.position)
        return part

    def compute_part(self, part: Any, energy: torch.Tensor | None = None) -> None:
        first, count, block = part
        lists, s, packed = self.lists, self.state, self.packed
        assert lists is not None
        if s.position.is_cuda:
            self.run_kernel(
                "force_packed", first, lists.indptr, packed.slices, block.values, rows=count, energy=energy
            )
        else:
            pair_sums(s, lists.rows(first, first + count), block.values, CUTOFF, SHIFT, energy, packed, first)

    # Steps -------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        s = self.state
        for number in range(steps):
            if number % self.every == 0:
                self.rebuild()
            s.velocity.add_(s.force, alpha=DT / 2)
            s.position.add_(s.velocity, alpha=DT)
            self.compute()
            s.velocity.add_(s.force, alpha=DT / 2)

    def total_energy(self) -> float:
        energy = torch.empty(len(self.state.position), device=self.state.position.device)
        self.compute(energy)
        return energies(energy, self.state.velocity)


def times(sim: Simulation) -> dict[str, float]:
    """ms of the force kernel alone, of a step's share of reordering, and of a rebuild."""
    device, each, once = sim.state.position.device, 0.0, 0.0
    if sim.way in ("packed", "overlapped"):
        each = milliseconds(lambda: [sim.refreshed(part) for part in sim.parts], device)
        force = milliseconds(lambda: [sim.compute_part(part) for part in sim.parts], device)
    else:
        force = milliseconds(sim.compute, device)
    lists, s = sim.lists, sim.state
    assert lists is not None
    if sim.way in ("packed", "overlapped", "cached"):
        once = milliseconds(
            lambda: pack_rows(lists.indices, lists.indptr, layout="sliced", fill=-1), device, 5
        )
    if sim.sorts:
        cells = Cells.of(s.position, s.box, CUTOFF + SKIN, kernels)
        once = milliseconds(lambda: sim.renumber(cells), device, 5)
        sim.rebuild()
    rebuild_ms = milliseconds(sim.rebuild, device, 5)
    return {"force_ms": force, "reorder_ms": each + once / sim.every, "rebuild_ms": rebuild_ms}


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = options(__doc__, VARIANTS)
    parser.add_argument("--side", type=int, default=100, help="side^3 atoms")
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--every", type=int, default=6, help="steps between rebuilds")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--chunks", type=int, default=8, help="of overlapped")
    parser.add_argument("--streams", type=int, default=4)
    option = parser.parse_args(arguments)
    rows = []
    for variant in VARIANTS if option.variant == "all" else (option.variant,):
        state = lattice(option.side, option.temperature, option.device, option.seed)
        sim = Simulation(variant, state, option.every, option.chunks, option.streams)
        sim.rebuild()
        before = sim.total_energy()
        sim.run(option.every)  # compiles, fills the allocator
        stats = sim.cache.stats()
        _, ms = whole(lambda sim=sim: sim.run(option.steps), option.device)
        hits, misses = (b - a for a, b in zip(stats[:2], sim.cache.stats()[:2], strict=True))
        drift = (sim.total_energy() - before) / abs(before)
        error, moved = force_error(state, CUTOFF), sim.moved
        found = times(sim)
        rows.append(
            {
                "variant": variant, **found, "step_ms": ms / option.steps,
                "reorder_%": 100 * found["reorder_ms"] * option.steps / ms, "hits": hits, "misses": misses,
                "drift": drift, "force_error": error, "moved": moved,
                "right": abs(drift) < 1e-3 and error < 1e-4 and moved < SKIN / 2,
            }
        )  # fmt: skip
    parameters = {
        "atoms": option.side**3,
        "steps": option.steps,
        "every": option.every,
        "device": option.device,
    }
    finish("molecular dynamics", parameters, rows, option.json)
    return rows


if __name__ == "__main__":
    main()
