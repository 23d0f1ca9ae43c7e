// Flat segments, a block a tile of consecutive ones. Short segments are reduced a thread each from
// shared memory, which their values reach by coalesced loads; longer ones a warp each; very long
// ones go to a list for segment_long.cu. The offsets of the block's next tile are on their way
// while it works at this one. Each block looks at the offsets that it follows: a tile where they
// are bad is left alone, and all results are filled afterwards.
#include "common/launch.h"
#include "reduce/segment_ring.cuh"
#include "reduce/segment_start.h"

namespace gpuprims {
namespace {

using namespace segmented;

constexpr int kThreads = segment_reduce_tuning::kThreads;
constexpr int kStaged = segment_reduce_tuning::kStaged;

extern __shared__ __align__(16) unsigned char dynamic_memory[];

// Offsets of a tile: thread t holds that of segment t, thread 0 also the end of the last one and
// whether somebody has found bad offsets.
struct TileOffsets {
  int64_t begin = 0;
  int64_t end = 0;
  int flag = 0;

  __device__ __forceinline__ void load(const SegmentReduceArgs& args, const SegmentReducePlan& plan,
                                       const SegmentReduceSpace& space, int64_t tile) {
    if (tile >= plan.tiles) return;
    const int64_t first = tile * plan.tile;
    const int64_t left = args.segments - first;
    const int count = left < plan.tile ? static_cast<int>(left) : plan.tile;
    const int t = threadIdx.x;
    if (t < count) begin = segment_offset(args.indptr, args.wide, first + t);
    if (t == 0) end = segment_offset(args.indptr, args.wide, first + count);
    if (t == 0 && args.check) flag = *static_cast<volatile int*>(&space.header->flag);
  }
};

template <class Op>
__device__ __forceinline__ void stage_values(const SegmentReduceArgs& args, int64_t begin,
                                             int total) {
  using A = typename Op::Value;
  A* const stage = reinterpret_cast<A*>(dynamic_memory);
  with_elements<A>(args.values, args.dtype, [&](auto* elements) {
    const auto* const p = elements + begin;
    // 8 bytes a value: in two parts, for want of registers.
    constexpr int kPart = sizeof(A) == 4 ? kStaged : kStaged / 2;
    for (int from = threadIdx.x; from < total; from += kPart * kThreads) {
      A v[kPart];
      A* const to = stage + staged_at(from);
      constexpr int kStep = kThreads + kThreads / 32;  // staged_at of kThreads further on
#pragma unroll
      for (int k = 0; k < kPart; ++k)
        if (from + k * kThreads < total) v[k] = accumulated<A>(p[from + k * kThreads]);
#pragma unroll
      for (int k = 0; k < kPart; ++k)
        if (from + k * kThreads < total) to[k * kStep] = v[k];
    }
  });
}

template <class Op>
__global__ void __launch_bounds__(kThreads, kSegmentBlocks<Op>)
    segment_tiles(const __grid_constant__ SegmentReduceArgs args, const __grid_constant__ Op op,
                  const __grid_constant__ SegmentReducePlan plan,
                  const __grid_constant__ SegmentReduceSpace space) {
  using A = typename Op::Value;
  __shared__ int64_t offsets[kThreads + 1];
  __shared__ uint16_t queue[kThreads];
  __shared__ int queued, taken;
  const int t = threadIdx.x, lane = t % 32;
  if (args.check && blockIdx.x == 0 && t == 0 &&
      (segment_offset(args.indptr, args.wide, 0) != 0 ||
       segment_offset(args.indptr, args.wide, args.segments) != args.n))
    atomicOr(&space.header->flag, 1);
  if constexpr (std::is_same_v<A, float>) {
    if (plan.ring) [[unlikely]] {  // code that lies behind that of tiles
      reduce_ring(args, op, plan, space, dynamic_memory);
      return;
    }
  }
  TileOffsets next;
  next.load(args, plan, space, blockIdx.x);
  for (int64_t tile = blockIdx.x; tile < plan.tiles; tile += gridDim.x) {
    const int64_t first = tile * plan.tile;
    const int64_t left = args.segments - first;
    const int count = left < plan.tile ? static_cast<int>(left) : plan.tile;
    if (t < count) offsets[t] = next.begin;
    if (t == 0) offsets[count] = next.end, queued = 0, taken = 0;
    bool bad = next.flag != 0;  // nothing of this will be kept
    __syncthreads();
    next.load(args, plan, space, tile + gridDim.x);
    int64_t begin = 0, length = -1;  // -1: no segment is this thread's
    if (t < count) {
      begin = offsets[t];
      const int64_t end = offsets[t + 1];
      length = end - begin;
      if (args.check && (begin < 0 || end < begin || end > args.n)) {
        atomicOr(&space.header->flag, 1);
        bad = true;
      }
    }
    if (__syncthreads_or(bad)) continue;
    const int64_t base = offsets[0], total = offsets[count] - base;
    const bool staged = total <= plan.capacity;
    if (staged) {
      stage_values<Op>(args, base, static_cast<int>(total));
      __syncthreads();
    }
    const StagedValues<Op> mine{reinterpret_cast<const A*>(dynamic_memory),
                                static_cast<int>(begin - base)};
    bool waits = false;
    if (length > plan.inline_limit) {
      const int64_t pieces = (length + kSegmentChunk - 1) / kSegmentChunk;
      if (!list_segment(plan, space, first + t, pieces, true)) atomicOr(&space.header->flag, 1);
    } else if (length == 0 || (staged && length > 0 && length <= kSegmentFew<Op>)) {
      const auto state =
          length == 0 ? op.identity() : reduce_few(op, mine, static_cast<int>(length), args.dtype);
      put_segment(args, op, first + t, state, length);
    } else if (length > 0) {
      queue[atomicAdd(&queued, 1)] = static_cast<uint16_t>(t);
      waits = true;
    }
    if (!__syncthreads_or(waits)) continue;
    while (true) {  // a warp a segment; which warp takes which changes nothing
      int at = 0;
      if (lane == 0) at = atomicAdd(&taken, 1);
      at = __shfl_sync(~0u, at, 0);
      if (at >= queued) break;
      const int s = queue[at];
      const int64_t from = offsets[s];
      const int many = static_cast<int>(offsets[s + 1] - from);
      typename Op::State state;
      if (staged) {
        const StagedValues<Op> source{mine.stage, static_cast<int>(from - base)};
        state = reduce_chunk(op, source, many, args.dtype);
      } else {
        const GlobalValues<Op> source{args.values, args.dtype, from};
        state = reduce_chunk(op, source, many, args.dtype);
      }
      if (lane == 0) put_segment(args, op, first + s, state, many);
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_segment_tiles(const SegmentReduceArgs& args, const SegmentReducePlan& plan,
                                 const SegmentReduceSpace& space, cudaStream_t stream) {
  return with_segment_op(args, [&](auto op) {
    using Op = decltype(op);
    const size_t staged = (plan.capacity + plan.capacity / 32) * sizeof(typename Op::Value);
    const LaunchShape shape{dim3(static_cast<unsigned>(plan.blocks)), dim3(kThreads),
                            plan.ring ? kRingBytes : staged};
    return launch(segment_tiles<Op>, shape, stream, args, op, plan, space);
  });
}

}  // namespace gpuprims
