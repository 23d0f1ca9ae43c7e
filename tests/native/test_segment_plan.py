"""segment_topk's plan: room for every segment that there can be, launches that the hardware takes."""

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

BYTES = {"uint8": 1, "float16": 2, "float32": 4, "int32": 4, "float64": 8, "bool": 1}
sizes = st.one_of(st.integers(0, 5000), st.integers(0, 2**33), st.integers(0, 32).map(lambda e: 1 << e))
problems = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(sorted(BYTES)),
        "n": sizes,
        "segments": sizes,
        "k": st.one_of(st.integers(0, 5000), sizes),
        "sms": st.sampled_from([1, 20, 132]),
        "smem": st.sampled_from([99 << 10, 227 << 10]),
        "look": st.booleans(),
        "promises": st.sampled_from([0, 1, 3, 7]),
    }
)


@settings(max_examples=500, deadline=None)
@given(problems)
def test_room_and_launches(native: ModuleType, problem: dict) -> None:
    plan = native.plan_segment(**problem)
    n, segments, k, size = (problem[name] for name in ("n", "segments", "k", "dtype"))
    size = BYTES[size]
    if segments == 0 or k == 0:
        assert plan["passes"] == 0
        return
    assert plan["width"] == min(k, 4096) and plan["passes"] * plan["width"] >= min(k, n)
    assert 1 <= plan["group"] <= 32 and 1 <= plan["small_blocks"] < 2**31
    pair = 16 if plan["wide"] else 8
    assert plan["wide"] == (size == 8 or n >= 2**32)
    lists = plan["big"] + plan["medium"] + plan["chunks"]
    assert plan["prepare"] or (lists == 0 and plan["workspace"] == 0)
    # As many segments as can be longer than a warp takes.
    if n > plan["small"] and not problem["promises"] & 4:
        if plan["medium"]:
            assert plan["medium"] * (plan["small"] + 1) <= n < (plan["medium"] + 1) * (plan["small"] + 1)
            assert plan["width"] <= 8 * 128 and plan["medium_capacity"] > plan["width"]
        else:
            assert plan["medium_limit"] == plan["small"] or n <= plan["small"]
        assert plan["big"] == n // (plan["medium_limit"] + 1)
        assert plan["capacity"] > plan["width"] and plan["capacity"] % 8 == 0 and plan["width"] <= 8 * 512
        assert plan["smem"] + 6000 <= problem["smem"]
        assert plan["item_blocks"] >= (lists > plan["medium"])
        cuts = n >= 2 * plan["chunk"] and not problem["promises"] & 2
        assert plan["chunks"] == (n // plan["chunk"] if cuts else 0)
        if cuts:
            assert plan["fan"] ** plan["rounds"] >= plan["chunks"]
            assert plan["width"] < plan["chunk"] < 2**30  # positions fit 32 bits
        else:
            assert problem["promises"] & 2 or plan["chunk"] < 2**30
    elif not problem["promises"] & 4:
        assert lists == 0
    # Beside the ceilings of further passes, 5 % of the input and 1 MiB.
    ceilings = segments * pair if plan["passes"] > 1 and lists else 0
    assert plan["workspace"] - ceilings <= 0.05 * n * size + (1 << 20)


@pytest.mark.parametrize(
    "dtype, largest, bits",
    [
        ("float32", True, 0xFF800000), ("float32", False, 0x7F800000), ("float16", True, 0xFC00),
        ("bfloat16", False, 0x7F80), ("float64", True, 0xFFF << 52), ("uint8", True, 0),
        ("uint8", False, 255), ("int8", True, 128), ("int8", False, 127), ("int64", True, 1 << 63),
        ("bool", False, 1),
    ],
)  # fmt: skip
def test_missing_bits(native: ModuleType, dtype: str, largest: bool, bits: int) -> None:
    assert native.missing_bits(dtype, largest) == bits
