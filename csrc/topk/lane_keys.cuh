// Elements as one lane sees them: a value that the card compares as it is, and a signed key of it
// whose order is the contract's. float32 keeps its value (its maximum, NaN included, is one
// instruction); the other types are widened to 32 or 64 bits.
#pragma once
#include <cuda_runtime.h>

#include <limits>
#include <type_traits>

#include "common/radix_keys.h"

namespace gpuprims {

__device__ __forceinline__ float max_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

__device__ __forceinline__ float min_number(float a, float b) {  // the other where one is a NaN
  float smaller;
  asm("min.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}

// The bits of x + 0: -0.0 becomes +0.0 and every NaN the one NaN of 32-bit arithmetic, 0x7fffffff.
__device__ __forceinline__ int32_t canonical_bits(float x) {
  int32_t bits;
  asm("{ .reg .f32 sum; add.rn.f32 sum, %1, 0f00000000; mov.b32 %0, sum; }" : "=r"(bits) : "f"(x));
  return bits;
}

// The float32 of a float16's bits.
__device__ __forceinline__ float half_value(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// A lane's view has: Key, the element's bits; Value; Order, the signed key; kWorst, a key below
// which none is, and kWorstIsReal, whether an element can have it; value(bits), best(a, b),
// order(value); worst(), a value that no element is worse than; and passes(value, gate(limit)),
// whether the element's key is above the limit (for any limit but the highest Order).
enum class Float { f32, f16, bf16 };

template <Float kType, bool kSmallest>
struct FloatView {
  using Key = std::conditional_t<kType == Float::f32, uint32_t, uint16_t>;
  using Value = float;
  using Order = int32_t;
  static constexpr bool kWorstIsReal = kSmallest;  // NaN
  static constexpr Order kWorst = kSmallest ? -0x7fffffff : INT32_MIN;

  __device__ __forceinline__ explicit FloatView(const KeyCodec<Key>&) {}
  __device__ __forceinline__ Value value(Key bits) const {
    if constexpr (kType == Float::f32)
      return __uint_as_float(bits);
    else if constexpr (kType == Float::bf16)
      return __uint_as_float(static_cast<uint32_t>(bits) << 16);
    else
      return half_value(bits);
  }
  static __device__ __forceinline__ Value best(Value a, Value b) {
    return kSmallest ? min_number(a, b) : max_or_nan(a, b);  // a NaN is the worst of the smallest
  }
  static __device__ __forceinline__ Order order(Value value) {
    const int32_t bits = canonical_bits(value), key = bits ^ ((bits >> 31) & 0x7fffffff);
    return kSmallest ? -key : key;
  }
  static __device__ __forceinline__ Value gate(Order limit) {
    int32_t key = kSmallest ? -(limit + 1) : limit;
    if (key == -1) key = -2;                 // -0.0 is no key
    if (key > 0x7f800000) key = 0x7f800000;  // behind infinity there are only NaNs
    return __uint_as_float(static_cast<uint32_t>(key ^ ((key >> 31) & 0x7fffffff)));
  }
  static __device__ __forceinline__ bool passes(Value value, Value gate) {
    return kSmallest ? value <= gate : !(value <= gate);
  }
  static __device__ __forceinline__ Value worst() {
    return __uint_as_float(kSmallest ? 0x7fffffffu : 0xff800000u);
  }
};

// Integers of 1 and 4 bytes: one instruction turns the order round and makes unsigned ones signed.
template <class K>
struct IntegerView {
  using Key = K;
  using Signed = std::make_signed_t<Key>;
  using Value = int32_t;
  using Order = int32_t;
  static constexpr bool kWorstIsReal = sizeof(Key) == 4;
  static constexpr Order kWorst = INT32_MIN;

  __device__ __forceinline__ explicit IntegerView(const KeyCodec<Key>& codec)
      : flip_(static_cast<Key>(codec.invert ^ codec.sign ^ (Key(1) << (sizeof(Key) * 8 - 1)))) {}
  __device__ __forceinline__ Value value(Key bits) const {
    return static_cast<Signed>(static_cast<Key>(bits ^ flip_));
  }
  static __device__ __forceinline__ Value best(Value a, Value b) { return a > b ? a : b; }
  static __device__ __forceinline__ Order order(Value value) { return value; }
  static __device__ __forceinline__ Value gate(Order limit) { return limit; }
  static __device__ __forceinline__ bool passes(Value value, Value gate) { return value > gate; }
  static __device__ __forceinline__ Value worst() { return INT32_MIN + !kWorstIsReal; }

 private:
  Key flip_;
};

// Any type of 2 or 8 bytes, by its codec.
template <class K>
struct CodecView {
  using Key = K;
  using Value = std::conditional_t<sizeof(Key) == 8, int64_t, int32_t>;
  using Order = Value;
  static constexpr bool kWorstIsReal = sizeof(Key) == 8;
  static constexpr Order kWorst = std::numeric_limits<Order>::min();

  __device__ __forceinline__ explicit CodecView(const KeyCodec<Key>& codec) : codec_(codec) {}
  __device__ __forceinline__ Value value(Key bits) const {
    const Key key = codec_.encode(bits);
    if constexpr (kWorstIsReal)
      return static_cast<Value>(key ^ (Key(1) << 63));
    else
      return key;
  }
  static __device__ __forceinline__ Value best(Value a, Value b) { return a > b ? a : b; }
  static __device__ __forceinline__ Order order(Value value) { return value; }
  static __device__ __forceinline__ Value gate(Order limit) { return limit; }
  static __device__ __forceinline__ bool passes(Value value, Value gate) { return value > gate; }
  static __device__ __forceinline__ Value worst() { return kWorstIsReal ? INT64_MIN : -1; }

 private:
  const KeyCodec<Key>& codec_;
};

template <class Order>
inline constexpr Order kHighest = std::numeric_limits<Order>::max();

// The bits of an element that no element is worse than.
template <class Key>
__device__ __forceinline__ Key worst_bits(const KeyCodec<Key>& codec) {
  if (codec.float_mask && !codec.invert) return static_cast<Key>(codec.sign | codec.infinity);
  return codec.decode(0);
}

}  // namespace gpuprims
