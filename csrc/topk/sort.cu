// Any k: tiles of 2,048 pairs are sorted in shared memory, then runs are merged two by two, keeping
// k of each. Workspace: two buffers of n pairs a row. Merge path: Green, McColl & Bader, "GPU Merge
// Path", ICS 2012.
#include <utility>

#include "common/launch.h"
#include "topk/rank.cuh"

namespace gpuprims {
namespace {

constexpr int kThreads = 512;
constexpr int kTile = topk_tuning::kSortTile;
constexpr int kItems = kTile / kThreads;

template <class Key, class Pair>
__global__ void __launch_bounds__(kThreads)
    topk_sort_tiles(const __grid_constant__ TopkArgs args,
                    const __grid_constant__ KeyCodec<Key> codec, Pair* out, int64_t tiles) {
  const int64_t row = blockIdx.x / tiles, tile = blockIdx.x - row * tiles;
  const RowPlace place(row, args.inner);
  const Key* const source = static_cast<const Key*>(args.input) + place.start(args.in);
  const uint8_t* const mask = args.mask ? args.mask + place.start(args.drop) : nullptr;
  const int64_t begin = tile * kTile;
  const int count = static_cast<int>(args.n - begin < kTile ? args.n - begin : kTile);
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int64_t at = begin + i;
    const bool keep = !mask || mask[at * args.drop.step];
    buffer<Pair>()[i] = keep ? make_pair<Pair>(codec.encode(source[at]), at) : Pair(0);
  }
  __syncthreads();
  block_sort<Pair, kThreads>(count);
  for (int i = threadIdx.x; i < count; i += kThreads)
    out[row * args.n + begin + i] = buffer<Pair>()[i];
}

// How many of the first `diagonal` pairs of the merged sequence come from a.
template <class Pair>
__device__ int64_t merge_path(const Pair* a, int64_t a_size, const Pair* b, int64_t b_size,
                              int64_t diagonal) {
  int64_t low = diagonal > b_size ? diagonal - b_size : 0,
          high = diagonal < a_size ? diagonal : a_size;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (a[middle] >= b[diagonal - 1 - middle])
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Runs of `stride` pairs, of which at most k count, become runs of twice that; a block writes one
// tile.
template <class Pair>
__global__ void __launch_bounds__(kThreads)
    topk_merge_runs(const Pair* from, Pair* to, int64_t n, int64_t k, int64_t stride,
                    int64_t couples, int64_t tiles) {
  __shared__ int64_t split[2];
  const int64_t couple_of_all = blockIdx.x / tiles, tile = blockIdx.x - couple_of_all * tiles;
  const int64_t row = couple_of_all / couples, couple = couple_of_all - row * couples;
  const int64_t first = couple * 2 * stride;
  const auto size = [&](int64_t at) {
    const int64_t left = n - at < stride ? n - at : stride;
    return left < 0 ? int64_t{0} : left < k ? left : k;
  };
  const int64_t a_size = size(first), b_size = size(first + stride);
  const Pair* const a = from + row * n + first;
  const Pair* const b = a + stride;
  const int64_t total = a_size + b_size < k ? a_size + b_size : k;
  const int64_t begin = tile * kTile;
  if (begin >= total) return;
  const int64_t end = begin + kTile < total ? begin + kTile : total;
  if (threadIdx.x < 2)
    split[threadIdx.x] = merge_path(a, a_size, b, b_size, threadIdx.x ? end : begin);
  __syncthreads();
  const int64_t a_begin = split[0], b_begin = begin - a_begin;
  const int a_count = static_cast<int>(split[1] - a_begin), count = static_cast<int>(end - begin);
  Pair* const staged = buffer<Pair>();
  for (int i = threadIdx.x; i < count; i += kThreads)
    staged[i] = i < a_count ? a[a_begin + i] : b[b_begin + i - a_count];
  __syncthreads();
  const int at = threadIdx.x * kItems < count ? threadIdx.x * kItems : count;
  const Pair* const b_staged = staged + a_count;
  const int b_count = count - a_count;
  int i = static_cast<int>(
          merge_path(staged, int64_t{a_count}, b_staged, int64_t{b_count}, int64_t{at})),
      j = at - i;
  Pair merged[kItems];
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const bool from_a = j >= b_count || (i < a_count && staged[i] >= b_staged[j]);
    merged[item] = from_a ? (i < a_count ? staged[i] : Pair(0)) : b_staged[j];
    i += from_a, j += !from_a;
  }
  __syncthreads();
#pragma unroll
  for (int item = 0; item < kItems; ++item)
    if (at + item < count) staged[at + item] = merged[item];
  __syncthreads();
  for (int x = threadIdx.x; x < count; x += kThreads) to[row * n + first + begin + x] = staged[x];
}

template <class Key, class Pair>
__global__ void __launch_bounds__(kThreads)
    topk_emit(const __grid_constant__ TopkArgs args, const __grid_constant__ KeyCodec<Key> codec,
              const Pair* sorted, int64_t blocks) {
  const int64_t row = blockIdx.x / blocks;
  const int64_t rank = (blockIdx.x - row * blocks) * kThreads + threadIdx.x;
  if (rank >= args.k) return;
  const Output<Key> output(args, RowPlace(row, args.inner));
  const Pair pair = sorted[row * args.n + rank];
  if (pair == 0)
    output.put_missing(rank);
  else
    output.put(rank, pair, codec);
}

LaunchShape blocks_of(int64_t count, size_t smem = 0) {
  return {dim3(static_cast<unsigned>(count)), dim3(kThreads), smem};
}

template <class Key, class Pair>
cudaError_t start(const TopkArgs& args, void* workspace, cudaStream_t stream) {
  const auto codec = make_codec<Key>(args.dtype, args.largest);
  auto* from = static_cast<Pair*>(workspace);
  auto* to = from + round_up(args.rows * args.n, 16);
  const int64_t tiles = divide_up(args.n, kTile);
  constexpr size_t kMemory = kBufferAt<Pair> + kTile * sizeof(Pair);
  auto code = launch(topk_sort_tiles<Key, Pair>, blocks_of(args.rows * tiles, kMemory), stream,
                     args, codec, from, tiles);
  for (int64_t stride = kTile; stride < args.n && code == cudaSuccess; stride *= 2) {
    const int64_t couples = divide_up(args.n, 2 * stride);
    const int64_t out_tiles = divide_up(std::min(args.k, 2 * stride), kTile);
    code = launch(topk_merge_runs<Pair>, blocks_of(args.rows * couples * out_tiles, kMemory),
                  stream, from, to, args.n, args.k, stride, couples, out_tiles);
    std::swap(from, to);
  }
  if (code != cudaSuccess) return code;
  const int64_t blocks = divide_up(args.k, kThreads);
  return launch(topk_emit<Key, Pair>, blocks_of(args.rows * blocks), stream, args, codec, from,
                blocks);
}

template <class Key>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                  cudaStream_t stream) {
  if constexpr (sizeof(Key) < 8)
    if (!plan.wide) return start<Key, Narrow>(args, workspace, stream);
  return start<Key, Wide>(args, workspace, stream);
}

}  // namespace

cudaError_t launch_topk_sort(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                             cudaStream_t stream) {
  switch (dtype_bytes(args.dtype)) {
    case 1:
      return start<uint8_t>(args, plan, workspace, stream);
    case 2:
      return start<uint16_t>(args, plan, workspace, stream);
    case 4:
      return start<uint32_t>(args, plan, workspace, stream);
    default:
      return start<uint64_t>(args, plan, workspace, stream);
  }
}

}  // namespace gpuprims
