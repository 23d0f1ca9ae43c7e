// One long row of 4-byte keys by buckets. A sample gives every key a code of up to 16 bits, over
// which the keys are spread nearly equally (coder.cuh); one read counts the keys of each code, and
// so tells where each bucket, the records of one code, begins. One or two passes bring records
// there, in any order within a bucket (spread.cuh), and blocks sort windows of whole buckets
// (settle.cuh). Whether all buckets fit into windows is known before anything has moved: if not,
// and for rows that are in order, the passes by digits do it all.
#include "common/launch.h"
#include "sort/count.cuh"
#include "sort/settle.cuh"

namespace gpuprims {
namespace {

constexpr int kSpreadCountThreads = 1024, kSpreadCountWarps = kSpreadCountThreads / 32;

// Counts become the buckets' starts, and the passes' tiles and windows follow. One block.
__device__ __noinline__ void plan_buckets(const SweepArgs& args, int bits, int low, int tile) {
  constexpr uint32_t kWindow = 1u << sort_tuning::kSettleLog;
  __shared__ uint32_t sums[3][kSpreadCountWarps], firsts[kDigits + 1], tile_sums[kDigits];
  const SpreadSpace& space = args.space.spread;
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  const uint32_t n = static_cast<uint32_t>(args.sort.n);
  // A warp's buckets follow each other, two a lane at a time.
  const int words = (1 << bits) / 2 / kSpreadCountWarps;
  const uint32_t* const counts = space.counts + warp * words;
  uint32_t sum = 0, largest = 0;
#pragma unroll 8
  for (int i = lane; i < words; i += 32) {
    const uint32_t two = __ldcg(counts + i), a = two & 0xffff, b = two >> 16;
    sum += a + b;
    largest = a > largest ? a : largest, largest = b > largest ? b : largest;
  }
  sum = __reduce_add_sync(~0u, sum), largest = __reduce_max_sync(~0u, largest);
  if (lane == 0) sums[0][warp] = sum, sums[1][warp] = largest;
  __syncthreads();
  const uint32_t all = __reduce_add_sync(~0u, sums[0][lane]);
  largest = __reduce_max_sync(~0u, sums[1][lane]);
  uint32_t start = __reduce_add_sync(~0u, lane < warp ? sums[0][lane] : 0);
  const volatile RowState& row = *args.space.state;
  // A count that overflowed went to its neighbour, or was lost: the sum is too small.
  const bool fits = args.space.codes->scale && all == n && largest <= kWindow / 4 * 3 &&
                    row.not_sorted && row.not_reversed;
  if (!fits) {
    if (t == 0) args.space.state->unfinished = kLeft, *args.space.left = 1;
    return;
  }
  // A window begins with the first bucket from a multiple of `size` on. Numbers below 2^27 are
  // divided by it exactly.
  const uint32_t size = kWindow - largest;
  const uint64_t inverse = ((uint64_t{1} << 44) + size - 1) / size;
  const auto window_of = [&](uint32_t place) {
    return static_cast<uint32_t>(place * inverse >> 44);
  };
  const uint32_t windows = window_of(n - 1) + 1;
  for (int i = lane; i - lane < words; i += 32) {
    const uint32_t two = i < words ? __ldcg(counts + i) : 0, a = two & 0xffff,
                   both = a + (two >> 16);
    uint32_t before = both;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    const uint32_t here = __shfl_sync(~0u, before, 31);
    const uint32_t first = start + before - both, second = first + a, end = start + before;
    start += here;
    if (i >= words) continue;
    const uint32_t bucket = (warp * words + i) * 2;
    reinterpret_cast<uint2*>(space.starts)[bucket / 2] = make_uint2(first, second);
    if (low > 0 && bucket % (1u << low) == 0) firsts[bucket >> low] = first;
    const uint32_t in_first = window_of(first), in_second = window_of(second);
    for (uint32_t w = in_first + 1; w <= in_second; ++w) space.windows[w] = second;
    for (uint32_t w = in_second + 1; w <= window_of(end); ++w) space.windows[w] = end;
  }
  if (t == 0) {
    space.windows[0] = 0, space.windows[windows] = n;
    space.state->windows = windows, space.state->fits = 1;
  }
  if (low == 0) return;
  const int groups = 1 << (bits - low);
  if (t == 0) firsts[groups] = n;
  __syncthreads();
  uint32_t mine = 0;
  if (t < groups) {
    space.firsts[t] = firsts[t];
    mine = (firsts[t + 1] - firsts[t] + tile - 1) / tile;
  }
  const uint32_t before = sum_before(mine, sums[2]);
  if (t < groups) tile_sums[t] = before;
  if (t == groups - 1) space.state->tiles = before + mine;
  __syncthreads();
  for (int group = warp; group < groups; group += kSpreadCountWarps) {
    const uint32_t begin = firsts[group], end = firsts[group + 1];
    for (uint32_t i = lane; begin + i * tile < end; i += 32) {
      const uint32_t at = begin + i * tile, left = end - at;
      space.tiles[tile_sums[group] + i] = {
          at, static_cast<uint16_t>(left < static_cast<uint32_t>(tile) ? left : tile),
          static_cast<uint16_t>(group)};
    }
  }
}

__global__ void __launch_bounds__(kSpreadCountThreads)
    sort_spread_count(const __grid_constant__ SweepArgs args, int bits, int low, int tile) {
  __shared__ bool last;
  const int t = threadIdx.x, words = (1 << bits) / 2;
  uint32_t* const counts = reinterpret_cast<uint32_t*>(dynamic_memory);
  uint32_t* const cells = counts + words;
  for (int i = t; i < words; i += kSpreadCountThreads) counts[i] = 0;
  cudaGridDependencySynchronize();
  const SpreadSpace& space = args.space.spread;
  if (args.space.codes->scale) {
    load_cells(cells, *args.space.codes, kSpreadCountThreads);
    __syncthreads();
    const Coder coder(cells, *args.space.codes);
    const Elements<uint32_t> elements{args.sort};
    const int64_t n = args.sort.n, each = (n + gridDim.x - 1) / gridDim.x;
    const int64_t begin = each * blockIdx.x, stop = begin + each < n ? begin + each : n;
    Trend trend;
    const auto encode = [&](uint32_t element) { return elements.key(element); };
    const auto count = [&](uint32_t key) {
      const uint32_t code = coder.of(key) >> (32 - bits);
      atomicAdd(counts + code / 2, 1u << (code % 2 * 16));
    };
    if (begin < stop)
      read_span<uint32_t, uint32_t, kSpreadCountThreads>(elements.input(), begin, stop,
                                                         !args.sort.indices, encode, count, trend);
    trend.tell(*args.space.state);
    __syncthreads();
    // Four counts together.
    for (int i = t; i < words / 2; i += kSpreadCountThreads) {
      const auto four = reinterpret_cast<const unsigned long long*>(counts)[i];
      if (four) atomicAdd(reinterpret_cast<unsigned long long*>(space.counts) + i, four);
    }
  }
  __threadfence();
  __syncthreads();
  if (t == 0) last = atomicAdd(&space.state->done, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  plan_buckets(args, bits, low, tile);
}

cudaError_t run(const SweepArgs& args, const SortPlan& plan, cudaStream_t stream) {
  const int bits = plan.spread_bits, low = plan.spread_low;
  const int sms =
      static_cast<int>(std::max<int64_t>(plan.spread_grid / sort_tuning::kBlocksPerSm, 1));
  LaunchShape shape{dim3(static_cast<unsigned>(sms)), dim3(kSpreadCountThreads)};
  shape.smem = (1 << bits) * 2 + kCodeCells * 4;
  shape.dependent = true;
  if (const auto code =
          launch(sort_spread_count, shape, stream, args, bits, low, SpreadMemory::kSize))
    return code;
  shape.grid = dim3(static_cast<unsigned>(plan.spread_grid));
  shape.block = dim3(kThreads);
  shape.smem = SpreadMemory::kBytes;
  for (int pass = 0; pass < (low > 0 ? 2 : 1); ++pass)
    if (const auto code = launch(sort_spread, shape, stream, args, pass, bits, low)) return code;
  shape.smem = SettleMemory::kBytes;
  const int index_up = __builtin_clz(static_cast<unsigned>(args.sort.n - 1));
  return launch(sort_settle, shape, stream, args, index_up);
}

}  // namespace

cudaError_t launch_sort_spread(const SortArgs& sort, const SortPlan& plan, const SweepSpace& space,
                               cudaStream_t stream) {
  if (const auto code = launch_sort_sample(sort, plan, space, 0, stream)) return code;
  const SweepArgs args{sort, space};
  return run(args, plan, stream);
}

}  // namespace gpuprims
