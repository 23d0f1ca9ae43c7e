// Elements on the device: from 16 bytes at any alignment, or one by one, to the values reduced.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "reduce/kernels.h"

namespace gpuprims {

struct Half16 {  // float16 or bfloat16, as Decode says
  uint16_t bits;
};
template <int Bytes>
struct Integer {  // signed or unsigned, as Decode says
  KeyOf<Bytes> bits;
};
struct AnyInteger {};  // of as many bytes as Decode says

template <class Raw>
constexpr int kVector = 16 / sizeof(Raw);

__device__ __forceinline__ float word_as_float(uint32_t word) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(word);
#else
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
#endif
}

// Extremes look at mirrored values where the least is wanted, norm_inf at magnitudes.
__device__ __forceinline__ float mirror(float x, const Decode& d) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return word_as_float((bits & static_cast<uint32_t>(d.keep)) ^ static_cast<uint32_t>(d.flip));
}
__device__ __forceinline__ double mirror(double x, const Decode& d) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits = (bits & d.keep) ^ d.flip;
  memcpy(&x, &bits, sizeof bits);
  return x;
}

template <class Value, class Bits>
__device__ __forceinline__ Value integer_value(Bits bits, const Decode& d) {
  if (d.nonzero) bits = (bits & static_cast<Bits>(d.keep)) != 0;
  const Value value = d.is_signed ? static_cast<Value>(static_cast<std::make_signed_t<Bits>>(bits))
                                  : static_cast<Value>(bits);
  return value ^ static_cast<Value>(d.flip);
}

template <class Value, class Raw>
__device__ __forceinline__ Value value_of(const Raw& raw, const Decode& d) {
  if constexpr (std::is_same_v<Raw, Half16>) {
    if (d.bf16) return static_cast<Value>(word_as_float(static_cast<uint32_t>(raw.bits) << 16));
    __half half;
    memcpy(&half, &raw.bits, sizeof half);
    return static_cast<Value>(__half2float(half));
  } else if constexpr (std::is_floating_point_v<Raw>) {
    return static_cast<Value>(raw);
  } else {
    return integer_value<Value>(raw.bits, d);
  }
}

template <class Raw>
__device__ __forceinline__ uint32_t skew_of(const Raw* row) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row) & 15);
}

struct alignas(16) Words {
  uint32_t w[4];
};

__device__ __forceinline__ Words load_words(const void* at) {
#if defined(__CUDA_ARCH__)
  Words v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
      : "l"(at));
  return v;
#else
  return *static_cast<const Words*>(at);
#endif
}

// 16 bytes that start `skew` bytes behind an aligned address, out of two aligned loads. Positions
// decide which accumulator an element enters, so addresses cannot.
__device__ __forceinline__ Words shifted_words(const char* at, uint32_t skew) {
  const auto* base = reinterpret_cast<const Words*>(at - skew);
  const Words low = base[0], high = base[1];
  uint32_t w[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = low.w[i], w[i + 4] = high.w[i];
  if (skew & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = w[i + 2];
  }
  if (skew & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
  }
  Words v;
  const uint32_t bits = (skew & 3) * 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) v.w[i] = __funnelshift_r(w[i], w[i + 1], bits);
  return v;
}

// V elements of a row of n, from position p on; those behind its end are pads.
template <class Raw>
struct Pack {
  Words words;
  uint32_t valid;

  __device__ __forceinline__ Raw get(int e) const {
    Raw raw;
    memcpy(&raw, reinterpret_cast<const char*>(words.w) + e * sizeof(Raw), sizeof(Raw));
    return raw;
  }
  __device__ __forceinline__ void put(int e, Raw raw) {  // by value: one load, not one a byte
    memcpy(reinterpret_cast<char*>(words.w) + e * sizeof(Raw), &raw, sizeof(Raw));
    valid |= 1u << e;
  }
};

template <class Raw>
__device__ __forceinline__ Pack<Raw> load_pack(const Raw* row, int64_t p, int64_t n,
                                               uint32_t skew) {
  constexpr int V = kVector<Raw>;
  Pack<Raw> pack{Words{}, 0};
  if (p >= n) return pack;
  pack.valid = kAllValid;
  if (p + V <= n && skew == 0) {
    pack.words = load_words(row + p);
  } else if (p + 2 * V <= n) {  // the second load ends within the row
    pack.words = shifted_words(reinterpret_cast<const char*>(row + p), skew);
  } else {
    pack.valid = 0;
#pragma unroll
    for (int e = 0; e < V; ++e) {
      if (p + e >= n) continue;
      pack.put(e, row[p + e]);
    }
    if (p + V <= n) pack.valid = kAllValid;
  }
  return pack;
}

template <class Op>
constexpr bool kMirrors = false;
template <class A>
constexpr bool kMirrors<Extreme<A>> = std::is_floating_point_v<A>;
template <class A>
constexpr bool kMirrors<ArgExtreme<A>> = std::is_floating_point_v<A>;

template <class Op, class Raw>
__device__ __forceinline__ typename Op::Value element(const Raw& raw, const Decode& d) {
  typename Op::Value x = value_of<typename Op::Value>(raw, d);
  if constexpr (kMirrors<Op>) x = mirror(x, d);
  return x;
}

}  // namespace gpuprims
