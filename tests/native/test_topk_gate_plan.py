"""topk_gate's plan: for any sizes a launch that the hardware takes, and bits that rows do not change."""

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def problems(draw: st.DrawFn) -> dict:
    groups = draw(st.one_of(st.integers(1, 2048), st.sampled_from([1, 8, 32])))
    n = groups * draw(st.integers(1, 2048 // groups))
    kept = draw(st.integers(1, groups))
    wide = draw(st.booleans())
    return {
        "wide": wide,
        "bytes": 8 if wide else draw(st.sampled_from([2, 4])),
        "rows": draw(st.one_of(st.integers(1, 10**5), st.integers(1, 2**40))),
        "n": n,
        "k": draw(st.integers(1, min(64, n // groups * kept))),
        "num_groups": groups,
        "topk_groups": kept,
        "biased": draw(st.booleans()),
    }


@settings(max_examples=500, deadline=None)
@given(problems())
def test_plan_is_launchable(native: ModuleType, problem: dict) -> None:
    plan = native.plan_gate(**problem)
    assert 1 <= plan["grid"] < 2**31
    assert plan["threads"] % 32 == 0 and 32 <= plan["threads"] <= 128
    assert plan["lanes"] in (8, 16, 32)
    assert 0 <= plan["smem"] <= 48 * 1024
    size = 8 if problem["wide"] else 4
    if plan["algo"] == "lanes":
        assert not plan["grouped"] and not problem["biased"] and not problem["wide"]
        assert problem["n"] <= 16 * plan["lanes"] and 4 * problem["k"] <= 3 * plan["lanes"]
    else:
        keys = problem["n"] + (problem["num_groups"] if plan["grouped"] else 0)
        assert plan["warp_smem"] >= size * (keys + 2 * (128 + 64)) and plan["warp_smem"] % 16 == 0
        assert plan["smem"] == plan["warp_smem"] * plan["threads"] // 32
        assert plan["group_lanes"] == 1 or plan["group_lanes"] * problem["num_groups"] <= 32
    other = native.plan_gate(**{**problem, "rows": 7})
    assert (other["algo"], other["lanes"]) == (plan["algo"], plan["lanes"])  # what decides bits


@pytest.mark.parametrize("rows, n, k", [(0, 5, 2), (5, 0, 0), (5, 7, 0)])
def test_nothing_to_do_launches_nothing(native: ModuleType, rows: int, n: int, k: int) -> None:
    assert native.plan_gate(False, 4, rows, n, k)["grid"] == 0


@pytest.mark.parametrize(
    "n, k, options, algo, lanes",
    [
        (256, 8, {}, "lanes", 16),
        (128, 8, {}, "lanes", 16),
        (64, 6, {}, "lanes", 8),
        (8, 2, {}, "lanes", 8),
        (256, 8, {"num_groups": 8, "topk_groups": 4}, "warp", 32),
        (256, 8, {"num_groups": 8, "topk_groups": 8}, "lanes", 16),  # every group is kept
        (384, 8, {"biased": True}, "warp", 32),
        (2048, 64, {}, "warp", 32),
    ],
)
def test_family_of_well_known_routers(
    native: ModuleType, n: int, k: int, options: dict, algo: str, lanes: int
) -> None:
    plan = native.plan_gate(False, 4, 16_384, n, k, **options)
    assert (plan["algo"], plan["lanes"]) == (algo, lanes)
