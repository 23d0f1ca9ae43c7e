"""Plans of the reductions: every row of a chunk is added once, and what decides bits looks at n alone."""

from typing import Any

import pytest
import torch

SUM, ARGMAX, VAR = 0, 5, 12


def plan(native: Any, x: torch.Tensor, dims: list[int], op: int = SUM, **kwargs: Any) -> dict[str, Any]:
    dtype = str(x.dtype).removeprefix("torch.")
    return native.plan_reduce(op, dtype, list(x.shape), list(x.stride()), dims, **kwargs)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_algorithms(native: Any) -> None:
    assert plan(native, meta(1_000_000, 64), [1])["algo"] == "packed_rows"
    assert plan(native, meta(4096, 32_768), [1])["algo"] == "long_rows"
    assert plan(native, meta(32_768, 4096), [0])["algo"] == "strided"
    assert plan(native, meta(100, 2000).t(), [0])["algo"] == "long_rows"
    assert plan(native, meta(100, 50, dtype=torch.int8), [1])["algo"] == "packed_rows"
    assert plan(native, meta(100, 50, dtype=torch.float64), [1])["algo"] == "long_rows"
    assert plan(native, meta(100, 512), [1])["lanes"] == 32
    assert plan(native, meta(100, 513), [1])["algo"] == "long_rows"


def test_dimensions_merge(native: Any) -> None:
    x = meta(4, 5, 6, 7)
    for y, dims, kept, gone in (
        (x, [0, 1, 2, 3], 0, 1), (x, [2, 3], 1, 1), (x, [0, 1], 1, 1), (x, [1, 2], 2, 1), (x, [0, 2], 2, 2),
        (x.permute(3, 1, 0, 2), [0, 1, 2, 3], 0, 1), (x[:, :1].expand(4, 9, 6, 7), [1], 2, 1),
    ):  # fmt: skip
        found = plan(native, y, dims)
        assert (found["kept_dims"], found["reduced_dims"]) == (kept, gone), (dims, found)
    assert plan(native, x.permute(3, 1, 0, 2), [0, 1, 2, 3])["algo"] == "long_rows"
    assert plan(native, x.permute(3, 1, 0, 2), [0, 1, 2, 3], ARGMAX)["algo"] == "strided"


@pytest.mark.parametrize("op", [SUM, ARGMAX, VAR])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_threads_have_every_piece_of_every_column(native: Any, dtype: torch.dtype, op: int) -> None:
    for n in (2, 63, 64, 65, 300, 4096, 4097, 100_000, 10_000_000):
        for f in (2, 3, 33, 129, 1000, 4096, 1_000_000):
            for chunks in (0, 1, 4):
                found = plan(native, meta(n, f, dtype=dtype), [0], op, chunks=chunks)
                rows, pieces, lanes = found["rows"], found["pieces"], 4 if found["shared"] else 1
                assert found["algo"] == "strided"
                assert found["tiles"] * found["columns"] * found["wide"] >= f
                assert found["parts"] == -(-n // (64 * rows * pieces))
                assert found["grid"] == found["tiles"] * found["parts"]
                assert found["columns"] * rows * lanes <= found["threads"] <= 256
                assert found["parts"] == 1 or found["threads"] == 256
                for power in (rows, pieces, found["columns"]):
                    assert power & (power - 1) == 0
                assert rows * pieces <= 512 and pieces <= 8  # a group's, and levels of the kernel
                assert not (found["shared"] and op == VAR)  # whose lanes are not kept apart


def test_bits_do_not_depend_on_the_batch(native: Any) -> None:
    for n in (5, 64, 100, 1000, 4096, 20_000):
        rows = [plan(native, meta(r, n), [1], VAR) for r in (2, 1000, 1_000_000)]
        for key in ("algo", "lanes"):
            assert len({found[key] for found in rows}) == 1, (n, key)


def test_pieces_one_after_another(native: Any) -> None:
    """While there are threads for most places; for positions, 2.5 threads a place."""
    for op, pieces in ((SUM, 8), (VAR, 8), (ARGMAX, 2)):
        assert plan(native, meta(32_768, 4096), [0], op)["pieces"] == pieces
        assert plan(native, meta(64, 1_000_000), [0], op)["pieces"] == 1
        assert plan(native, meta(256, 256, 4096), [1], op)["pieces"] == 1
        assert plan(native, meta(32_768, 65_536), [0], op)["pieces"] == 8


def test_grids_and_workspaces(native: Any) -> None:
    for n in (2**20, 2**24, 2**28):
        for chunks in (0, 1, 2, 4, 8):
            found = plan(native, meta(n), [0], chunks=chunks)
            assert found["parts"] * found["per"] * 4096 >= n and found["grid"] == found["parts"]
            assert found["workspace"] == 4 * found["parts"] and found["tickets"] == 1
    assert plan(native, meta(2**24), [0])["grid"] == 512
    assert plan(native, meta(2**20), [0])["grid"] == 256
    columns = plan(native, meta(32_768, 4096), [0])
    assert columns["grid"] >= 3 * 132 // 2 and columns["threads"] <= 256
    assert plan(native, meta(0, 5), [0])["grid"] > 0 and plan(native, meta(5, 0), [0])["grid"] == 0
