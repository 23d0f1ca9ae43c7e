"""The sorts' plans: launches the hardware takes, workspaces that are stated; and their codecs."""

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

BYTES = {
    "uint8": 1, "bool": 1, "int16": 2, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "float64": 8,
    "int64": 8,
}  # fmt: skip
GRID = 2**31 - 1
CODE_MAP = 32 + 2048 * 4

lengths = st.one_of(st.integers(1, 20_000), st.integers(1, 2**33), st.integers(0, 30).map(lambda e: 1 << e))


@st.composite
def problems(draw: st.DrawFn) -> dict:
    n = draw(lengths)
    return {
        "dtype": draw(st.sampled_from(sorted(BYTES))),
        "rows": draw(st.integers(1, max(1, min(2**34 // n, 2**32)))),
        "n": n,
        "values": draw(st.booleans()),
        "index_bits": draw(st.sampled_from([32, 64])) if n < 2**31 else 64,
        "sms": draw(st.sampled_from([1, 20, 132])),
    }


@settings(max_examples=400, deadline=None)
@given(problems(), st.sampled_from(["automatic", "warp_row", "block_row", "sweep"]))
def test_launchable_and_within_its_workspace(native: ModuleType, problem: dict, forced: str) -> None:
    for indices in (True, False):
        if not (indices or problem["values"]):
            continue
        plan = native.plan_sort(**problem, indices=indices, forced=forced)
        assert 1 <= plan["grid"] <= GRID and 32 <= plan["threads"] <= 1024
        n, width = problem["n"], BYTES[problem["dtype"]]
        if plan["algo"] == "warp_row":
            assert n <= plan["items"] * plan["lanes"] <= 1024 and plan["lanes"] in (1, 2, 4, 8, 16, 32)
            assert plan["items"] * plan["lanes"] < 2 * max(n, 5) and plan["threads"] == 128
            assert plan["grid"] * plan["threads"] >= min(problem["rows"] * plan["lanes"], GRID)
        elif plan["algo"] == "block_row":
            assert n <= plan["items"] * plan["threads"] <= (16_384 if width == 8 else 32_768)
        else:
            total = problem["rows"] * n
            assert plan["tile"] == (8192 if indices or width == 8 else 12_288)
            assert plan["tiles"] * plan["tile"] >= total and plan["passes"] == width
            assert plan["wide_status"] == (n >= 2**30)
            if n < 2**32:
                assert plan["side"] == (4 if indices and width == 8 else 0)
            record = 8 if plan["packed"] else width
            assert plan["a_keys_at"] % 256 == 0 and plan["clear_bytes"] % 16 == 0
            # A second buffer, and where the outputs cannot hold one, a third; the map of each row to codes.
            maps = problem["rows"] * (CODE_MAP if plan["code_passes"] else 64 if plan["parts"] else 0)
            if plan["spread_bits"]:  # the map, where buckets begin, tiles and windows
                maps = CODE_MAP + (4 << plan["spread_bits"]) + (plan["tiles"] + 256) * 8 + n // 256 + 4096
            room = total * (2 * record + plan["side"]) + maps + 1024
            assert plan["workspace"] - plan["clear_bytes"] <= room


@settings(max_examples=400, deadline=None)
@given(problems())
def test_long_rows_are_sorted_in_parts_or_by_codes(native: ModuleType, problem: dict) -> None:
    n, total, width = problem["n"], problem["n"] * problem["rows"], BYTES[problem["dtype"]]
    plan = native.plan_sort(**problem)
    assert plan["parts"] == 0 or plan["code_passes"] == 0
    if width == 4 and 32_768 < n <= 200_000 and total >= 1_500_000:
        assert plan["parts"] >= 2
    if plan["parts"]:  # a part is smaller than what a block holds, by what a sample may miss
        assert width == 4 and n > 32_768 and plan["parts"] <= 12
        assert n / plan["parts"] * (1 + 5 * (plan["parts"] / 8192) ** 0.5) <= 24_576 + 1
        assert plan["part_grid"] == min(problem["rows"] * plan["parts"], problem["sms"])
    rows_pay = width == 4 and problem["rows"] > 1 and 32_768 < n <= 655_360  # shorter ones fit in a block
    integers_pay = problem["dtype"] == "int64" and n <= 120_000_000
    if not (rows_pay or integers_pay) or n < 32_768 or total < 6_000_000 or plan["parts"]:
        assert plan["code_passes"] == 0
        return
    assert plan["code_passes"] == (1 if n <= 655_360 else 2)
    assert 8 <= plan["code_bits"] <= 8 * plan["code_passes"]
    assert 1 <= plan["samples"] <= min(n, 16 * plan["sample_threads"])
    assert 1 <= plan["chunks"] <= n


@settings(max_examples=200, deadline=None)
@given(st.integers(2_500_000, 2**27), st.booleans(), st.sampled_from([1, 132]))
def test_one_long_row_by_buckets(native: ModuleType, n: int, indices: bool, sms: int) -> None:
    """Windows hold buckets, and tables have room for all that there may be."""
    plan = native.plan_sort("float32", 1, n, indices=indices, sms=sms)
    assert native.plan_sort("float32", 1, n, spread=0)["spread_bits"] == 0
    if not indices or n > 1700 * 65_536:
        assert plan["spread_bits"] == 0
        return
    bits, low = plan["spread_bits"], plan["spread_low"]
    assert 10 <= bits <= 16 and n >> bits <= 1700
    assert low == (0 if bits == 10 else bits // 2) and bits - low <= (10 if low == 0 else 8)
    assert plan["samples"] <= n and plan["samples"] % 1024 == 0
    assert plan["parts"] == plan["code_passes"] == 0
    tiles, windows = plan["tiles"] + 256, n // 2048 + 2  # the smallest windows; one partial tile a group
    assert plan["spread_tiles_at"] % 8 == 0
    assert plan["spread_windows_at"] - plan["spread_tiles_at"] >= tiles * 8
    assert plan["spread_crowded_at"] - plan["spread_windows_at"] >= windows * 4
    assert plan["codes_at"] - plan["spread_crowded_at"] >= windows * 4
    assert plan["workspace"] <= 1.05 * n * 8 + 1_000_000


@pytest.mark.parametrize("dtype, record", [("float32", 8), ("int64", 12)])
def test_second_buffer_and_five_percent(native: ModuleType, dtype: str, record: int) -> None:
    for n in (10**7, 10**8, 4 * 10**8):
        assert native.plan_sort(dtype, 1, n)["workspace"] <= 1.05 * n * record
        assert native.plan_sort(dtype, 1, n, indices=False)["workspace"] <= 1.05 * n * BYTES[dtype]


@pytest.mark.parametrize("rows", [1, 3, 1000])
@pytest.mark.parametrize("dtype", sorted(BYTES))
def test_second_buffer_and_what_is_counted(native: ModuleType, dtype: str, rows: int) -> None:
    """The bounds of the docstrings and docs/sort.md, for rows of any length."""
    width = BYTES[dtype]
    shortest = 16_385 if width == 8 else 32_769
    steps = [shortest * 101**i // 100**i for i in range(700)]
    for n in (*steps, 33_000, 10**8, 2**30 - 1, 2**30, 2**31 - 1, 2**31 + 1000):
        for indices in (False, True):
            plan = native.plan_sort(dtype, rows, n, indices=indices)
            buffer = rows * n * (width if not indices else 8 if width < 8 else 12)
            part = 0.11 if indices else 0.18
            if width >= 4 and n >= 100_000:
                part = 0.052
            if n < 2**30 and n >= 10**7:
                part = min(part, 0.018 if indices else 0.084)
            assert plan["algo"] == "sweep" and plan["workspace"] <= (1 + part) * buffer + 1024


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(BYTES)), lengths, st.integers(0, 10**7))
def test_lists_hold_any_mix_of_segments(native: ModuleType, dtype: str, n: int, segments: int) -> None:
    plan = native.plan_segments(dtype, n, segments)
    for room, over in zip(plan["capacity"], (256, 1024, 4096, 8192), strict=True):
        assert room == min(segments, n // (over + 1))
    longest = plan["capacity"][3]
    assert plan["tiles"] >= (n // 8192 + longest if longest else 0)
    assert plan["total"] >= plan["workspace"]


FLOATS = {
    "float16": (np.float16, np.uint16),
    "float32": (np.float32, np.uint32),
    "float64": (np.float64, np.uint64),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("descending", [False, True])
def test_codes(native: ModuleType, dtype: str, descending: bool) -> None:
    kind, raw = FLOATS[dtype]
    generator = np.random.default_rng(1)
    bits = generator.integers(0, np.iinfo(raw).max, 3000, dtype=raw, endpoint=True)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0, -1.0], kind).view(raw)
    bits = np.concatenate([bits, special]).astype(raw)
    x = bits.view(kind)
    keys = native.sort_code(bits.astype(np.uint64), dtype, descending, True, False)
    assert len(np.unique(keys)) == len(np.unique(bits))  # every bit pattern has its own key
    assert np.array_equal(native.sort_code(keys, dtype, descending, True, True), bits.astype(np.uint64))
    shared = native.sort_code(bits.astype(np.uint64), dtype, descending, False, False)
    for key in (keys, shared):
        y = x[np.argsort(key, kind="stable")]
        y = y[::-1] if descending else y
        numbers = y[~np.isnan(y)]
        assert np.all(numbers[1:] >= numbers[:-1]) and np.all(np.isnan(y[len(numbers) :]))
    zeros = shared[x == 0]
    assert len(set(zeros.tolist())) == 1 and len(set(shared[np.isnan(x)].tolist())) == 1
