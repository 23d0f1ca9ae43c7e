// The tree of a row's sum (layout.h) and the elements that go into it.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "reorder/kernels.h"

namespace gpuprims::reorder {
namespace {

// Read once: kept from pushing x out of the caches.
template <class T>
__device__ __forceinline__ T load_once(const T* at) {
#if defined(__CUDA_ARCH__)
  return __ldcs(at);
#else
  return *at;
#endif
}
template <>
__device__ __forceinline__ __nv_bfloat16 load_once(const __nv_bfloat16* at) {
  return *at;
}
template <>
__device__ __forceinline__ __half load_once(const __half* at) {
  return *at;
}

__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ double widen(double v) { return v; }
__device__ __forceinline__ float widen(__half v) { return __half2float(v); }
__device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

template <class T, class Acc>
__device__ __forceinline__ T narrow(Acc v) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(v);
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(v);
  else
    return v;
}

// Rounded products and sums, never contracted to a fused one: the CPU has the same bits.
__device__ __forceinline__ float times(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
__device__ __forceinline__ double times(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
__device__ __forceinline__ float plus(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
__device__ __forceinline__ double plus(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

template <class Acc>
__device__ __forceinline__ Acc not_a_number() {
  return static_cast<Acc>(__int_as_float(0x7fc00000));
}

// An index as the kernels keep it: in 32 bits, with -2 for what they do not hold.
__device__ __forceinline__ int column_at(const SpmvArgs& args, int64_t at) {
  if (!args.wide_indices) return load_once(static_cast<const int*>(args.indices) + at);
  const long long column = load_once(static_cast<const long long*>(args.indices) + at);
  return column >= -1 && column <= INT32_MAX ? static_cast<int>(column) : -2;
}

__device__ __forceinline__ bool inside(const SpmvArgs& args, int column) {
  return static_cast<unsigned>(column) < static_cast<unsigned>(args.columns);
}

// The sum of a lane's `count` slots, kStep apart, times a vector x; indices are int32. Packed slots
// (kStep 32) are as many in every lane, and -1 among their indices is empty; rows of CSR (kStep 1)
// share lines with their neighbours', so that L1 is worth its while. The loads of a batch are all
// under way before the first product.
template <class Acc, int kStep, class T>
__device__ __forceinline__ Acc sum_slots(const SpmvArgs& args, const T* value, const int* column,
                                         int count) {
  constexpr bool kPacked = kStep > 1;
  constexpr int kBatch = 8;  // divides kPiece
  const auto* const x = static_cast<const T*>(args.x);
  const auto columns = static_cast<unsigned>(args.columns);
  Acc piece = 0, group = 0, total = 0;
  unsigned worst = 0;  // of index + 1
  const auto batch = [&](int i, auto full) {
    int c[kBatch];
    T v[kBatch], read[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const bool there = full || i + b < count;
      c[b] = -1;
      if (there) c[b] = kPacked ? load_once(column + b * kStep) : __ldg(column + b * kStep);
      if (!kPacked && there && c[b] < 0) c[b] = -2;
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      v[b] = T{};
      if (full || i + b < count)
        v[b] = kPacked ? load_once(value + b * kStep) : __ldg(value + b * kStep);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      read[b] = static_cast<unsigned>(c[b]) < columns ? __ldg(x + c[b]) : T{};
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const unsigned next = static_cast<unsigned>(c[b]) + 1;
      worst = worst > next ? worst : next;
      if (static_cast<unsigned>(c[b]) < columns)
        piece = plus(piece, times(widen(v[b]), widen(read[b])));
    }
    value += kBatch * kStep;
    column += kBatch * kStep;
  };
  const auto close = [&](int done) {
    if (done % kPiece != 0) return;
    group = plus(group, piece), piece = 0;
    if (done % kGroup == 0) total = plus(total, group), group = 0;
  };
  int i = 0;
  for (; kPacked && i + kBatch <= count; i += kBatch) {
    batch(i, std::true_type{});
    close(i + kBatch);
  }
  for (; i < count; i += kBatch) {
    batch(i, std::false_type{});
    close(i + kBatch);
  }
  total = plus(total, plus(group, piece));
  return worst > columns ? not_a_number<Acc>() : total;
}

// Every result, where the data is bad.
template <class T>
__device__ void fill_nan(const SpmvArgs& args, int threads) {
  auto* const out = static_cast<T*>(args.out);
  const int64_t count = args.p.rows * args.m;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x; at < count;
       at += static_cast<int64_t>(gridDim.x) * threads)
    out[at] = narrow<T>(not_a_number<decltype(widen(T{}))>());
}

// f(element) with the type of the values, which the kernel's accumulator serves.
template <class Acc, class F>
__device__ __forceinline__ void with_element(Dtype dtype, const F& f) {
  if constexpr (std::is_same_v<Acc, double>) {
    f(double{});
  } else {
    if (dtype == Dtype::f32)
      f(float{});
    else if (dtype == Dtype::f16)
      f(__half{});
    else
      f(__nv_bfloat16{});
  }
}

}  // namespace
}  // namespace gpuprims::reorder
