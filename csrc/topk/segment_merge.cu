// The best pairs of a segment's chunks meet: round r joins lists that lie fan^r chunks apart, until
// one is left, which is written out. Dtypes do not matter here: pairs do.
#include "common/launch.h"
#include "topk/segment_scan.cuh"

namespace gpuprims {
namespace {

constexpr int kThreads = segment_tuning::kItemThreads;
constexpr int kLoads = 8;  // pairs a thread has in flight

template <class Pair>
__global__ void __launch_bounds__(kThreads)
    segment_merge(const __grid_constant__ SegmentArgs args,
                  const __grid_constant__ SegmentPlan plan,
                  const __grid_constant__ SegmentSpace space, int64_t step) {
  const SegmentHeader& header = *space.header;
  if (header.flag) return;
  auto& s = block<Pair>();
  Pair* const all = static_cast<Pair*>(space.pairs);
  const int64_t reach = step * plan.fan;  // chunks that one list stands for after this round
  const int64_t filled = static_cast<int64_t>(header.chunks);
  for (int64_t at = blockIdx.x; at < filled; at += gridDim.x) {
    const SegmentChunk chunk = space.chunks[at];
    if (chunk.number % reach != 0) continue;
    const Segment segment(args, chunk.segment);
    const int64_t left = segment.length / plan.chunk - chunk.number;  // chunks from this one on
    if (left <= step) continue;  // nothing to join: done, or in place
    const int wanted = wanted_now(args, plan, segment);
    const bool last = chunk.number == 0 && left <= reach;
    if (wanted == 0) {
      if (last)
        emit_segment<Pair, kThreads>(args, plan, space, chunk.segment, segment.begin, 0, 0,
                                     plan.capacity);
      continue;
    }
    const int lists = static_cast<int>(left < reach ? divide_up(left, step) : plan.fan);
    const int total = lists * plan.width;
    __syncthreads();
    if (threadIdx.x == 0) s.count = 0;
    __syncthreads();
    // What all chunks left behind; the same for all threads, as nobody writes it any more.
    Pair bound = shared_bound<Pair>(space.bounds + (at - chunk.number));
    for (int first = 0; first < total; first += kThreads * kLoads) {
      Pair pairs[kLoads];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const int i = first + u * kThreads + static_cast<int>(threadIdx.x);
        const int list = i / plan.width;
        pairs[u] =
            i < total ? all[(at + list * step) * plan.width + (i - list * plan.width)] : Pair(0);
      }
      uint32_t waiting = (1u << kLoads) - 1;
      while (true) {
#pragma unroll
        for (int u = 0; u < kLoads; ++u) {
          if (!(waiting >> u & 1)) continue;
          if (pairs[u] != 0 && pairs[u] >= bound) {
            const int to = atomicAdd(&s.count, 1);
            if (to >= plan.capacity) continue;
            buffer<Pair>()[to] = pairs[u];
          }
          waiting &= ~(1u << u);
        }
        if (!__syncthreads_or(waiting != 0)) break;
        bound = keep_best<Pair, kThreads>(plan.capacity, wanted, (plan.capacity + wanted) / 2,
                                          plan.capacity);
      }
    }
    int count = s.count;
    __syncthreads();
    if (last) {
      emit_segment<Pair, kThreads>(args, plan, space, chunk.segment, segment.begin, count, wanted,
                                   plan.capacity);
      continue;
    }
    if (count > wanted) {
      keep_best<Pair, kThreads>(count, wanted, wanted, plan.capacity);
      count = wanted;
    }
    for (int i = threadIdx.x; i < plan.width; i += kThreads)
      all[at * plan.width + i] = i < count ? buffer<Pair>()[i] : Pair(0);
  }
}

template <class Pair>
cudaError_t start(const SegmentArgs& args, const SegmentPlan& plan, const SegmentSpace& space,
                  cudaStream_t stream) {
  const int64_t blocks = std::min<int64_t>(plan.chunks, plan.item_blocks);
  const LaunchShape shape{
      dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
      kBufferAt<Pair> +
          static_cast<size_t>(stream_memory(plan.capacity, plan.width, kThreads, sizeof(Pair)))};
  int64_t step = 1;
  for (int round = 0; round < plan.rounds; ++round, step *= plan.fan) {
    const auto code = launch(segment_merge<Pair>, shape, stream, args, plan, space, step);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_segment_merge(const SegmentArgs& args, const SegmentPlan& plan,
                                 const SegmentSpace& space, cudaStream_t stream) {
  return plan.wide ? start<Wide>(args, plan, space, stream)
                   : start<Narrow>(args, plan, space, stream);
}

}  // namespace gpuprims
