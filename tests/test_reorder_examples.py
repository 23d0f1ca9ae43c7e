"""The reordering examples at small sizes: every variant right, and all of them alike."""

import sys
from pathlib import Path

import pytest
import torch
from devices import DEVICES

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import reorder_cg
import reorder_md
import reorder_sp
import reordering_md
import reordering_sp

from torch_gpuprims import ReorderCache


@pytest.mark.parametrize("place", DEVICES)
@pytest.mark.parametrize("matrix", ["poisson2d", "poisson3d", "powerlaw"])
def test_cg_variants_take_the_same_steps(place: str, matrix: str) -> None:
    """spmv and spmv_csr have the same bits, packed in whatever way, so all solutions are the same."""
    words = ["--device", place, "--size", "0.0005", "--matrix", matrix, "--window", "64", "--most", "200"]
    rows = {row["variant"]: row for row in reorder_cg.main(words)}
    assert set(rows) == set(reorder_cg.VARIANTS)
    ours = [row for name, row in rows.items() if name != "cusparse"]
    assert len({(row["iterations"], row["residual"]) for row in ours}) == 1
    assert all(row["right"] and row["converged"] for row in rows.values())
    cached = rows["cached"]
    assert (cached["misses"], cached["hits"]) == (1, cached["iterations"] - 1)


def test_cg_matrices_are_symmetric_positive_definite() -> None:
    for name in ("poisson2d", "poisson3d", "powerlaw"):
        a = reorder_cg.make(name, 0.0002, "cpu", torch.float64, 0)
        assert a is not None
        n = len(a.indptr) - 1
        dense = torch.sparse_csr_tensor(a.indptr, a.indices, a.values, (n, n)).to_dense()
        assert torch.equal(dense, dense.t())
        assert torch.linalg.eigvalsh(dense).min() > 1e-4


@pytest.mark.parametrize("place", DEVICES)
def test_md_variants_conserve_energy(place: str) -> None:
    rows = {
        row["variant"]: row
        for row in reorder_md.main(["--device", place, "--side", "9", "--steps", "12", "--chunks", "3"])
    }
    assert set(rows) == set(reorder_md.VARIANTS)
    assert all(row["right"] for row in rows.values())
    # Atoms keep their numbers in these, and each atom's sum its order.
    assert len({rows[v]["drift"] for v in ("original", "packed", "overlapped", "cached")}) == 1
    assert rows["cached"]["hits"] == 10
    assert rows["cached"]["misses"] == 2


@pytest.mark.parametrize("place", DEVICES)
def test_md_lists_hold_every_pair_once(place: str) -> None:
    state = reorder_md.lattice(9, 1.0, place, 1)
    state.position[:, :3] += 0.1 * torch.randn(729, 3, generator=torch.Generator().manual_seed(2)).to(place)
    state.position.remainder_(state.box)
    lists = reordering_md.Lists.build(state.position, state.box, 2.9, reorder_md.kernels)
    p = state.position[:, :3].double()
    d = p[:, None] - p[None]
    d -= state.box * (d / state.box).round()
    near = (d.norm(dim=2) < 2.9).fill_diagonal_(False)
    owner = torch.arange(729, device=place).repeat_interleave(lists.indptr.diff())
    found = torch.zeros_like(near, dtype=torch.int32)
    found.index_put_((owner, lists.indices.long()), torch.ones_like(lists.indices), accumulate=True)
    assert torch.equal(found, near.int())


@pytest.mark.parametrize("place", DEVICES)
def test_morton_order_by_its_definition(place: str) -> None:
    position = (torch.rand(500, 4) * 7).to(place)
    cells = reordering_md.Cells.of(position, 7.0, 0.5, reorder_md.kernels)
    cell = (position[:, :3] * (14 / 7.0)).int().clamp(0, 13).tolist()

    def code(c: list[int]) -> int:
        return sum((c[d] >> bit & 1) << (3 * bit + d) for bit in range(10) for d in range(3))

    codes = [code(cell[i]) for i in cells.order.tolist()]
    assert codes == sorted(codes)
    assert codes == cells.code.tolist()
    assert sorted(cells.order.tolist()) == list(range(500))
    starts = cells.starts().tolist()
    assert [starts[c] <= i < starts[c + 1] for i, c in enumerate(codes)] == [True] * 500
    assert starts[-1] == 500


@pytest.mark.parametrize("place", DEVICES)
def test_sp_variants_agree_and_converge(place: str) -> None:
    rows = reorder_sp.main(["--device", place, "--clauses", "2100", "--rounds", "400", "--chunks", "3"])
    named = {row["variant"]: row for row in rows}
    assert set(named) == set(reorder_sp.VARIANTS)
    assert all(row["right"] and row["converged"] for row in rows)
    # csr multiplies by lanes on CUDA, sorted starts from other surveys; the others have one order.
    assert len({(r["rounds"], r["change"]) for v, r in named.items() if v not in ("csr", "sorted")}) == 1
    # The check before the run has packed the list.
    assert (named["cached"]["misses"], named["cached"]["hits"]) == (1, named["cached"]["rounds"])


@pytest.mark.parametrize("place", DEVICES)
def test_sp_decimation_is_verified(place: str) -> None:
    found = reorder_sp.solve_small(600, 4.0, place, 3)
    assert found["right"]
    assert found["rounds"] >= 1


def test_sp_sorted_formula_has_the_same_clauses(device: str) -> None:
    formula = reordering_sp.Formula.random(200, 700, device, 4)
    other = formula.by_variable()
    first, second = (sorted(map(sorted, f.literals.t().tolist())) for f in (formula, other))
    assert first == second
    assert (other.literals[0].diff() >= 0).all()
    assert torch.equal(other.indptr, formula.indptr)


def test_sp_forced_clauses_and_absent_literals() -> None:
    """(x), (not x or y), (not y or z): surveys of 1, zeros in products, and unit propagation."""
    clauses = [[0], [1, 2], [3, 4]]
    padded = torch.tensor([[0, 1, 3], [-1, 2, 4], [-1, -1, -1]], dtype=torch.int32)
    sp = reorder_sp.Propagation("cached", reordering_sp.Formula.of(3, padded), ReorderCache(1 << 20))
    rounds, change = sp.run(50, look=1)
    assert change == 0
    assert rounds <= 5
    assert torch.equal(sp.surveys, torch.tensor([[1.0, 0, 0], [0, 1, 1], [0, 0, 0]]))
    fixed: dict[int, int] = {}
    assert reordering_sp.propagate_units(clauses, fixed) == []
    assert fixed == {0: 1, 1: 1, 2: 1}
    assert reordering_sp.propagate_units([[0], [1]], {}) is None
    assert reordering_sp.walksat([[0, 2], [1, 3], [0, 3]], {}, 1000, 0) == {0: 1, 1: 0}
