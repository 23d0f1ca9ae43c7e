// Looks at the offsets once before they are followed: raises flags, and lists the segments that are
// more than a warp's work. The order of the lists differs from run to run; no result depends on it.
#include "common/launch.h"
#include "topk/segment_device.cuh"

namespace gpuprims {
namespace {

constexpr int kThreads = 256;
constexpr int kBadSegments = 1, kBadCounts = 2;  // as in segment_checks.h

// Appends `item` for each lane of the warp that `wants` to, with one atomic; false: no room.
__device__ __forceinline__ bool append(unsigned long long* count, int64_t* list, int64_t room,
                                       bool wants, int64_t item) {
  const unsigned all = __ballot_sync(~0u, wants);
  if (all == 0) return true;
  const int lane = threadIdx.x % 32, leader = __ffs(static_cast<int>(all)) - 1;
  unsigned long long base = 0;
  if (lane == leader) base = atomicAdd(count, static_cast<unsigned long long>(__popc(all)));
  base = __shfl_sync(~0u, base, leader);
  const int64_t at = static_cast<int64_t>(base) + __popc(all & ((1u << lane) - 1));
  if (!wants) return true;
  if (at < room) list[at] = item;
  return at < room;
}

__global__ void __launch_bounds__(kThreads)
    segment_prepare(const __grid_constant__ SegmentArgs args,
                    const __grid_constant__ SegmentPlan plan,
                    const __grid_constant__ SegmentSpace space) {
  SegmentHeader& header = *space.header;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int lane = threadIdx.x % 32;
  int bad = 0;
  if (thread == 0 && load_integer(args.indptr, args.wide_offsets, 0) != 0) bad = kBadSegments;
  if (thread == 0 && load_integer(args.indptr, args.wide_offsets, args.segments) != args.n)
    bad = kBadSegments;
  for (int64_t first = thread - lane; first < args.segments; first += threads) {
    const int64_t s = first + lane;
    int64_t length = 0;
    if (s < args.segments) {
      const int64_t begin = load_integer(args.indptr, args.wide_offsets, s);
      const int64_t end = load_integer(args.indptr, args.wide_offsets, s + 1);
      if (begin < 0 || end < begin || end > args.n)
        bad |= kBadSegments;
      else
        length = end - begin;
      if (args.counts && load_integer(args.counts, args.wide_counts, s) < 0) bad |= kBadCounts;
    }
    if (plan.big == 0 && plan.medium == 0) continue;
    const bool more = length > plan.small;
    const bool medium = more && length <= plan.medium_limit;
    const bool cut = plan.chunks > 0 && length >= 2 * plan.chunk;
    // Lists overflow where segments overlap: indptr decreases somewhere.
    if (!append(&header.medium, space.medium, plan.medium, medium, s)) bad |= kBadSegments;
    if (!append(&header.big, space.big, plan.big, more && !medium && !cut, s)) bad |= kBadSegments;
    for (unsigned left = __ballot_sync(~0u, cut); left; left &= left - 1) {
      const int owner = __ffs(static_cast<int>(left)) - 1;
      const int64_t chunks = __shfl_sync(~0u, length, owner) / plan.chunk;
      unsigned long long base = 0;
      if (lane == 0) base = atomicAdd(&header.chunks, static_cast<unsigned long long>(chunks));
      const int64_t at = static_cast<int64_t>(__shfl_sync(~0u, base, 0));
      if (at + chunks > plan.chunks) {
        bad |= kBadSegments;
        continue;
      }
      for (int64_t number = lane; number < chunks; number += 32)
        space.chunks[at + number] = {first + owner, number};
    }
  }
  if (bad) atomicOr(&header.flag, bad);
}

}  // namespace

cudaError_t launch_segment_prepare(const SegmentArgs& args, const SegmentPlan& plan,
                                   const SegmentSpace& space, cudaStream_t stream) {
  const auto code = cudaMemsetAsync(space.header, 0, plan.reset, stream);
  if (code != cudaSuccess) return code;
  // One where there are no segments, for the offset that there is.
  const int64_t blocks = std::clamp<int64_t>(divide_up(args.segments, kThreads), 1, 2048);
  return launch(segment_prepare, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, stream,
                args, plan, space);
}

}  // namespace gpuprims
