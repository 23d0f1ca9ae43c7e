// The tree of a flat segment, by one warp or one thread.
#pragma once
#include "reduce/segment_values.cuh"

namespace gpuprims::segmented {

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

// The same tree of at most `Few` values by one thread.
template <int V, int Few, class Op, class Source>
__device__ __forceinline__ typename Op::State reduce_few_by(const Op& op, const Source& source,
                                                            int length) {
  using State = typename Op::State;
  constexpr int kUsed = Few / V;  // slots
  State slot[kUsed];
#pragma unroll
  for (int s = 0; s < kUsed; ++s) {
    slot[s] = op.identity();
    if (source.any(s * V, length)) {
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
                                                         const StagedValues<Op>& source, int length,
                                                         Dtype dtype) {
  if constexpr (std::is_same_v<typename Op::Value, double>) {
    return reduce_few_by<2, kSegmentFew<Op>>(op, source, length);
  } else if constexpr (std::is_same_v<Op, Sum<float>> || std::is_same_v<Op, AnyOp<float>>) {
    return dtype == Dtype::f32 ? reduce_few_by<4, kSegmentFew<Op>>(op, source, length)
                               : reduce_few_by<8, kSegmentFew<Op>>(op, source, length);
  } else {
    return reduce_few_by<4, kSegmentFew<Op>>(op, source, length);
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

// The groups of a segment by a warp; the result is lane 0's. A group's state is at its first
// chunk's.
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
      v[k] =
          at + 32 * k < groups ? load_fresh(states + (at + 32 * k) * kSegmentGroup) : op.identity();
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

}  // namespace gpuprims::segmented
