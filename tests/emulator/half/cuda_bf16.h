// bfloat16 for the emulator.
#pragma once
#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 h) {
  const uint32_t wide = static_cast<uint32_t>(h.bits) << 16;
  float f;
  std::memcpy(&f, &wide, 4);
  return f;
}
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  uint32_t wide;
  std::memcpy(&wide, &f, 4);
  if (f != f) return {0x7fff};
  return {static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16)};
}
