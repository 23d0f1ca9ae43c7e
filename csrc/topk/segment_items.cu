// Segments that are more than a warp's work: a block each, taken from lists, and for long ones a
// block for each chunk, whose best pairs segment_merge.cu brings together.
#include "common/launch.h"
#include "topk/segment_scan.cuh"

namespace gpuprims {
namespace {

// kThreads 128: list `medium`. 512: list `chunks`, then list `big`.
template <class S, class Pair, int kThreads>
__global__ void __launch_bounds__(kThreads, sizeof(Pair) == 8 ? 1024 / kThreads : 512 / kThreads)
    segment_items(const __grid_constant__ SegmentArgs args,
                  const __grid_constant__ KeyCodec<typename S::Key> codec,
                  const __grid_constant__ SegmentPlan plan,
                  const __grid_constant__ SegmentSpace space) {
  constexpr bool kMedium = kThreads == segment_tuning::kMediumThreads;
  SegmentHeader& header = *space.header;
  if (header.flag) return;
  const int64_t chunks = kMedium ? 0 : static_cast<int64_t>(header.chunks);
  const int64_t items = kMedium ? header.medium : chunks + header.big;
  const int capacity = kMedium ? plan.medium_capacity : plan.capacity;
  __shared__ unsigned long long taken;
  unsigned long long next = 0;  // thread 0 asks for the next item while the block is at this one
  const auto ask = [&] {
    if (threadIdx.x == 0) next = atomicAdd(kMedium ? &header.next_medium : &header.next_item, 1ull);
  };
  ask();
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) taken = next;
    __syncthreads();
    const int64_t item = static_cast<int64_t>(taken);
    if (item >= items) return;
    ask();
    // The last chunks first: of rising data they hold the best, and spare the others their
    // candidates.
    const int64_t at = chunks - 1 - item;
    SegmentChunk chunk{0, 0};
    if (item < chunks)
      chunk = space.chunks[at];
    else
      chunk.segment = kMedium ? space.medium[item] : space.big[item - chunks];
    const Segment segment(args, chunk.segment);
    const int wanted = wanted_now(args, plan, segment);
    int64_t from = 0, to = segment.length;
    unsigned long long* shared = nullptr;
    if (item < chunks) {
      if (wanted == 0) continue;
      from = chunk.number * plan.chunk;
      if (to - from >= 2 * plan.chunk) to = from + plan.chunk;  // the last one takes the rest
      shared = space.bounds + (at - chunk.number);
    }
    int count = 0;
    if (wanted > 0) {
      SegmentScan<S, Pair, kThreads> scan(
          static_cast<const typename S::Key*>(args.values) + segment.begin, from, to, codec, wanted,
          capacity, ceiling_of<Pair>(args, space, chunk.segment), shared);
      count = scan.run();
    }
    if (item >= chunks) {
      emit_segment<Pair, kThreads>(args, plan, space, chunk.segment, segment.begin, count, wanted,
                                   capacity);
      continue;
    }
    if (count > wanted) {
      keep_best<Pair, kThreads>(count, wanted, wanted, capacity);
      count = wanted;
    }
    Pair* const out = static_cast<Pair*>(space.pairs) + at * plan.width;
    for (int i = threadIdx.x; i < plan.width; i += kThreads)
      out[i] = i < count ? buffer<Pair>()[i] : Pair(0);
  }
}

template <class S, class Pair, int kThreads>
cudaError_t start(const SegmentArgs& args, const SegmentPlan& plan, const SegmentSpace& space,
                  int blocks, int capacity, cudaStream_t stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                          kBufferAt<Pair> + static_cast<size_t>(stream_memory(
                                                capacity, plan.width, kThreads, sizeof(Pair)))};
  return launch(segment_items<S, Pair, kThreads>, shape, stream, args,
                make_codec<typename S::Key>(args.dtype, args.largest), plan, space);
}

template <class S, class Pair>
cudaError_t start(const SegmentArgs& args, const SegmentPlan& plan, const SegmentSpace& space,
                  cudaStream_t stream) {
  namespace t = segment_tuning;
  if (plan.big + plan.chunks > 0) {
    const auto code =
        start<S, Pair, t::kItemThreads>(args, plan, space, plan.item_blocks, plan.capacity, stream);
    if (code != cudaSuccess) return code;
  }
  constexpr size_t kSize = sizeof(typename S::Key);
  if constexpr (kSize == 1 || (sizeof(Pair) == 2 * sizeof(uint64_t) && kSize < 8))
    return cudaSuccess;  // the plan has no medium list
  else if (plan.medium == 0)
    return cudaSuccess;
  else
    return start<S, Pair, t::kMediumThreads>(args, plan, space, plan.medium_blocks,
                                             plan.medium_capacity, stream);
}

template <class Key>
cudaError_t start_any(const SegmentArgs& args, const SegmentPlan& plan, const SegmentSpace& space,
                      cudaStream_t stream) {
  if constexpr (sizeof(Key) < 8)
    if (!plan.wide) return start<ScanAny<Key>, Narrow>(args, plan, space, stream);
  return start<ScanAny<Key>, Wide>(args, plan, space, stream);
}

}  // namespace

cudaError_t launch_segment_items(const SegmentArgs& args, const SegmentPlan& plan,
                                 const SegmentSpace& space, cudaStream_t stream) {
  if (!plan.wide) {
    if (args.dtype == Dtype::f32) return start<ScanFloat32, Narrow>(args, plan, space, stream);
    if (args.dtype == Dtype::f16)
      return start<ScanFloat16<__half2>, Narrow>(args, plan, space, stream);
    if (args.dtype == Dtype::bf16)
      return start<ScanFloat16<__nv_bfloat162>, Narrow>(args, plan, space, stream);
  }
  switch (args.bytes) {
    case 1:
      return start_any<uint8_t>(args, plan, space, stream);
    case 2:
      return start_any<uint16_t>(args, plan, space, stream);
    case 4:
      return start_any<uint32_t>(args, plan, space, stream);
    default:
      return start_any<uint64_t>(args, plan, space, stream);
  }
}

}  // namespace gpuprims
