"""Key codecs: unsigned keys must order as the contract orders elements, against NumPy's own comparison."""

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "bool")
WIDTH = {"bool": 1, "bfloat16": 2}


def width(dtype: str) -> int:
    return WIDTH.get(dtype) or np.dtype(dtype).itemsize


def elements(bits: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers that these bits spell; NumPy has no bfloat16, so that one as float32."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.uint8 if dtype == "bool" else dtype)


def special(dtype: str) -> list[int]:
    """Bits around every edge: zeros, infinities, NaNs of both signs, ends of the range."""
    top = 8 * width(dtype)
    if dtype == "bool":
        return [0, 1]
    ends = [0, 1, 2, (1 << top) - 1, (1 << top) - 2, 1 << (top - 1), (1 << (top - 1)) - 1]
    if dtype not in FLOATS:
        return ends
    infinity = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000}.get(dtype, 0x7FF << 52)
    sign = 1 << (top - 1)
    near = [infinity - 1, infinity, infinity + 1, infinity | infinity >> 1, sign - 1]
    return [*ends, *near, *(sign | value for value in near)]


def bits_of(dtype: str) -> st.SearchStrategy[np.ndarray]:
    unsigned = np.dtype(f"uint{8 * width(dtype)}")
    high = 1 if dtype == "bool" else (1 << 8 * width(dtype)) - 1
    one = st.one_of(st.sampled_from(special(dtype)), st.integers(0, high))
    return st.lists(one, min_size=1, max_size=40).map(lambda values: np.array(values, unsigned))


def check_order(native: ModuleType, bits: np.ndarray, dtype: str, largest: bool) -> None:
    values = elements(bits, dtype)
    nan = np.isnan(values) if dtype in FLOATS else np.zeros(len(bits), bool)
    keys = native.encode(bits, dtype, largest)
    assert keys.dtype == bits.dtype
    a, b, nan_a, nan_b = values[:, None], values[None, :], nan[:, None], nan[None, :]
    with np.errstate(invalid="ignore"):
        less = np.where(nan_a | nan_b, ~nan_a & nan_b, a < b)
        equal = np.where(nan_a | nan_b, nan_a & nan_b, a == b)
    key_a, key_b = (keys[:, None], keys[None, :]) if largest else (keys[None, :], keys[:, None])
    np.testing.assert_array_equal(key_a < key_b, less)
    np.testing.assert_array_equal(key_a == key_b, equal)


def check_round_trip(native: ModuleType, bits: np.ndarray, dtype: str, largest: bool) -> None:
    """Decoding gives the element back: exactly, but for NaN's payload and the sign of zero."""
    back = native.decode(native.encode(bits, dtype, largest), dtype, largest)
    if dtype not in FLOATS:
        np.testing.assert_array_equal(back, bits)
        return
    values, decoded = elements(bits, dtype), elements(back, dtype)
    nan = np.isnan(values)
    assert np.isnan(decoded[nan]).all() and not np.signbit(decoded[nan]).any()
    zero = values == 0
    assert (back[zero] == 0).all()
    np.testing.assert_array_equal(back[~nan & ~zero], bits[~nan & ~zero])


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_keys_order_and_round_trip(native: ModuleType, dtype: str, largest: bool) -> None:
    @settings(max_examples=60, deadline=None)
    @given(bits_of(dtype))
    def run(bits: np.ndarray) -> None:
        check_order(native, bits, dtype, largest)
        check_round_trip(native, bits, dtype, largest)

    run()
    run_special = np.array(special(dtype), f"uint{8 * width(dtype)}")
    check_order(native, run_special, dtype, largest)
    check_round_trip(native, run_special, dtype, largest)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int16", "uint16", "int8", "uint8"])
def test_every_bit_pattern_of_narrow_types(native: ModuleType, dtype: str, largest: bool) -> None:
    """Sorting all keys sorts all elements; every pattern survives the round trip."""
    bits = np.arange(1 << 8 * width(dtype), dtype=f"uint{8 * width(dtype)}")
    check_round_trip(native, bits, dtype, largest)
    with np.errstate(invalid="ignore"):  # a signalling NaN warns as it is widened
        values = elements(bits, dtype).astype(np.float64)
    keys = native.encode(bits, dtype, largest)
    ordered = values[np.argsort(keys if largest else ~keys, kind="stable")]
    np.testing.assert_array_equal(ordered, np.sort(values))  # NumPy, too, sorts NaN to the end


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_of_either_sign_is_the_greatest(native: ModuleType, dtype: str) -> None:
    bits = np.array(special(dtype), f"uint{8 * width(dtype)}")
    nan = np.isnan(elements(bits, dtype))
    assert nan.sum() >= 4
    largest, smallest = native.encode(bits, dtype, True), native.encode(bits, dtype, False)
    assert (largest[nan] == np.iinfo(bits.dtype).max).all() and (smallest[nan] == 0).all()
    assert (largest[~nan] < np.iinfo(bits.dtype).max).all() and (smallest[~nan] > 0).all()
