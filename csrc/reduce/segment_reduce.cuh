// Elements of a dtype known at run time, a warp's tree over one chunk, and how results are written.
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
      static_cast<uint16_t*>(args.out)[at] =
          args.out_dtype == Dtype::f16 ? __half_as_ushort(__float2half_rn(x))
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

  __device__ __forceinline__ typename Op::State at(const Op& op, int i, int length) const {
    return i < length ? op.lift(stage[staged_at(begin + i)]) : op.identity();
  }
  template <int N>
  __device__ __forceinline__ void load(const Op& op, typename Op::State (&v)[N], int first,
                                       int length) const {
    const auto* const p = stage + staged_at(begin + first);  // 32 values on are 33 words on
#pragma unroll
    for (int k = 0; k < N; ++k)
      v[k] = first + 32 * k < length ? op.lift(p[33 * k]) : op.identity();
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

template <class State>
__device__ __forceinline__ State shuffle_down(State state, int by) {
  if constexpr (std::is_arithmetic_v<State>) {
    return __shfl_down_sync(~0u, state, by);
  } else {
    return {__shfl_down_sync(~0u, state.most, by), __shfl_down_sync(~0u, state.sum, by)};
  }
}

// The tree of one chunk by one warp (segment_plan.h): the result is lane 0's. Lane l holds
// accumulators l, l + 32, .. so that loads are coalesced wherever the segment begins; `length` is
// the same in all lanes.
template <int V, class Op, class Source>
__device__ __forceinline__ typename Op::State reduce_chunk_by(const Op& op, const Source& source,
                                                              int length) {
  using State = typename Op::State;
  constexpr int kMost = sizeof(State) == 4 ? 16 : 8;  // loads in flight
  const int lane = threadIdx.x % 32;
  State sum[V];
#pragma unroll
  for (int k = 0; k < V; ++k) sum[k] = op.identity();
  int at = 0;
  for (; length - at > 32 * V; at += 32 * kMost) {
    State v[kMost];
    source.load(op, v, at + lane, length);
#pragma unroll
    for (int k = 0; k < kMost; ++k) sum[k % V] = op.combine(sum[k % V], v[k]);
  }
  if (at < length) {
    State v[V];
    source.load(op, v, at + lane, length);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] = op.combine(sum[k], v[k]);
  }
  // A slot's accumulators are V neighbouring lanes; its number is (l + 32 k) / V.
#pragma unroll
  for (int by = V / 2; by > 0; by /= 2)
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] = op.combine(sum[k], shuffle_down(sum[k], by));
#pragma unroll
  for (int half = V / 2; half > 0; half /= 2)
#pragma unroll
    for (int k = 0; k < half; ++k) sum[k] = op.combine(sum[k], sum[k + half]);
#pragma unroll
  for (int by = 16; by >= V; by /= 2) sum[0] = op.combine(sum[0], shuffle_down(sum[0], by));
  return sum[0];
}

template <class Op, class Source>
__device__ __forceinline__ typename Op::State reduce_chunk(const Op& op, const Source& source,
                                                           int length, Dtype dtype) {
  if constexpr (std::is_same_v<typename Op::Value, double>) {
    return reduce_chunk_by<2>(op, source, length);
  } else if constexpr (std::is_same_v<Op, Sum<float>> || std::is_same_v<Op, AnyOp<float>>) {
    return dtype == Dtype::f32 ? reduce_chunk_by<4>(op, source, length)
                               : reduce_chunk_by<8>(op, source, length);
  } else {  // integers give the same in any order, logsumexp has a tree of its own
    return reduce_chunk_by<4>(op, source, length);
  }
}

// The same tree of at most kSegmentFew values by one thread.
template <int V, class Op>
__device__ __forceinline__ typename Op::State reduce_few_by(const Op& op,
                                                            const StagedValues<Op>& source,
                                                            int length) {
  using State = typename Op::State;
  constexpr int kUsed = kSegmentFew<Op> / V;  // slots
  State slot[kUsed];
#pragma unroll
  for (int s = 0; s < kUsed; ++s) {
    slot[s] = op.identity();
    if (s * V < length) {
      State v[V];
#pragma unroll
      for (int e = 0; e < V; ++e) v[e] = source.at(op, s * V + e, length);
#pragma unroll
      for (int half = V / 2; half > 0; half /= 2)
#pragma unroll
        for (int e = 0; e < half; ++e) v[e] = op.combine(v[e], v[e + half]);
      slot[s] = v[0];
    }
  }
#pragma unroll
  for (int half = kUsed / 2; half > 0; half /= 2)
#pragma unroll
    for (int s = 0; s < half; ++s) slot[s] = op.combine(slot[s], slot[s + half]);
  return slot[0];
}

template <class Op>
__device__ __forceinline__ typename Op::State reduce_few(const Op& op,
                                                         const StagedValues<Op>& source,
                                                         int length, Dtype dtype) {
  if constexpr (std::is_same_v<typename Op::Value, double>) {
    return reduce_few_by<2>(op, source, length);
  } else if constexpr (std::is_same_v<Op, Sum<float>> || std::is_same_v<Op, AnyOp<float>>) {
    return dtype == Dtype::f32 ? reduce_few_by<4>(op, source, length)
                               : reduce_few_by<8>(op, source, length);
  } else {
    return reduce_few_by<4>(op, source, length);
  }
}

// A group's chunks, pairwise, by each lane that calls.
template <class Op>
__device__ __forceinline__ typename Op::State reduce_group(const Op& op,
                                                           const typename Op::State* states,
                                                           int count) {
  typename Op::State v[kSegmentGroup];
#pragma unroll
  for (int i = 0; i < kSegmentGroup; ++i) {
    v[i] = op.identity();
    if (i < count) v[i] = load_fresh(states + i);
  }
#pragma unroll
  for (int step = 1; step < kSegmentGroup; step *= 2)
#pragma unroll
    for (int i = 0; i < kSegmentGroup; i += 2 * step) v[i] = op.combine(v[i], v[i + step]);
  return v[0];
}

// The groups of a segment by a warp; the result is lane 0's. A group's state is at its first chunk's.
template <class Op>
__device__ __forceinline__ typename Op::State reduce_groups(const Op& op,
                                                            const typename Op::State* states,
                                                            int64_t groups) {
  using State = typename Op::State;
  constexpr int kEach = kSegmentFinish / 32;
  const int lane = threadIdx.x % 32;
  State sum[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) sum[k] = op.identity();
  for (int64_t at = lane; at < groups; at += kSegmentFinish) {
    State v[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      v[k] = at + 32 * k < groups ? load_fresh(states + (at + 32 * k) * kSegmentGroup)
                                  : op.identity();
#pragma unroll
    for (int k = 0; k < kEach; ++k) sum[k] = op.combine(sum[k], v[k]);
  }
#pragma unroll
  for (int half = kEach / 2; half > 0; half /= 2)
#pragma unroll
    for (int k = 0; k < half; ++k) sum[k] = op.combine(sum[k], sum[k + half]);
#pragma unroll
  for (int by = 16; by > 0; by /= 2) sum[0] = op.combine(sum[0], shuffle_down(sum[0], by));
  return sum[0];
}

// Room for a segment of `pieces` pieces in the list; false: there is none, so that offsets are bad.
__device__ __forceinline__ bool list_segment(const SegmentReducePlan& plan,
                                             const SegmentReduceSpace& space, int64_t segment,
                                             int64_t pieces, bool count) {
  const auto one = 1ull << kListShift;
  const auto old =
      atomicAdd(&space.header->listed, one + static_cast<unsigned long long>(pieces));
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
