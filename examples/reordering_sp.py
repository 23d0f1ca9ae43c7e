"""Formulas, survey propagation in torch ops and its float64 reference, decimation and WalkSAT."""

import dataclasses
import random
from collections.abc import Callable

import torch

from torch_gpuprims import segment_reduce, sort_by_key


@dataclasses.dataclass
class Formula:
    """3-SAT with clauses of up to 3 places."""

    variables: int
    literals: torch.Tensor  # [3, clauses] int32: 2 v, 2 v + 1 for "not v", -1 for none
    indptr: torch.Tensor  # [2 variables + 1] int32: a row a literal
    edges: torch.Tensor  # int32: k * clauses + a for place k of clause a, in rising order within a row

    @staticmethod
    def of(variables: int, literals: torch.Tensor) -> "Formula":
        flat = literals.flatten()
        there = flat >= 0
        place = torch.arange(flat.numel(), device=flat.device, dtype=torch.int32)[there]
        rows, edges = sort_by_key(flat[there], place)  # stable
        counts = torch.arange(2 * variables + 1, device=flat.device, dtype=torch.int32)
        indptr = torch.searchsorted(rows, counts, out_int32=True)
        return Formula(variables, literals.contiguous(), indptr, edges)

    def by_variable(self) -> "Formula":
        """The same clauses, each with its lowest variable first, and ordered by that (our radix sort): one
        edge in three then lies where its literal's neighbours' do."""
        lowest_first = self.literals.sort(0).values
        clause = torch.arange(lowest_first.shape[1], device=lowest_first.device, dtype=torch.int32)
        bits = max((2 * self.variables - 1).bit_length(), 1)
        order = sort_by_key(lowest_first[0].contiguous(), clause, end_bit=bits)[1]
        return Formula.of(self.variables, lowest_first[:, order.long()])

    @staticmethod
    def random(variables: int, clauses: int, device: str, seed: int) -> "Formula":
        """Three variables each, different ones, negated with probability 1/2."""
        g = torch.Generator().manual_seed(seed)
        chosen = torch.randint(variables, (clauses, 3), generator=g)
        while True:
            again = (chosen[:, 0] == chosen[:, 1]) | (chosen[:, 0] == chosen[:, 2])
            again |= chosen[:, 1] == chosen[:, 2]
            if not again.any():
                break
            chosen[again] = torch.randint(variables, (int(again.sum()), 3), generator=g)
        literals = 2 * chosen + torch.randint(2, (clauses, 3), generator=g)
        return Formula.of(variables, literals.t().int().to(device))


def row_products(indptr: torch.Tensor, surveys: torch.Tensor) -> torch.Tensor:
    """[rows, 2]: the product of 1 - survey without zeros, and the zeros; surveys in the order of the rows."""
    factor = 1 - surveys
    product = segment_reduce(torch.where(factor == 0, 1, factor), indptr, "prod")
    zeros = segment_reduce((factor == 0).to(factor.dtype), indptr, "sum")
    return torch.stack([product, zeros], 1)


def update_clauses(literals: torch.Tensor, products: torch.Tensor, surveys: torch.Tensor) -> torch.Tensor:
    """New surveys [3, clauses] in torch ops."""
    there = literals >= 0
    literal = literals.clamp(min=0).long()
    same, against = products[literal], products[literal ^ 1]
    factor = 1 - surveys
    own = torch.where(factor == 0, 1, factor)
    others = torch.where(same[..., 1] == (factor == 0), same[..., 0] / own, 0)
    opposed = torch.where(against[..., 1] == 0, against[..., 0], 0)
    unsatisfied, satisfied = (1 - opposed) * others, (1 - others) * opposed
    total = unsatisfied + satisfied + others * opposed
    pi = torch.where(total > 0, unsatisfied / torch.where(total > 0, total, 1), 0)
    pi = torch.where(there, pi, 1)
    return torch.where(there, pi.roll(-1, 0) * pi.roll(-2, 0), surveys)


def reference(formula: Formula, surveys: torch.Tensor, rounds: int) -> torch.Tensor:
    """Surveys in float64 by the definition: a clause's messages leave its own factor out of the product by
    logarithms over the others, torch ops alone."""
    literals = formula.literals.long()
    eta = surveys.double()
    rows, there = 2 * formula.variables, literals >= 0
    literal = literals.clamp(min=0)
    for _ in range(rounds):
        log = torch.where(there, torch.log1p(-eta.clamp(max=1 - 1e-300)), 0)
        sums = torch.zeros(rows, dtype=torch.float64, device=eta.device)
        sums.index_put_((literal.flatten(),), log.flatten(), accumulate=True)
        others, opposed = (sums[literal] - log).exp(), sums[literal ^ 1].exp()
        unsatisfied, satisfied = (1 - opposed) * others, (1 - others) * opposed
        pi = unsatisfied / (unsatisfied + satisfied + others * opposed)
        eta = torch.where(there, pi.roll(-1, 0) * pi.roll(-2, 0), eta)
    return eta


def satisfied(clauses: list[list[int]], value: list[int]) -> bool:
    """value[v] is 1 or 0; literal 2 v + n is true where value[v] differs from n."""
    return all(any(value[x >> 1] != (x & 1) for x in clause) for clause in clauses)


def propagate_units(clauses: list[list[int]], fixed: dict[int, int]) -> list[list[int]] | None:
    """What is left once `fixed` (and whatever follows from clauses of one literal) holds; None: a clause is
    empty. fixed grows."""
    while True:
        left, units = [], {}
        for clause in clauses:
            rest = []
            for x in clause:
                known = fixed.get(x >> 1)
                if known is None:
                    rest.append(x)
                elif known != (x & 1):
                    break
            else:
                if not rest:
                    return None
                left.append(rest)
                if len(rest) == 1:
                    if units.get(rest[0] >> 1, 1 - (rest[0] & 1)) != 1 - (rest[0] & 1):
                        return None
                    units[rest[0] >> 1] = 1 - (rest[0] & 1)
        clauses = left
        if not units:
            return clauses
        fixed.update(units)


def walksat(
    clauses: list[list[int]], start: dict[int, int], flips: int, seed: int, noise: float = 0.57
) -> dict[int, int] | None:
    """Flips variables of unsatisfied clauses: one that breaks nothing, else with `noise` any, else the one
    that breaks least (Selman, Kautz, Cohen 1994)."""
    rng, value = random.Random(seed), dict(start)
    where: dict[int, list[int]] = {}
    for c, clause in enumerate(clauses):
        for x in clause:
            where.setdefault(x, []).append(c)
    for v in {x >> 1 for x in where}:
        value.setdefault(v, rng.randrange(2))
    true = [sum(value[x >> 1] != (x & 1) for x in clause) for clause in clauses]
    bad = [c for c, count in enumerate(true) if count == 0]
    at = {c: i for i, c in enumerate(bad)}
    for _ in range(flips):
        if not bad:
            return value
        clause = clauses[bad[rng.randrange(len(bad))]]
        breaks = []
        for x in clause:  # x is false: its negation is what holds now
            breaks.append(sum(true[c] == 1 for c in where.get(x ^ 1, ())))
        least = min(breaks)
        pick = rng.randrange(len(clause)) if least and rng.random() < noise else breaks.index(least)
        x = clause[pick]
        value[x >> 1] = 1 - (x & 1)
        for c in where[x]:
            true[c] += 1
            if true[c] == 1:  # leaves the list: the last one takes its place
                i, last = at.pop(c), bad.pop()
                if last != c:
                    bad[i] = last
                    at[last] = i
        for c in where.get(x ^ 1, ()):
            true[c] -= 1
            if true[c] == 0:
                at[c] = len(bad)
                bad.append(c)
    return None


Solve = Callable[[Formula], tuple[torch.Tensor, torch.Tensor, bool]]


def decimate(
    variables: int, clauses: list[list[int]], solve: Solve, device: str, seed: int, share: float = 0.01,
    flips: int = 2_000_000,
) -> tuple[list[int] | None, int, str]:  # fmt: skip
    """An assignment of all variables, the rounds, and what was seen.

    Surveys fix the most biased variables, a share at a time, until they say nothing any more; WalkSAT does
    the rest. solve(formula) -> (row products, surveys, converged).
    """
    left: list[list[int]] | None = clauses
    fixed: dict[int, int] = {}
    words, rounds = "surveys became trivial", 0
    while left:
        padded = torch.full((len(left), 3), -1, dtype=torch.int32)
        names = sorted({x >> 1 for clause in left for x in clause})
        number = {v: i for i, v in enumerate(names)}
        for k in range(3):
            column = [2 * number[c[k] >> 1] + (c[k] & 1) if k < len(c) else -1 for c in left]
            padded[:, k] = torch.tensor(column, dtype=torch.int32)
        products, surveys, converged = solve(Formula.of(len(names), padded.t().to(device)))
        if not converged:
            words = "surveys did not converge"
            break
        if float(surveys.max()) < 0.01:
            break
        rounds += 1
        pos, neg = torch.where(products[:, 1] > 0, 0, products[:, 0]).view(-1, 2).double().unbind(1)
        yes, no, free = (1 - pos) * neg, (1 - neg) * pos, pos * neg
        total = (yes + no + free).clamp(min=1e-300)
        bias = ((yes - no) / total).cpu()
        order = bias.abs().argsort(descending=True, stable=True)[: max(1, int(share * len(names)))].tolist()
        fixed.update({names[i]: int(bias[i] > 0) for i in order})
        left = propagate_units(left, fixed)
    if left is None:
        return None, rounds, "decimation ran into a contradiction"
    rest = walksat(left, {}, flips, seed) if left else {}
    if rest is None:
        return None, rounds, f"{words}; WalkSAT found nothing in {flips} flips"
    every = {**rest, **fixed}
    return [every.get(v, 0) for v in range(variables)], rounds, words
