// Loads with cache hints, and arithmetic by name, for kernels of 16-bit floats on the host.
#pragma once
#include <cmath>

#include "simt.h"

template <class T>
T __ldg(const T* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T)) simt::fail("a vector load is misaligned");
  return *at;
}
template <class T>
T __ldcs(const T* at) {
  return __ldg(at);
}
template <class T>
void __stcs(T* at, T value) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T)) simt::fail("a vector store is misaligned");
  *at = value;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline double __hiloint2double(int high, int low) {
  const uint64_t bits =
      static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}
