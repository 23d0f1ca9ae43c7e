// The bits of slots that hold no element. No PyTorch.
#pragma once
#include <cstdint>

#include "common/radix_keys.h"

namespace gpuprims {

// The worst value of the dtype: -inf or +inf, an integer's least or greatest.
inline uint64_t missing_bits(Dtype dtype, bool largest) {
  const int width = 8 * dtype_bytes(dtype);
  const uint64_t sign = uint64_t{1} << (width - 1), ones = ~uint64_t{0} >> (64 - width);
  if (is_floating(dtype)) {
    const uint64_t infinity = dtype == Dtype::f16    ? 0x7c00u
                              : dtype == Dtype::bf16 ? 0x7f80u
                              : dtype == Dtype::f32  ? 0x7f800000u
                                                     : 0x7ff0000000000000u;
    return largest ? infinity | sign : infinity;
  }
  if (is_signed_integer(dtype)) return largest ? sign : ones ^ sign;
  return largest ? 0 : dtype == Dtype::boolean ? 1 : ones;
}

// What outputs hold where the offsets are bad: NaN, or 0.
inline uint64_t bad_bits(Dtype dtype) {
  switch (dtype) {
    case Dtype::f16:
      return 0x7e00u;
    case Dtype::bf16:
      return 0x7fc0u;
    case Dtype::f32:
      return 0x7fc00000u;
    case Dtype::f64:
      return 0x7ff8000000000000u;
    default:
      return 0;
  }
}

}  // namespace gpuprims
