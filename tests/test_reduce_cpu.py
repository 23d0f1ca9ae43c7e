"""reduce on the CPU: rows and columns that are reduced side by side have the bits of those that are not."""

import pytest
import torch
from reduce_cases import FLOATS, INTEGERS, close, expected, make, ops_for
from reduce_reference import tree

import torch_gpuprims as gp

SHORT = (1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 64, 65, 100)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_short_rows(dtype: torch.dtype) -> None:
    for n in SHORT:
        x = make((41, n), dtype, "cpu", n)
        if dtype.is_floating_point:
            x = x / 4
            x[3, n // 2], x[7, -1] = float("nan"), float("-inf")
        wide = x.new_zeros((41, n + 3))
        wide[:, 2 : n + 2] = x
        for op in [*ops_for(dtype), "prod"]:
            got = gp.reduce(x, op, -1)
            for rows in (1, 5, 33):
                assert same(gp.reduce(x[:rows], op, -1), got[:rows]), (op, n, rows)
            assert same(gp.reduce(wide[:, 2 : n + 2], op, -1), got), (op, n)
            assert same(gp.reduce(x[20], op), got[20]), (op, n)
            if op in ("prod", "var", "std") or (op in ("max", "min") and dtype == torch.bool):
                continue
            close(got, expected(x, op, 1), dtype, scale=4.0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_short_rows_follow_the_written_tree(dtype: torch.dtype) -> None:
    for n in SHORT:
        x = make((37, n), dtype, "cpu", n)
        x[5] = -0.0
        values = (x if dtype in (torch.float32, torch.float64) else x.float()).numpy()
        want = torch.from_numpy(tree(values, dtype.itemsize)).to(dtype)
        got = gp.reduce(x, "sum", -1)
        assert torch.equal(got, want) and not got[5].signbit(), n
        wide = torch.from_numpy(tree(x.double().numpy(), dtype.itemsize))
        if dtype == torch.float32:
            assert torch.equal(gp.reduce(x, "sum", -1, dtype=torch.float64), wide), n


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 7, 8, 9, 20, 33, 70])
def test_columns(dtype: torch.dtype, columns: int) -> None:
    for n in (1, 3, 5, 63, 66, 200, 4096 + 70):
        x = make((n, columns), dtype, "cpu", n)
        if dtype.is_floating_point:
            x = x / 8
            x[n // 2, columns // 2] = float("nan")
        wide = torch.cat([x, x[:, :3]], 1)
        for op in ops_for(dtype):
            got = gp.reduce(x, op, 0)
            assert same(gp.reduce(wide[:, :columns], op, 0), got), (op, n)  # rows further apart
            if columns == 1 or n == 1:  # of the other class
                continue
            for c in (0, columns - 1):  # alone
                assert same(gp.reduce(x[:, c : c + 1].expand(n, 2), op, 0)[0], got[c]), (op, n, c)
            if op in ("argmax", "argmin", "any", "all"):
                assert torch.equal(got.long(), expected(x, op, 0).long()), (op, n)
            elif op not in ("prod", "var", "std"):
                close(got, expected(x, op, 0), dtype, scale=n**0.5)
