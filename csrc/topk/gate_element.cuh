// topk_gate's arithmetic on one logit: reading, order, exp, sigmoid; and sums over lanes.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "topk/gate_kernels.h"
#include "topk/rows.cuh"

namespace gpuprims {

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ float widen(Bfloat value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
__device__ __forceinline__ float widen(Half value) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(value.bits));
  return out;
}

// A word of elements that are -inf.
template <class T>
constexpr uint32_t minus_infinities() {
  return sizeof(T) == 4 ? 0xff800000u : std::is_same_v<T, Half> ? 0xfc00fc00u : 0xff80ff80u;
}

// What a gate computes in, by the logits' type.
template <class T>
struct GateReal {
  using Real = float;
  using Key = uint32_t;
  using Pair = Narrow;
};
template <>
struct GateReal<double> {
  using Real = double;
  using Key = uint64_t;
  using Pair = Wide;
};

// The contract's order as an integer: NaN above all, -0.0 equal to +0.0; no number's key is 0.
template <class Real, class Key = std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t>>
__device__ __forceinline__ Key order_key(Real value) {
  constexpr int kTop = sizeof(Key) * 8 - 1;
  const bool nan = value != value;
  value += Real(0);  // -0.0 becomes +0.0
  Key bits;
  memcpy(&bits, &value, sizeof bits);
  const Key key = bits ^ ((Key(0) - (bits >> kTop)) | Key(1) << kTop);
  return nan ? ~Key(0) : key;
}

// The number with a key.
template <class Key>
__device__ __forceinline__ auto order_value(Key key) {
  constexpr int kTop = sizeof(Key) * 8 - 1;
  const Key bits = key ^ ((key >> kTop) - 1 | Key(1) << kTop);
  std::conditional_t<sizeof(Key) == 4, float, double> value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

__device__ __forceinline__ float larger_nan(float a, float b) {  // NaN where either is
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }

// exp for a softmax's denominator alone, x <= 0: 2 instructions for 8. A term is off by at most
// 2^-22 (ex2.approx) + 1.4e-7 |x| of itself (rounding of the difference, the product and log2 e).
// Weighted by the terms' shares of the sum, |x| is at most the row's entropy, so ln(512): 1.2e-6 of
// the sum in all, were every error to point the same way. Numerators are expf's.
__device__ __forceinline__ float denominator_term(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x * 1.44269504f));
  return out;
}

// Keeps the digits of exp in either tail: 1 / (1 + exp(-x)) would be 0 below -88.
template <class Real>
__device__ __forceinline__ Real sigmoid(Real x) {
  const Real e = exponential(x < 0 ? x : -x);
  return (x < 0 ? e : Real(1)) / (Real(1) + e);
}

// Over kLanes lanes that follow each other, in every lane; the tree is fixed.
template <int kLanes, class Real>
__device__ __forceinline__ Real lanes_sum(Real value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

template <class Key>
__device__ __forceinline__ Key warp_max(Key key) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Key other = __shfl_xor_sync(~0u, key, step);
    key = other > key ? other : key;
  }
  return key;
}

// Writes slot i of a row: `score` as a share of `total`; a total of 0 gives 0.
template <class Real>
__device__ __forceinline__ void write_slot(const GateArgs& args, int64_t at, Real score, Real total,
                                           int64_t index) {
  const Real weight = total == 0 ? Real(0) : score / total * static_cast<Real>(args.scale);
  static_cast<Real*>(args.weights)[at] = weight;
  if (args.wide_index)
    static_cast<int64_t*>(args.indices)[at] = index;
  else
    static_cast<int32_t*>(args.indices)[at] = static_cast<int32_t>(index);
}

}  // namespace gpuprims
