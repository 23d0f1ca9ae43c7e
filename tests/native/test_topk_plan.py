"""topk's plan: for any sizes a launch that the hardware takes, and a row shared out among blocks whole."""

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = ("uint8", "int8", "float16", "bfloat16", "float32", "int32", "float64", "int64")
ALGORITHMS = (
    "automatic",
    "block_row",
    "split_row",
    "sort",
    "thread_row",
    "radix",
    "lanes",
    "count_row",
    "warp_row",
    "cluster_row",
    "part_row",
)
SMEM = 227 * 1024  # most that a block may ask for on sm_90; 99 KiB on sm_86 and sm_120
GRID = 2**31 - 1

lengths = st.one_of(st.integers(1, 5000), st.integers(1, 2**33), st.integers(0, 30).map(lambda e: 1 << e))


@st.composite
def problems(draw: st.DrawFn) -> dict:
    n = draw(lengths)
    rows = draw(st.integers(1, max(1, min(2**34 // n, 2**32))))
    k = draw(st.one_of(st.integers(1, min(n, 5000)), st.integers(1, n), st.just(n)))
    sms = draw(st.sampled_from([1, 20, 78, 132, 148]))
    return {"dtype": draw(st.sampled_from(DTYPES)), "rows": rows, "n": n, "k": k, "sms": sms}


@settings(max_examples=500, deadline=None)
@given(problems(), st.sampled_from(ALGORITHMS), st.booleans())
def test_plan_is_launchable_and_covers_the_row(
    native: ModuleType, problem: dict, forced: str, vectors: bool
) -> None:
    whole = problem["n"] * native.dtype_bytes(problem["dtype"]) % 16 == 0
    problem["vectors"] = vectors and whole and problem["dtype"] in ("float16", "bfloat16", "float32")
    plan = native.plan_topk(**problem, forced=forced)
    assert plan["algo"] in ALGORITHMS[1:]
    assert 1 <= plan["grid"] <= GRID
    assert plan["threads"] % 32 == 0 and 32 <= plan["threads"] <= 1024
    assert 0 <= plan["smem"] <= SMEM
    assert plan["workspace"] >= 0
    if plan["algo"] in ("block_row", "split_row"):
        splits, chunk = plan["splits"], plan["chunk"]
        assert (splits - 1) * chunk < problem["n"] <= splits * chunk
        assert (splits > 1) == (plan["algo"] == "split_row")
    if plan["algo"] == "thread_row":
        lanes, warps = plan["lanes"], plan["threads"] // 32
        assert lanes in (1, 2, 4, 8) and problem["n"] <= 1024 and problem["k"] <= 16
        row = native.dtype_bytes(problem["dtype"]) * problem["n"]
        assert plan["smem"] >= warps * (32 // lanes) * row
        assert plan["grid"] * warps * (32 // lanes) >= min(problem["rows"], GRID)
    if plan["algo"] == "count_row":  # every element is ranked by some block
        rows, n, tile = problem["rows"], problem["n"], plan["tile"]
        assert plan["splits"] * tile >= n and plan["workspace"] == 0
        per_block = 1 if n > tile else tile // (1 << (n - 1).bit_length())
        assert plan["grid"] >= plan["splits"] * -(-rows // per_block)
        assert plan["smem"] >= per_block * n * max(native.dtype_bytes(problem["dtype"]), 4)
    if plan["algo"] == "cluster_row":  # all of a row is in its blocks' registers, or has been
        vectors = -(-problem["n"] * native.dtype_bytes(problem["dtype"]) // 16)
        assert plan["splits"] in (1, 2, 4, 8) and plan["grid"] == problem["rows"] * plan["splits"]
        assert vectors <= plan["splits"] * plan["threads"] * (8 if plan["splits"] == 1 else 16)
        assert problem["k"] <= 96 and plan["workspace"] == 0
    if plan["algo"] == "part_row":  # parts cover the row, and one block takes all that they hand over
        splits, chunk = plan["splits"], plan["chunk"]
        assert (splits - 1) * chunk < problem["n"] <= splits * chunk
        assert plan["grid"] == problem["rows"] * splits <= problem["sms"]
        assert problem["k"] <= 192 and plan["workspace"] <= problem["rows"] * 4096 * 8
        assert splits == 1 or plan["workspace"] >= problem["rows"] * splits * problem["k"] * 8
    if native.dtype_bytes(problem["dtype"]) == 8 or problem["n"] > 2**32:
        assert plan["wide"]
    assert plan == native.plan_topk(**problem, forced=forced)


@pytest.mark.parametrize("rows, n, k", [(0, 5, 2), (5, 0, 0), (5, 7, 0)])
def test_nothing_to_do_launches_nothing(native: ModuleType, rows: int, n: int, k: int) -> None:
    assert native.plan_topk("float32", rows, n, k)["grid"] == 0


@pytest.mark.parametrize(
    "rows, n, k, algo",
    [
        (16_384, 256, 8, "thread_row"),
        (100_000, 100, 5, "thread_row"),
        (16_384, 256, 20, "radix"),
        (16_384, 512, 20, "radix"),
        (16_384, 600, 20, "block_row"),
        (4, 100, 5, "count_row"),
        (4, 512, 16, "count_row"),
        (4, 1000, 5, "count_row"),
        (1, 4096, 2000, "count_row"),
        (2000, 1, 1, "count_row"),
        (1024, 32_768, 64, "block_row"),
        (1, 100_000_000, 20, "split_row"),
        (1, 1_000_000, 500_000, "radix"),
        (3, 5000, 5000, "radix"),
        (100_000, 32, 31, "radix"),
        (1000, 100, 64, "count_row"),
        (4096, 100, 64, "radix"),
        (500, 1000, 20, "block_row"),
        (16_384, 100, 64, "radix"),
        (4096, 4096, 500, "block_row"),
        (64, 131_072, 2048, "split_row"),
    ],
)
def test_family_of_well_known_sizes(native: ModuleType, rows: int, n: int, k: int, algo: str) -> None:
    assert native.plan_topk("float32", rows, n, k)["algo"] == algo


@pytest.mark.parametrize(
    "rows, n, k, algo",
    [
        (16_384, 256, 8, "lanes"),
        (8, 16, 4, "count_row"),
        (8, 128, 4, "lanes"),
        (16_384, 100, 5, "lanes"),
        (100_000, 100, 5, "thread_row"),
        (9, 600, 5, "count_row"),
        (9000, 600, 5, "warp_row"),
        (4096, 4096, 16, "warp_row"),
        (4096, 4096, 32, "warp_row"),
        (4096, 2048, 32, "warp_row"),
        (1000, 4096, 32, "block_row"),
        (100, 10_000, 10, "cluster_row"),
        (132, 16_384, 64, "cluster_row"),
        (133, 16_384, 64, "block_row"),
        (12, 131_072, 20, "cluster_row"),
        (13, 131_072, 20, "part_row"),
        (1, 262_144, 96, "cluster_row"),
        (1, 262_148, 20, "part_row"),
        (64, 131_072, 2048, "split_row"),
        (1, 100_000, 97, "split_row"),
    ],
)
def test_family_of_floats_in_whole_vectors(native: ModuleType, rows: int, n: int, k: int, algo: str) -> None:
    assert native.plan_topk("float32", rows, n, k, vectors=True)["algo"] == algo


def test_names_of_algorithms_are_those_that_explain_knows(native: ModuleType) -> None:
    from torch_gpuprims import _explain

    assert native.topk_algorithms() == list(ALGORITHMS) == ["automatic", *_explain._ALGOS[1:]]


def test_sort_states_what_its_merges_move(native: ModuleType) -> None:
    """Masks with k above 4,096: pairs of 16 bytes, written by tiles, moved twice by each merge of k."""
    plan = native.plan_topk("float32", 3, 10_000, 5000, masked=True)
    assert plan["algo"] == "sort"
    merges = 2 * (4096 + 4096 + 1808) + 2 * (5000 + 1808) + 2 * 5000
    assert plan["workspace"] == 2 * 480_000  # more than a sort's, as docs/topk.md states
    assert plan["traffic"] == 3 * (10_000 * 4 + 5000 * 12 + 16 * (10_000 + 5000 + merges))
    narrow = native.plan_topk("float32", 3, 10_000, 5000, masked=True, index_bits=32)
    assert plan["traffic"] - narrow["traffic"] == 3 * 5000 * 4


@pytest.mark.parametrize(
    "rows, n, k, parts",
    [(1, 10**6, 20, 131), (1, 10**7, 20, 132), (1, 10**8, 20, 132), (64, 10**6, 100, 2), (100, 50_000, 50, 1),
     (1, 10**8, 24, 132), (1, 10**8, 25, 0), (1, 10**9, 20, 0), (64, 131_072, 2048, 0), (1, 10**5, 20, 0)],
)  # fmt: skip
def test_parts_of_long_rows(native: ModuleType, rows: int, n: int, k: int, parts: int) -> None:
    plan = native.plan_topk("float32", rows, n, k, vectors=True)
    assert (plan["algo"] == "part_row") == (parts > 0)
    assert parts == 0 or plan["splits"] == parts


@pytest.mark.parametrize("rows, n, k, lanes", [(100_000, 100, 5, 1), (10**6, 256, 8, 2), (16_384, 256, 8, 4)])
def test_few_or_long_rows_are_shared_by_more_lanes(
    native: ModuleType, rows: int, n: int, k: int, lanes: int
) -> None:
    assert native.plan_topk("float32", rows, n, k)["lanes"] == lanes


@settings(max_examples=1000, deadline=None)
@given(problems())
def test_workspace_is_within_its_limit(native: ModuleType, problem: dict) -> None:
    """k up to 4096: at most 5 % of the input and 16 MiB; above: what sorting all takes, results too."""
    plan = native.plan_topk(**problem)
    size = native.dtype_bytes(problem["dtype"])
    elements = problem["rows"] * problem["n"]
    if problem["k"] <= 4096:
        assert plan["workspace"] <= 0.05 * size * elements + (16 << 20)
    else:
        small = (64 << 10) * problem["sms"] + 40 * problem["rows"]  # tables, whatever the elements
        assert plan["workspace"] <= (48 if plan["wide"] else 32) * elements + small
