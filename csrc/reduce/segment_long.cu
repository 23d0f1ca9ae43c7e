// Flat segments that segment_tiles.cu listed: a warp a chunk of 4,096 values. The warp that is
// the last to finish one of eight neighbouring chunks reduces their results, and the warp that is
// last of all reduces those: which warps they are changes nothing.
#include "common/launch.h"
#include "reduce/segment_reduce.cuh"
#include "reduce/segment_start.h"

namespace gpuprims {
namespace {

using namespace segmented;

constexpr int kThreads = segment_reduce_tuning::kThreads;

// True in all lanes of the warp that arrives last of `wanted`; what the others wrote is visible.
template <class Counter>
__device__ __forceinline__ bool arrive_last(Counter* counter, int64_t wanted) {
  bool last = false;
  if (threadIdx.x % 32 == 0) {
    __threadfence();
    last = static_cast<int64_t>(atomicAdd(counter, Counter(1))) + 1 == wanted;
    __threadfence();
  }
  return __shfl_sync(~0u, static_cast<int>(last), 0) != 0;
}

// Reduces chunk number `number` of an entry, and what it completes.
template <class Op>
__device__ __forceinline__ void run_chunk(const SegmentReduceArgs& args, const Op& op,
                                          const SegmentReduceSpace& space, int64_t entry,
                                          int64_t number) {
  using State = typename Op::State;
  const CutSegment cut = space.list[entry];
  const int64_t begin = segment_offset(args.indptr, args.wide, cut.segment);
  const int64_t length = segment_offset(args.indptr, args.wide, cut.segment + 1) - begin;
  const int64_t chunks = (length + kSegmentChunk - 1) / kSegmentChunk;
  const int64_t groups = (chunks + kSegmentGroup - 1) / kSegmentGroup;
  const bool writes = threadIdx.x % 32 == 0;
  const int64_t from = number * kSegmentChunk;
  const int many = static_cast<int>(length - from < kSegmentChunk ? length - from : kSegmentChunk);
  const GlobalValues<Op> source{args.values, args.dtype, begin + from};
  State state = reduce_chunk(op, source, many, args.dtype);
  if (chunks > 1) {
    State* const states = static_cast<State*>(space.states) + cut.first;
    const int64_t group = number - number % kSegmentGroup;
    const int64_t left = chunks - group;
    const int members = static_cast<int>(left < kSegmentGroup ? left : kSegmentGroup);
    if (writes) states[number] = state;
    if (!arrive_last(space.done + cut.first + group, members)) return;
    state = reduce_group(op, states + group, members);
    if (groups > 1) {
      if (writes) states[group] = state;
      if (!arrive_last(&space.list[entry].done, groups)) return;
      state = reduce_groups(op, states, groups);
    }
  }
  if (writes) put_segment(args, op, cut.segment, state, length);
}

template <class Op>
__global__ void __launch_bounds__(kThreads, kSegmentBlocks<Op>)
    segment_long(const __grid_constant__ SegmentReduceArgs args, const __grid_constant__ Op op,
                 const __grid_constant__ SegmentReducePlan plan,
                 const __grid_constant__ SegmentReduceSpace space) {
  cudaGridDependencySynchronize();
  if (space.header->flag) {
    fill_results(args);
    return;
  }
  const auto listed = space.header->listed;
  const auto entries = static_cast<int64_t>(listed >> kListShift);
  const auto pieces = static_cast<int64_t>(listed & ((1ull << kListShift) - 1));
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kThreads / 32);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  // The first `more` warps have a chunk more than the others.
  const int64_t each = pieces / warps, more = pieces % warps;
  const int64_t first = warp * each + (warp < more ? warp : more);
  const int64_t last = first + each + (warp < more ? 1 : 0);
  if (first >= last) return;
  int64_t entry = find_entry(space.list, entries, first);
  for (int64_t piece = first; piece < last; ++piece) {
    if (entry + 1 < entries && space.list[entry + 1].first <= piece) ++entry;
    run_chunk(args, op, space, entry, piece - space.list[entry].first);
  }
}

}  // namespace

cudaError_t launch_segment_long(const SegmentReduceArgs& args, const SegmentReducePlan& plan,
                                const SegmentReduceSpace& space, cudaStream_t stream) {
  return with_segment_op(args, [&](auto op) {
    const LaunchShape shape{dim3(static_cast<unsigned>(plan.long_blocks)), dim3(kThreads), 0, true};
    return launch(segment_long<decltype(op)>, shape, stream, args, op, plan, space);
  });
}

}  // namespace gpuprims
