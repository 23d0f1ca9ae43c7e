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
    assert plan(native, meta(100, 200).t(), [0])["algo"] == "long_rows"
    assert plan(native, meta(100, 50, dtype=torch.int8), [1])["algo"] == "strided"


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_threads_share_out_every_row_of_a_chunk(native: Any, dtype: torch.dtype) -> None:
    for n in (2, 3, 7, 16, 33, 64, 100, 128, 129, 256, 300, 4095, 4096):
        found = plan(native, meta(n, 1000, dtype=dtype), [0])
        assert found["algo"] == "strided"
        seen = []
        for thread in range(found["rows"]):
            for octet in range(found["octets"]):
                bits = octet | thread << found["levels"]
                first = sum(found["stride"][b] for b in range(8) if bits >> b & 1)
                for step in range(first, n, found["accumulators"]):
                    seen += [step + offset for offset in found["offset"] if step + offset < n]
        assert sorted(seen) == list(range(n)), n


def test_bits_do_not_depend_on_the_batch(native: Any) -> None:
    for n in (5, 64, 100, 1000, 4096, 20_000):
        columns = [plan(native, meta(n, f), [0], VAR) for f in (2, 64, 1000, 1_000_000)]
        for key in ("rows", "octets", "offset", "stride", "accumulators"):
            assert len({str(found[key]) for found in columns}) == 1, (n, key)
        rows = [plan(native, meta(r, n), [1], VAR) for r in (2, 1000, 1_000_000)]
        for key in ("algo", "lanes"):
            assert len({found[key] for found in rows}) == 1, (n, key)


def test_grids_and_workspaces(native: Any) -> None:
    for n in (2**20, 2**24, 2**28):
        for chunks in (0, 1, 2, 4, 8):
            found = plan(native, meta(n), [0], chunks=chunks)
            assert found["parts"] * found["per"] * 4096 >= n and found["grid"] == found["parts"]
            assert found["workspace"] == 4 * found["parts"] and found["tickets"] == 1
    assert plan(native, meta(2**24), [0])["grid"] == 512
    assert plan(native, meta(2**20), [0])["grid"] == 256
    columns = plan(native, meta(32_768, 4096), [0])
    assert columns["parts"] == 8 and columns["grid"] >= 132 and columns["threads"] <= 256
    assert plan(native, meta(0, 5), [0])["grid"] > 0 and plan(native, meta(5, 0), [0])["grid"] == 0
