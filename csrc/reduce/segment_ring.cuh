// Short segments of float32 by warps that do not wait for each other: 32 at a time. While a warp
// reduces them, the values of its next ones are on their way to shared memory, and the offsets of
// those after these: otherwise it would wait for memory twice, one after the other, for every 32.
#pragma once
#include "reduce/async.cuh"
#include "reduce/segment_reduce.cuh"

namespace gpuprims::segmented {

constexpr int kRingValues = segment_reduce_tuning::kRingValues;

// 16 bytes of padding every 32 values: equal lengths would meet in few banks.
constexpr int ring_at(int i) { return i + i / 32 * 4; }
constexpr int kRingSlot = ring_at(kRingValues) * 4;  // bytes; a warp has two slots
// What is missing of a segment is read before it is left out.
constexpr int kRingBytes = segment_reduce_tuning::kThreads / 32 * 2 * kRingSlot + 256;

// The values of a lane's segment, few enough to pass one padding at most.
template <class Op>
struct RingValues {
  SharedAt first;
  int left;  // before the first padding

  __device__ __forceinline__ RingValues(SharedAt slot, int begin)
      : first(slot + ring_at(begin) * 4), left(32 - begin % 32) {}
  __device__ __forceinline__ bool any(int i, int length) const {
    return __any_sync(~0u, i < length);
  }
  __device__ __forceinline__ typename Op::State at(const Op& op, int i, int length) const {
    const float value = load_shared((i < left ? first : first + 16) + i * 4);
    return i < length ? op.lift(value) : op.identity();
  }
};

// A lane's segment of a warp's 32.
struct RingSegment {
  int64_t begin = 0, end = -1;
  int64_t length =
      -1;      // -1: none. Made before others' offsets are asked for, or that waits for these
  int at = 0;  // in the slot, of whose values none is missing where `staged`
  bool staged = false;
};

struct SegmentRing {
  const SegmentReduceArgs& args;
  const SegmentReduceSpace& space;
  SharedAt slots;

  __device__ __forceinline__ RingSegment look(int64_t group) const {
    RingSegment s;
    const int64_t mine = group * 32 + threadIdx.x % 32;
    if (mine < args.segments) {
      s.begin = segment_offset(args.indptr, args.wide, mine);
      s.end = segment_offset(args.indptr, args.wide, mine + 1);
    }
    return s;
  }

  // Asks for the values of a group whose offsets are here.
  __device__ __forceinline__ void ask(int64_t group, RingSegment& s, int slot) const {
    const int lane = threadIdx.x % 32;
    const int64_t left = args.segments - group * 32;
    const bool bad =
        args.check && lane < left && (s.begin < 0 || s.end < s.begin || s.end > args.n);
    if (__any_sync(~0u, bad)) {
      if (lane == 0) atomicOr(&space.header->flag, 1);
      s.end = -1, s.begin = 0;  // nothing of this will be kept
    } else if (left > 0) {
      const int64_t first = __shfl_sync(~0u, s.begin, 0);
      const int64_t end = __shfl_sync(~0u, s.end, left < 32 ? static_cast<int>(left) - 1 : 31);
      const int64_t low = first & ~int64_t{3};  // where a vector begins
      s.staged = end - low <= kRingValues;
      s.at = static_cast<int>(s.begin - low);
      if (s.staged) copy(low, static_cast<int>(end - low), slots + slot * kRingSlot);
    }
    s.length = s.end - s.begin;
    copy_commit();
  }

  __device__ __forceinline__ void copy(int64_t low, int count, SharedAt to) const {
    const int lane = threadIdx.x % 32;
    const float* from = static_cast<const float*>(args.values) + low;
    if (low + count + 3 < args.n) {  // vectors that end in the tensor
      from += lane * 4, to += ring_at(lane * 4) * 4;
#pragma unroll 1
      for (int i = lane * 4; i < count; i += 128, from += 128, to += ring_at(128) * 4)
        copy_async<16>(to, from);
    } else {
#pragma unroll 1
      for (int i = lane; i < count; i += 32) copy_async<4>(to + ring_at(i) * 4, from + i);
    }
  }
};

template <class Op>
__device__ __forceinline__ void reduce_ring_group(const SegmentReduceArgs& args, const Op& op,
                                                  const SegmentReducePlan& plan,
                                                  const SegmentReduceSpace& space, int64_t group,
                                                  const RingSegment& s, SharedAt slot) {
  const int64_t mine = group * 32 + threadIdx.x % 32, length = s.length;
  const bool few = length >= 0 && length <= kSegmentFew<Op> && (s.staged || length == 0);
  const RingValues<Op> source(slot, few ? s.at : 0);
  const int count = few ? static_cast<int>(length) : 0;
  typename Op::State state;
  if (__any_sync(~0u, count > kSegmentFew<Op> / 2)) {
    state = reduce_few_by<4, kSegmentFew<Op>>(op, source, count);
  } else {
    state = reduce_few_by<4, kSegmentFew<Op> / 2>(op, source, count);
    state = op.combine(state, op.identity());  // as the other half of the slots would
  }
  if (few) put_segment(args, op, mine, state, length);
  const bool cut = length > plan.inline_limit;
  if (cut && !list_segment(plan, space, mine, (length + kSegmentChunk - 1) / kSegmentChunk, true))
    atomicOr(&space.header->flag, 1);
  // The rest by the whole warp, from where it lies.
  for (unsigned rest = __ballot_sync(~0u, length > 0 && !few && !cut); rest; rest &= rest - 1) {
    const int l = __ffs(static_cast<int>(rest)) - 1;
    const int64_t begin = __shfl_sync(~0u, s.begin, l);
    const int many = static_cast<int>(__shfl_sync(~0u, length, l));
    const GlobalValues<Op> values{args.values, Dtype::f32, begin};
    const auto whole = reduce_chunk(op, values, many, Dtype::f32);
    if (threadIdx.x % 32 == 0) put_segment(args, op, group * 32 + l, whole, many);
  }
}

// All groups of 32 segments, dealt to the grid's warps.
template <class Op>
__device__ __forceinline__ void reduce_ring(const SegmentReduceArgs& args, const Op& op,
                                            const SegmentReducePlan& plan,
                                            const SegmentReduceSpace& space,
                                            unsigned char* memory) {
  constexpr int kWarps = segment_reduce_tuning::kThreads / 32;
  const int64_t groups = (args.segments + 31) / 32, step = int64_t{gridDim.x} * kWarps;
  int64_t group = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const SegmentRing ring{args, space, shared_at(memory + threadIdx.x / 32 * 2 * kRingSlot)};
  RingSegment now = ring.look(group), next = ring.look(group + step);
  ring.ask(group, now, 0);
#pragma unroll 1
  for (int slot = 0; group < groups; group += step, slot ^= 1) {
    const RingSegment mine = now;
    ring.ask(group + step, next, slot ^ 1);
    now = next;
    next = ring.look(group + 2 * step);
    copy_wait<1>();
    __syncwarp();
    reduce_ring_group(args, op, plan, space, group, mine, ring.slots + slot * kRingSlot);
    __syncwarp();  // before others are asked for, into this slot
  }
}

}  // namespace gpuprims::segmented
