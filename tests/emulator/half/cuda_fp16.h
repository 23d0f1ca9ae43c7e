// 16-bit floats for the emulator, by the host compiler's own _Float16.
#pragma once
#include <cstdint>
#include <cstring>

struct __half {
  uint16_t bits;
};

inline float __half2float(__half h) {
  _Float16 value;
  std::memcpy(&value, &h, 2);
  return static_cast<float>(value);
}
inline __half __float2half_rn(float f) {
  const auto value = static_cast<_Float16>(f);
  __half h;
  std::memcpy(&h, &value, 2);
  return h;
}
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
