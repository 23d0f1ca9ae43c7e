// Elements on the device: conversions, vector loads and stores, index loads.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "aggregate/kernels.h"

namespace gpuprims {

template <class T>
struct Math {
  using Acc = float;
};
template <>
struct Math<double> {
  using Acc = double;
};

__device__ __forceinline__ float widen(__half v) { return __half2float(v); }
__device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ double widen(double v) { return v; }

template <class T, class Acc>
__device__ __forceinline__ T narrow(Acc v) {
  if constexpr (sizeof(T) >= 4)
    return v;
  else if constexpr (__is_same(T, __half))
    return __float2half_rn(v);
  else
    return __float2bfloat16_rn(v);
}

__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

// a / b for a count b >= 1, rounded to nearest but for the smallest results. The compiler's
// division calls a function, and what lives across the call spills.
__device__ __forceinline__ float quotient(float a, float b) {
#ifdef __CUDA_ARCH__
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
#else  // tests/emulator
  const float inverse = 1 / b;
#endif
  const float near = a * inverse;
  const float better = __fmaf_rn(__fmaf_rn(-near, b, a), inverse, near);
  return fabsf(near) < INFINITY ? better : near;
}
__device__ __forceinline__ double quotient(double a, double b) {
#ifdef __CUDA_ARCH__
  double inverse;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(inverse) : "d"(b));  // 20 bits; each step doubles them
#pragma unroll
  for (int step = 0; step < 2; ++step)
    inverse = __fma_rn(__fma_rn(-b, inverse, 1.0), inverse, inverse);
#else
  const double inverse = 1 / b;
#endif
  const double near = a * inverse;
  const double better = __fma_rn(__fma_rn(-near, b, a), inverse, near);
  return fabs(near) < INFINITY ? better : near;
}

// The greater one: NaN above all (a canonical one), +0 above -0. One instruction.
__device__ __forceinline__ float larger(float a, float b) {
#ifdef __CUDA_ARCH__
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else  // tests/emulator
  if (a != a || b != b) return __int_as_float(0x7fffffff);
  return a > b || (a == b && __float_as_int(b) < 0) ? a : b;
#endif
}
__device__ __forceinline__ double larger(double a, double b) {
  return a != a || b != b ? a + b : a > b || (a == b && 1 / b < 0) ? a : b;
}

// A sum, times its row's factor, plus the bias of its column.
template <class T, class Acc>
__device__ __forceinline__ Acc affine(const AggregateArgs& a, int64_t row, int64_t column,
                                      Acc sum) {
  const Acc bias = a.bias ? widen(__ldg(static_cast<const T*>(a.bias) + column)) : Acc(0);
  return fused(sum, widen(__ldg(static_cast<const T*>(a.scale) + row)), bias);
}

// A result of a dtype known at run time.
__device__ __forceinline__ void store_as(Dtype dtype, void* out, int64_t at, float v) {
  if (dtype == Dtype::f32)
    static_cast<float*>(out)[at] = v;
  else if (dtype == Dtype::f16)
    static_cast<__half*>(out)[at] = narrow<__half>(v);
  else
    static_cast<__nv_bfloat16*>(out)[at] = narrow<__nv_bfloat16>(v);
}
__device__ __forceinline__ void store_as(Dtype, void* out, int64_t at, double v) {
  static_cast<double*>(out)[at] = v;
}

template <class T>
__device__ __forceinline__ T not_a_number() {
  return narrow<T>(static_cast<typename Math<T>::Acc>(__int_as_float(0x7fffffff)));
}

// The unsigned type of a load.
template <int Bytes>
struct WordOf;
template <>
struct WordOf<2> {
  using type = unsigned short;
};
template <>
struct WordOf<4> {
  using type = unsigned int;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<16> {
  using type = uint4;
};

template <class Int>
struct UnsignedOf {
  using type = uint32_t;
};
template <>
struct UnsignedOf<int64_t> {
  using type = uint64_t;
};

template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

// N elements as they were loaded. They stay packed, two 16-bit ones a register, until they are
// used: an array of elements would be unpacked early and cost 16 registers more.
template <class T, int N>
struct Packed {
  static constexpr int kBytes = sizeof(T) * N;
  static constexpr int kWords = kBytes >= 4 ? kBytes / 4 : 1;
  unsigned word[kWords];

  __device__ __forceinline__ static Packed not_numbers() {
    Packed packed;
#pragma unroll
    for (int i = 0; i < kWords; ++i) packed.word[i] = sizeof(T) == 2 ? 0x7fff7fffu : 0x7fffffffu;
    return packed;
  }

  // Read-only path; the address is a multiple of kBytes.
  __device__ __forceinline__ static Packed load(const T* from) {
    using Word = typename WordOf<kBytes>::type;
    const Word loaded = __ldg(reinterpret_cast<const Word*>(from));
    Packed packed;
    if constexpr (kBytes == 2)
      packed.word[0] = loaded;
    else
      memcpy(packed.word, &loaded, kBytes);
    return packed;
  }

  // 16 bytes where `wanted` is not 0, else zeros. The compiler would branch around each load.
  __device__ __forceinline__ static Packed load_if(unsigned wanted, const T* from) {
    Packed packed{};
#ifdef __CUDA_ARCH__
    asm("{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"
        "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%5];\n}"
        : "+r"(packed.word[0]), "+r"(packed.word[1]), "+r"(packed.word[2]), "+r"(packed.word[3])
        : "r"(wanted), "l"(from));
#else  // tests/emulator
    if (wanted != 0) packed = load(from);
#endif
    return packed;
  }

  __device__ __forceinline__ typename Math<T>::Acc operator[](int k) const {
    if constexpr (sizeof(T) == 8)
      return __hiloint2double(word[2 * k + 1], word[2 * k]);
    else if constexpr (sizeof(T) == 4)
      return __uint_as_float(word[k]);
    else if constexpr (__is_same(T, __half))
      return __half2float(__ushort_as_half(word[k / 2] >> k % 2 * 16 & 0xffff));
    else
      return __uint_as_float(k % 2 ? word[k / 2] & 0xffff0000u : word[k / 2] << 16);
  }
};

// Results are not read again by this kernel: they leave L2 to rows of x.
template <class T, int N>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& pack) {
  using Word = typename WordOf<sizeof(T) * N>::type;
  Word word;
  memcpy(&word, &pack, sizeof(word));
  __stcs(reinterpret_cast<Word*>(to), word);
}

// Element `at` of a vector of int64 or int32. A branch on the width is cheap beside rows, so only
// the indices, read once an edge and kept in registers, have their type in the templates.
__device__ __forceinline__ int64_t load_int(const void* vector, bool wide, int64_t at) {
  return wide ? __ldg(static_cast<const long long*>(vector) + at)
              : static_cast<int64_t>(__ldg(static_cast<const int*>(vector) + at));
}

__device__ __forceinline__ int64_t edge_id(const Csr& csr, int64_t edge) {
  return csr.edge_ids ? load_int(csr.edge_ids, csr.wide_offsets, edge) : edge;
}

// base + index * bytes in one instruction: of `uint64_t(index) * bytes` the compiler keeps an
// addition of a high half that is 0.
template <class T>
__device__ __forceinline__ T* at_offset(T* base, uint32_t index, uint32_t bytes) {
#ifdef __CUDA_ARCH__
  uint64_t place;
  asm("mad.wide.u32 %0, %1, %2, %3;"
      : "=l"(place)
      : "r"(index), "r"(bytes), "l"(reinterpret_cast<uint64_t>(base)));
  return reinterpret_cast<T*>(place);
#else
  return reinterpret_cast<T*>(reinterpret_cast<uint64_t>(base) +
                              static_cast<uint64_t>(index) * bytes);
#endif
}

// N integers; `from` is a multiple of them all. No evict-first hint: the next batch reads the other
// half of what HBM gives at a time.
template <class Int, int N>
__device__ __forceinline__ void load_vector(Int* to, const Int* from) {
  using Word = typename WordOf<sizeof(Int) * N>::type;
  const Word word = __ldg(reinterpret_cast<const Word*>(from));
  memcpy(to, &word, sizeof(word));
}

// Bit i: vector[at + i] equals `wanted`. `at` is a multiple of N, the base of 16 bytes.
template <class Int, int N>
__device__ __forceinline__ unsigned equal_mask(const Int* vector, Int wanted) {
  constexpr int kStep = N * sizeof(Int) > 16 ? 16 / sizeof(Int) : N;
  unsigned mask = 0;
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    using Word = typename WordOf<sizeof(Int) * kStep>::type;
    const Word word = __ldg(reinterpret_cast<const Word*>(vector + i));
    Pack<Int, kStep> pack;
    memcpy(&pack, &word, sizeof(word));
#pragma unroll
    for (int j = 0; j < kStep; ++j) mask |= (pack.v[j] == wanted ? 1u : 0u) << (i + j);
  }
  return mask;
}

}  // namespace gpuprims
