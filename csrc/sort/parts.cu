// Rows of a few blocks' size, of 4-byte keys and an index: each block reads the whole row, which
// its neighbours bring to L2 at the same time, keeps the keys between two cuts, and sorts them by
// buckets. Blocks need nothing from each other: how many keys lie below tells where a part goes.
// Rows of many equal keys, and those that the sample misled, are left to the passes by digits.
#include <algorithm>

#include "common/launch.h"
#include "sort/split.cuh"

namespace gpuprims {
namespace {

constexpr int kPartThreads = 1024;
using PartBuckets = Buckets<uint32_t, uint32_t, kPartThreads, sort_tuning::kPartItems>;
static_assert(PartBuckets::kSize == sort_tuning::kPartSize);

// Keys in [first, first + span] of the order in which every bit pattern has a key of its own: those
// at a distance of at most `span`. Keys below are at more than ~first.
struct PartFilter {
  uint32_t first, span, negative, turn, offset;

  __device__ __forceinline__ PartFilter(const OrderParams<uint32_t>& order, uint32_t first,
                                        uint32_t last)
      : first(first), span(last - first), negative(order.float_mask & ~order.sign) {
    turn = order.invert ? ~0u : 1u;  // key = turn * (bits ^ (negative if they are)) + ...
    const uint32_t start = order.sign - order.nans;
    offset = (order.invert ? ~start : start) - first;
  }
  // How far behind the first key, modulo 2^32.
  __device__ __forceinline__ uint32_t distance(uint32_t bits) const {
    const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31);
    return (bits ^ (sign & negative)) * turn + offset;
  }
};

// Collects what a block keeps of its row: in any order, elements' bits and their numbers.
struct Collector {
  static constexpr int kVectors = 4, kBatch = kVectors * 4, kWarpVectors = kVectors * 32;
  const PartBuckets& to;
  const PartFilter filter;
  uint32_t* const total;
  uint32_t below = 0;

  // All vectors of the row, a batch a warp.
  __device__ __forceinline__ void vectors(const uint4* from, int count, int before) {
    for (int first = threadIdx.x / 32 * kWarpVectors; first < count;
         first += kPartThreads / 32 * kWarpVectors) {
      if (first + kWarpVectors <= count)
        some_vectors<true>(from, first, count, before);
      else
        some_vectors<false>(from, first, count, before);
    }
  }

  // One element a lane.
  __device__ __forceinline__ void single(const uint32_t* from, int number, bool there) {
    const uint32_t bits[1] = {there ? from[number] : 0};
    batch<1>(bits, number, there);
  }

 private:
  template <bool kFull>
  __device__ __forceinline__ void some_vectors(const uint4* from, int first, int count,
                                               int before) {
    const int lane = threadIdx.x % 32, at = first + lane;
    uint32_t bits[kBatch];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint4 four = kFull || at + v * 32 < count ? from[at + v * 32] : make_uint4(0, 0, 0, 0);
      bits[v * 4] = four.x, bits[v * 4 + 1] = four.y;
      bits[v * 4 + 2] = four.z, bits[v * 4 + 3] = four.w;
    }
    batch<kBatch>(bits, before + at * 4, kFull ? kVectors : (count - at + 31) / 32);
  }

  // Of this lane's vectors `there` are in the row.
  template <int kCount>
  __device__ __forceinline__ void batch(const uint32_t (&bits)[kCount], uint32_t number,
                                        int there) {
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i / 4 >= there) continue;
      const uint32_t distance = filter.distance(bits[i]);
      if (distance <= filter.span) mask |= 1u << i;
      if (distance > ~filter.first) ++below;
    }
    uint32_t place = reserve(mask);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!(mask >> i & 1)) continue;
      to.keys[place] = bits[i];
      to.order[place] = number + i / 4 * 128 + i % 4;
      ++place;
    }
  }

  // Room for a warp's marked elements: this lane's first place. If there is none, marks go.
  __device__ __forceinline__ uint32_t reserve(uint32_t& mask) const {
    const int lane = threadIdx.x % 32;
    const uint32_t mine = __popc(mask);
    uint32_t sum = mine, first = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t before = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += before;
    }
    if (lane == 31) first = atomicAdd(total, sum);
    first = __shfl_sync(~0u, first, 31) + sum - mine;
    if (first + mine > PartBuckets::kSize) mask = 0;
    return first;
  }
};

// Blocks stay, and go through the parts of all rows.
__global__ void __launch_bounds__(kPartThreads)
    sort_parts(const __grid_constant__ SweepArgs args, int parts) {
  using B = PartBuckets;
  constexpr int kItems = B::kSize / kPartThreads;
  __shared__ uint32_t total, below;
  __shared__ bool skip;
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  cudaGridDependencySynchronize();
  for (int64_t task = blockIdx.x; task < args.sort.rows * parts; task += gridDim.x) {
    const int64_t r = task / parts;
    const int part = static_cast<int>(task - r * parts);
    const RowSpan row = row_span(args.sort, r);
    const RowSplit& split = args.space.splits[r];
    RowState& state = args.space.state[r];
    const auto leave = [&] {
      if (t == 0) state.unfinished = kLeft, *args.space.left = 1;
    };
    B buckets(args.sort, dynamic_memory);
    __syncthreads();  // the part before this one has been read
    if (t == 0) {
      total = below = 0;
      skip = *static_cast<volatile uint32_t*>(&state.unfinished);
    }
    buckets.clear();
    __syncthreads();
    if (skip) continue;
    if (!split.usable) {
      leave();
      continue;
    }
    const bool last = part + 1 == parts;
    const uint32_t first = split.first[part], next = last ? 0 : split.first[part + 1];
    if (!last && first == next) continue;
    const uint32_t* const from = static_cast<const uint32_t*>(args.sort.input) + row.start;
    Collector collector{buckets, PartFilter(args.sort.order32, first, next - 1), &total};
    {
      const int n = static_cast<int>(row.n);
      const int head = (16 - static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16)) % 16 / 4;
      const int vectors = (n - head) / 4, tail = head + vectors * 4;
      const uint4* const body = reinterpret_cast<const uint4*>(from + head);
      collector.vectors(body, vectors, head);
      if (warp == kPartThreads / 32 - 1) {  // at most three in front and three behind
        const int number = lane < 4 ? lane : tail + lane - 4;
        collector.single(from, number, lane < 4 ? lane < head : number < n);
      }
    }
    const uint32_t lower = __reduce_add_sync(~0u, collector.below);
    if (lane == 0) atomicAdd(&below, lower);
    __syncthreads();
    const int count = static_cast<int>(total);
    if (count == 0) continue;
    if (count > B::kSize) {
      leave();
      continue;
    }
    uint32_t key[kItems];
    const OrderParams<uint32_t> codec = buckets.codec();
    const int other = t < count ? t : count - 1;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int at = i * kPartThreads + t;
      key[i] = codec.encode(buckets.keys[at < count ? at : other]);
    }
    const bool differ = buckets.measure(key);
    if ((differ || count == 1) && buckets.arrange(key, count))
      buckets.write(count, row, {row.start + below, count});
    else
      leave();
  }
}

}  // namespace

cudaError_t launch_sort_parts(const SortArgs& sort, const SortPlan& plan, const SweepSpace& space,
                              cudaStream_t stream) {
  const SweepArgs args{sort, space};
  const auto samplers = static_cast<int>(std::min<int64_t>(sort.rows, plan.grid * 2));
  const int64_t clear = plan.clear_bytes / 16;
  const auto clearers = std::clamp<int64_t>(clear / (4 * Splitter::kThreads), 1, plan.grid);
  LaunchShape shape{dim3(static_cast<unsigned>(samplers + clearers)), dim3(Splitter::kThreads)};
  shape.smem = Splitter::kBytes;
  if (const auto code = launch(sort_split, shape, stream, args, plan.parts, samplers, clear))
    return code;
  shape.grid = dim3(static_cast<unsigned>(plan.part_grid));
  shape.block = dim3(kPartThreads);
  shape.smem = PartBuckets::kBytes;
  shape.dependent = true;
  return launch(sort_parts, shape, stream, args, plan.parts);
}

}  // namespace gpuprims
