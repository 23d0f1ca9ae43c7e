// Elements of a dtype known at run time, where a chunk's values come from, how results are written.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "reduce/segment_kernels.h"

namespace gpuprims::segmented {

__device__ __forceinline__ int64_t segment_offset(const void* p, bool wide, int64_t at) {
  return wide ? static_cast<const int64_t*>(p)[at] : static_cast<const int32_t*>(p)[at];
}

template <class Op>
constexpr int kSegmentBlocks = segment_blocks(sizeof(typename Op::State));

// Values that a thread reduces alone.
template <class Op>
constexpr int kSegmentFew = std::is_same_v<typename Op::Value, double> ? 16 : 32;

struct Float16Bits {
  uint16_t bits;
};
struct BFloat16Bits {
  uint16_t bits;
};

// Runs f(pointer to elements) with the type behind `dtype` that accumulates in A. The branch is
// uniform, and stands outside of f's loads.
template <class A, class F>
__device__ __forceinline__ void with_elements(const void* p, Dtype dtype, F f) {
  if constexpr (std::is_same_v<A, double>) {
    f(static_cast<const double*>(p));
  } else if constexpr (std::is_same_v<A, float>) {
    if (dtype == Dtype::f32)
      f(static_cast<const float*>(p));
    else if (dtype == Dtype::f16)
      f(static_cast<const Float16Bits*>(p));
    else
      f(static_cast<const BFloat16Bits*>(p));
  } else {
    switch (dtype) {
      case Dtype::i8:
        return f(static_cast<const int8_t*>(p));
      case Dtype::u16:
        return f(static_cast<const uint16_t*>(p));
      case Dtype::i16:
        return f(static_cast<const int16_t*>(p));
      case Dtype::u32:
        return f(static_cast<const uint32_t*>(p));
      case Dtype::i32:
        return f(static_cast<const int32_t*>(p));
      case Dtype::u64:
      case Dtype::i64:
        return f(static_cast<const int64_t*>(p));
      default:
        return f(static_cast<const uint8_t*>(p));
    }
  }
}

template <class A, class T>
__device__ __forceinline__ A accumulated(T x) {
  if constexpr (std::is_same_v<T, Float16Bits>)
    return __half2float(__ushort_as_half(x.bits));
  else if constexpr (std::is_same_v<T, BFloat16Bits>)
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
  else
    return static_cast<A>(x);
}

__device__ __forceinline__ void put_segment_bits(void* out, int bytes, int64_t at, uint64_t bits) {
  if (bytes == 4)
    static_cast<uint32_t*>(out)[at] = static_cast<uint32_t>(bits);
  else if (bytes == 8)
    static_cast<uint64_t*>(out)[at] = bits;
  else if (bytes == 2)
    static_cast<uint16_t*>(out)[at] = static_cast<uint16_t>(bits);
  else
    static_cast<uint8_t*>(out)[at] = static_cast<uint8_t>(bits);
}

// The result of a segment of `length` values.
template <class Op>
__device__ __forceinline__ void put_segment(const SegmentReduceArgs& args, const Op& op, int64_t at,
                                            typename Op::State state, int64_t length) {
  using A = typename Op::Value;
  if (length == 0) {
    put_segment_bits(args.out, dtype_bytes(args.out_dtype), at, args.empty);
    return;
  }
  A x = op.result(state);
  if constexpr (std::is_floating_point_v<A>)
    if (args.op == SegmentOp::mean) x = x / static_cast<A>(length);
  if constexpr (std::is_same_v<A, float>) {
    if (args.out_dtype == Dtype::f32)
      static_cast<float*>(args.out)[at] = x;
    else
      static_cast<uint16_t*>(args.out)[at] = args.out_dtype == Dtype::f16
                                                 ? __half_as_ushort(__float2half_rn(x))
                                                 : __bfloat16_as_ushort(__float2bfloat16_rn(x));
  } else if constexpr (std::is_same_v<A, double>) {
    static_cast<double*>(args.out)[at] = x;
  } else {
    put_segment_bits(args.out, dtype_bytes(args.out_dtype), at, static_cast<uint64_t>(x));
  }
}

// Where a chunk's values come from; load() fills v[k] with value first + 32 k, absent ones with the
// identity.
template <class Op>
struct GlobalValues {
  const void* values;
  Dtype dtype;
  int64_t begin;

  template <int N>
  __device__ __forceinline__ void load(const Op& op, typename Op::State (&v)[N], int first,
                                       int length) const {
    using A = typename Op::Value;
    with_elements<A>(values, dtype, [&](auto* elements) {
      const auto* const p = elements + begin + first;
      if (first - static_cast<int>(threadIdx.x % 32) + 32 * N <= length) {  // the whole warp's
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] = op.lift(accumulated<A>(p[32 * k]));
      } else {
#pragma unroll
        for (int k = 0; k < N; ++k)
          v[k] = first + 32 * k < length ? op.lift(accumulated<A>(p[32 * k])) : op.identity();
      }
    });
  }
};

// A pad a 32 values: segments of 8, 16 or 32 values would meet in few banks.
__device__ __forceinline__ int staged_at(int i) { return i + i / 32; }

template <class Op>
struct StagedValues {
  const typename Op::Value* stage;
  int begin;

  // Whether value i is to be looked at.
  __device__ __forceinline__ bool any(int i, int length) const { return i < length; }
  __device__ __forceinline__ typename Op::State at(const Op& op, int i, int length) const {
    return i < length ? op.lift(stage[staged_at(begin + i)]) : op.identity();
  }
  template <int N>
  __device__ __forceinline__ void load(const Op& op, typename Op::State (&v)[N], int first,
                                       int length) const {
    const auto* const p = stage + staged_at(begin + first);  // 32 values on are 33 words on
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = first + 32 * k < length ? op.lift(p[33 * k]) : op.identity();
  }
};

// States of pieces that other blocks have just written: past the first-level cache.
template <class State>
__device__ __forceinline__ State load_fresh(const State* p) {
  State state;
  if constexpr (sizeof(State) == 4) {
    const unsigned bits = __ldcg(reinterpret_cast<const unsigned*>(p));
    memcpy(&state, &bits, 4);
  } else {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(State) / 8); ++i) {
      const auto bits = __ldcg(reinterpret_cast<const unsigned long long*>(p) + i);
      memcpy(reinterpret_cast<char*>(&state) + 8 * i, &bits, 8);
    }
  }
  return state;
}

// Room for a segment of `pieces` pieces in the list; false: there is none, so that offsets are bad.
__device__ __forceinline__ bool list_segment(const SegmentReducePlan& plan,
                                             const SegmentReduceSpace& space, int64_t segment,
                                             int64_t pieces, bool count) {
  const auto one = 1ull << kListShift;
  const auto old = atomicAdd(&space.header->listed, one + static_cast<unsigned long long>(pieces));
  const int64_t entry = static_cast<int64_t>(old >> kListShift);
  const int64_t first = static_cast<int64_t>(old & (one - 1));
  if (entry >= plan.entries || pieces > plan.pieces || first > plan.pieces - pieces) return false;
  space.list[entry] = {segment, first, 0};
  if (count)
    for (int64_t at = 0; at < pieces; at += kSegmentGroup) space.done[first + at] = 0;
  return true;
}

// The entry that holds piece `piece`, of `count`.
__device__ __forceinline__ int64_t find_entry(const CutSegment* list, int64_t count,
                                              int64_t piece) {
  int64_t low = 0;
  while (count > 1) {
    const int64_t half = count / 2;
    if (list[low + half].first <= piece) low += half;
    count -= half;
  }
  return low;
}

// Every result becomes the filler: the offsets are bad.
__device__ __forceinline__ void fill_results(const SegmentReduceArgs& args) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t count = args.segments * args.features;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < count;
       at += threads)
    put_segment_bits(args.out, dtype_bytes(args.out_dtype), at, args.filler);
}

}  // namespace gpuprims::segmented
