// Any k: tiles of 2,048 pairs are sorted in shared memory, then runs are merged two by two, keeping
// k of each. Pairs are wide whatever the key, so that three kernels serve all: what comes here are
// masks with k above 4,096 and rows of 2^32 and more. Workspace: two buffers of n pairs a row.
// Merge path: Green, McColl & Bader, "GPU Merge Path", ICS 2012.
#include <utility>

#include "common/launch.h"
#include "topk/any_width.cuh"
#include "topk/rank.cuh"

namespace gpuprims {
namespace {

constexpr int kThreads = 512;
constexpr int kTile = topk_tuning::kSortTile;
constexpr int kItems = kTile / kThreads;
using Pair = Wide;

__global__ void __launch_bounds__(kThreads)
    topk_sort_tiles(const __grid_constant__ TopkArgs args, const __grid_constant__ AnyCodec codec,
                    int bytes, Pair* out, int64_t tiles) {
  const int64_t row = blockIdx.x / tiles, tile = blockIdx.x - row * tiles;
  const RowPlace place(row, args.inner);
  const int64_t start = place.start(args.in);
  const uint8_t* const mask = args.mask ? args.mask + place.start(args.drop) : nullptr;
  const auto pair_of = [&](int64_t from, int64_t at) {
    return make_pair<Pair>(codec.encode(bytes, load_bits(args.input, bytes, from)), at);
  };
  const int64_t begin = tile * kTile;
  const int count = static_cast<int>(args.n - begin < kTile ? args.n - begin : kTile);
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int64_t at = begin + i;
    const bool keep = !mask || mask[at * args.drop.step];
    buffer<Pair>()[i] = keep ? pair_of(start + at, at) : Pair(0);
  }
  __syncthreads();
  block_sort<Pair, kThreads>(count);
  for (int i = threadIdx.x; i < count; i += kThreads)
    out[row * args.n + begin + i] = buffer<Pair>()[i];
}

// How many of the first `diagonal` pairs of the merged sequence come from a.
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

__global__ void __launch_bounds__(kThreads)
    topk_emit(const __grid_constant__ TopkArgs args, const __grid_constant__ AnyCodec codec,
              int bytes, const Pair* sorted, int64_t blocks) {
  const int64_t row = blockIdx.x / blocks;
  const int64_t rank = (blockIdx.x - row * blocks) * kThreads + threadIdx.x;
  if (rank >= args.k) return;
  const RowPlace place(row, args.inner);
  const Pair pair = sorted[row * args.n + rank];
  with_width(bytes, codec, [&]<class Key>(const KeyCodec<Key>& keys) {
    const Output<Key> output(args, place);
    if (pair == 0)
      output.put_missing(rank);
    else
      output.put(rank, pair, keys);
  });
}

LaunchShape blocks_of(int64_t count, size_t smem = 0) {
  return {dim3(static_cast<unsigned>(count)), dim3(kThreads), smem};
}

}  // namespace

cudaError_t launch_topk_sort(const TopkArgs& args, const TopkPlan&, void* workspace,
                             cudaStream_t stream) {
  const AnyCodec codec = make_any_codec(args.dtype, args.largest);
  const int bytes = dtype_bytes(args.dtype);
  auto* from = static_cast<Pair*>(workspace);
  auto* to = from + round_up(args.rows * args.n, 16);
  const int64_t tiles = divide_up(args.n, kTile);
  constexpr size_t kMemory = kBufferAt<Pair> + kTile * sizeof(Pair);
  auto code = launch(topk_sort_tiles, blocks_of(args.rows * tiles, kMemory), stream, args, codec,
                     bytes, from, tiles);
  for (int64_t stride = kTile; stride < args.n && code == cudaSuccess; stride *= 2) {
    const int64_t couples = divide_up(args.n, 2 * stride);
    const int64_t out_tiles = divide_up(std::min(args.k, 2 * stride), kTile);
    code = launch(topk_merge_runs, blocks_of(args.rows * couples * out_tiles, kMemory), stream,
                  from, to, args.n, args.k, stride, couples, out_tiles);
    std::swap(from, to);
  }
  if (code != cudaSuccess) return code;
  const int64_t blocks = divide_up(args.k, kThreads);
  return launch(topk_emit, blocks_of(args.rows * blocks), stream, args, codec, bytes, from, blocks);
}

}  // namespace gpuprims
