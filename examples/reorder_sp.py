"""Survey propagation on random 3-SAT: surveys gathered where they are, or reordered.

    python examples/reorder_sp.py                                   # 1 M clauses, all variants
    python examples/reorder_sp.py --device cpu --clauses 4000 --solve 400

A round is a product of 1 - survey over the clauses of every literal, and new surveys from those products.

    original    a thread a literal walks its row of a CSR list and fetches surveys (the seed's original)
    csr         4 lanes a literal: what a good kernel makes of the same list
    packed      the seed: surveys copied in thread-access order each round, then streamed
    overlapped  the same in chunks of literals, copied on side streams while others are computed
    cached      the list itself in thread-access order, packed once, through ReorderCache
    redirected  clauses store their surveys where literals will read them: the index moves from loads to
                stores, and no copy is made
    sorted      clauses ordered by their lowest variable, once (our radix sort), then as original

Checked: surveys after a few rounds against float64 by the definition. With --solve, an instance of so many
variables is also decimated, and the assignment is verified clause by clause.
"""

import time
from typing import Any

import torch
from reordering import Kernels, finish, milliseconds, options, whole
from reordering_sp import Formula, decimate, reference, row_products, satisfied, update_clauses

from torch_gpuprims import ReorderCache, overlapped, pack_rows, redirect, reduce

VARIANTS = ("original", "csr", "packed", "overlapped", "cached", "redirected", "sorted")
WINDOW = 4096  # rows sorted by length together: without, half of the slots would be empty
kernels = Kernels("reorder_sp.cu")


class Propagation:
    """Surveys of a formula, updated by one of the variants."""

    def __init__(
        self,
        variant: str,
        formula: Formula,
        cache: ReorderCache,
        seed: int = 0,
        chunks: int = 4,
        streams: int = 4,
    ) -> None:
        self.way, self.cache, self.streams = "original" if variant == "sorted" else variant, cache, streams
        self.formula = formula
        literals = formula.literals
        self.count, self.rows = literals.shape[1], 2 * formula.variables
        g = torch.Generator().manual_seed(seed)
        start = 0.5 * torch.rand(literals.shape, generator=g).to(literals.device)
        self.surveys = torch.where(literals >= 0, start, 0).contiguous()
        self.products = torch.empty(self.rows, 2, device=literals.device)
        self.slots: torch.Tensor | None = None
        self.into: torch.Tensor | None = None
        if variant in ("packed", "overlapped", "redirected"):
            self.list = self.pack(formula.edges)
            self.redirect_access(chunks if variant == "overlapped" else 1)

    def pack(self, edges: torch.Tensor) -> Any:
        return pack_rows(edges, self.formula.indptr, layout="sliced", window=WINDOW, fill=-1)

    def packed_list(self) -> Any:
        """The edges of all literals in thread-access order: a hit in all rounds but the first."""
        f = self.formula
        return self.cache.get(f.edges, self.pack, key="sliced", pattern=[f.indptr])

    def redirect_access(self, count: int) -> None:
        """Where surveys come from (or go to, if redirected), and memory for them, by chunks of slices."""
        flat, slices = self.surveys.view(-1), self.list.slices
        if self.way == "redirected":
            access = self.list.values
            there = access >= 0
            where = torch.arange(len(access), device=access.device, dtype=torch.int32)
            slots = torch.zeros(flat.numel(), device=access.device, dtype=torch.int32)
            slots[access[there].long()] = where[there]
            self.slots = slots.view_as(self.surveys)
            self.into = redirect(access).pack(flat).values
            return
        strips = len(slices) - 1
        cuts = [strips * i // count for i in range(count + 1)]
        at = slices[torch.tensor(cuts, device=slices.device)].tolist()
        self.parts = []
        for i in range(count):
            first, last = 32 * cuts[i], min(32 * cuts[i + 1], self.rows)
            if last > first:
                block = redirect(self.list.values[at[i] : at[i + 1]]).pack(flat)
                self.parts.append((first, last - first, block))

    # A round ------------------------------------------------------------------------------------

    def refreshed(self, part: Any) -> Any:
        part[2].refresh(self.surveys.view(-1))
        return part

    def part_products(self, part: Any) -> None:
        first, count, block = part
        f = self.formula
        if self.surveys.is_cuda:
            packed = self.list
            args = (f.indptr, packed.slices, packed.order, block.values, self.products)
            kernels("row_packed", count, count, first, *args)
        else:
            self.unpacked(first, count, block.values)

    def unpacked(self, first: int, count: int, packed: torch.Tensor) -> None:
        """Row products of the chunk at position `first`, from its slots, in torch ops."""
        rows, slices = self.list.order[first : first + count].long(), self.list.slices
        indptr = self.formula.indptr.long()
        begin = torch.nn.functional.pad((indptr[rows + 1] - indptr[rows]).cumsum(0), (1, 0))
        p = torch.arange(count).repeat_interleave(begin.diff())
        k = torch.arange(len(p)) - begin[p]
        slot = slices[(first + p) // 32] - slices[first // 32] + 32 * k + p % 32
        self.products[rows] = row_products(begin, packed[slot])

    def update_rows(self) -> None:
        f, flat = self.formula, self.surveys.view(-1)
        if self.way == "packed":
            self.part_products(self.refreshed(self.parts[0]))
        elif self.way == "overlapped":
            overlapped(
                self.parts, self.refreshed, self.part_products, self.streams, device=self.surveys.device
            )
        elif self.way == "redirected":
            assert self.into is not None
            if self.surveys.is_cuda:
                packed, n = self.list, self.rows
                args = (f.indptr, packed.slices, packed.order, self.into, self.products)
                kernels("row_packed", n, n, 0, *args)
            else:
                self.unpacked(0, self.rows, self.into)
        elif self.way == "cached":
            packed = self.packed_list()
            if self.surveys.is_cuda:
                args = (f.indptr, packed.slices, packed.order, packed.values, flat, self.products)
                kernels("row_sliced", self.rows, self.rows, *args)
            else:
                self.products = row_products(f.indptr, flat[packed.unpack().long()])
        elif self.surveys.is_cuda:
            lanes = 4 if self.way == "csr" else 1
            name = f"row_{self.way}"
            kernels(name, self.rows * lanes, self.rows, f.indptr, f.edges, flat, self.products)
        else:
            self.products = row_products(f.indptr, flat[f.edges.long()])

    def update_clauses(self, change: torch.Tensor | None = None) -> None:
        if self.surveys.is_cuda:
            literals = self.formula.literals
            args = (literals, self.products, self.surveys, self.slots, self.into, change)
            kernels("clauses", self.count, self.count, *args)
            return
        new = update_clauses(self.formula.literals, self.products, self.surveys)
        if change is not None:
            change.copy_((new - self.surveys).abs().amax(0))
        self.surveys.copy_(new)
        if self.slots is not None and self.into is not None:
            there = self.formula.literals >= 0
            self.into[self.slots[there].long()] = new[there]

    def round(self, change: torch.Tensor | None = None) -> None:
        self.update_rows()
        self.update_clauses(change)

    def run(self, rounds: int, tolerance: float = 1e-3, look: int = 10) -> tuple[int, float]:
        """Rounds until no survey moves by more than the tolerance, looked at every `look` rounds (a wait for
        the device); (rounds, last change)."""
        change, last = torch.empty(self.count, device=self.surveys.device), float("inf")
        for number in range(1, rounds + 1):
            looks = number % look == 0
            self.round(change if looks else None)
            if looks:
                last = float(reduce(change, "max"))
                if last < tolerance:
                    return number, last
        return rounds, last


def solve_small(variables: int, ratio: float, device: str, seed: int) -> dict[str, Any]:
    """Decimation of a smaller instance, verified."""
    formula = Formula.random(variables, int(ratio * variables), device, seed)
    clauses = formula.literals.t().tolist()
    cache = ReorderCache(1 << 26)

    def solve(part: Formula) -> tuple[torch.Tensor, torch.Tensor, bool]:
        sp = Propagation("cached", part, cache, seed)
        _, last = sp.run(1000)
        sp.update_rows()
        return sp.products, sp.surveys, last < 1e-3

    start = time.perf_counter()
    value, rounds, words = decimate(variables, clauses, solve, device, seed)
    right = value is not None and satisfied(clauses, value)
    return {
        "variant": "decimation", "variables": variables, "clauses": len(clauses), "rounds": rounds,
        "seconds": time.perf_counter() - start, "seen": words, "right": right,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = options(__doc__, VARIANTS)
    parser.add_argument("--clauses", type=int, default=1_000_000)
    parser.add_argument("--ratio", type=float, default=4.2, help="clauses a variable")
    parser.add_argument("--rounds", type=int, default=1000, help="at most")
    parser.add_argument("--chunks", type=int, default=4, help="of overlapped")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--solve", type=int, default=0, help="variables of an instance to solve")
    parser.add_argument("--solve-ratio", type=float, default=4.0)
    option = parser.parse_args(arguments)
    device = option.device
    formula = Formula.random(int(option.clauses / option.ratio), option.clauses, device, option.seed)
    rows = []
    for variant in VARIANTS if option.variant == "all" else (option.variant,):
        cache = ReorderCache(1 << 32)

        mine = formula.by_variable() if variant == "sorted" else formula

        def fresh(variant: str = variant, cache: ReorderCache = cache, mine: Formula = mine) -> Propagation:
            return Propagation(variant, mine, cache, option.seed, option.chunks, option.streams)

        sp = fresh()
        truth = reference(mine, sp.surveys, 3)
        for _ in range(3):
            sp.round()
        error = float((sp.surveys.double() - truth).abs().max())
        before = cache.stats()
        sp = fresh()
        (rounds, last), ms = whole(lambda sp=sp: sp.run(option.rounds), device)
        after = cache.stats()
        reorder_ms = 0.0
        if variant in ("packed", "overlapped"):
            reorder_ms = milliseconds(lambda sp=sp: [sp.refreshed(part) for part in sp.parts], device)
            row_ms = milliseconds(lambda sp=sp: [sp.part_products(part) for part in sp.parts], device)
        else:
            row_ms = milliseconds(sp.update_rows, device)
        round_ms = milliseconds(sp.round, device)
        rows.append(
            {
                "variant": variant, "row_ms": row_ms, "reorder_ms": reorder_ms,
                "clause_ms": milliseconds(sp.update_clauses, device), "round_ms": round_ms,
                "rounds": rounds, "whole_ms": ms, "change": last, "converged": last < 1e-3,
                "hits": after.hits - before.hits, "misses": after.misses, "error": error,
                "right": error < 1e-3,  # a survey near 1 has few digits of 1 - survey in float32
            }
        )  # fmt: skip
    parameters: dict[str, Any] = {"clauses": option.clauses, "ratio": option.ratio, "device": device}
    if option.solve:
        solved = solve_small(option.solve, option.solve_ratio, device, option.seed)
        parameters["solved"] = {k: v for k, v in solved.items() if k != "variant"}
        rows.append({"variant": "decimation", "right": solved["right"]})
    finish("survey propagation", parameters, rows, option.json)
    return rows


if __name__ == "__main__":
    main()
