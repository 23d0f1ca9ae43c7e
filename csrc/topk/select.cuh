// Selecting pairs in a block's shared memory. All pairs are distinct, so every result is unique and
// independent of the order in which pairs were stored.
#pragma once
#include "topk/block.cuh"

namespace gpuprims {

// A pair that none of the first `count` is below and one that none is above, exact where all keys
// are equal: digits are taken of the difference to the lowest.
template <class Pair>
struct Extremes {
  Pair low, high;

  // The width of the differences to `low`, bits.
  __device__ __forceinline__ int bits() const {
    const Pair range = high - low;
    int width = 0;
#pragma unroll
    for (int w = 0; w < static_cast<int>(sizeof(Pair) / 4); ++w) {
      const auto word = static_cast<uint32_t>(range >> (32 * w));
      if (word) width = 32 * w + 32 - __clz(static_cast<int>(word));
    }
    return width;
  }
};
template <class Pair, int kThreads>
__device__ __forceinline__ Extremes<Pair> extremes(int count) {
  const Pair* const pairs = buffer<Pair>();
  auto& s = block<Pair>();
  constexpr int kWords = sizeof(Pair) / 4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t least[kWords], most[kWords];
#pragma unroll
  for (int w = 0; w < kWords; ++w) least[w] = ~0u, most[w] = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const Pair pair = pairs[i];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const auto word = static_cast<uint32_t>(pair >> (32 * w));
      least[w] = word < least[w] ? word : least[w];
      most[w] = word > most[w] ? word : most[w];
    }
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    least[w] = __reduce_min_sync(~0u, least[w]);
    most[w] = __reduce_max_sync(~0u, most[w]);
    if (lane == 0) s.words[warp][2 * w] = least[w], s.words[warp][2 * w + 1] = most[w];
  }
  __syncthreads();
  Extremes<Pair> found{0, 0};
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const bool there = lane < kThreads / 32;
    const uint32_t low = __reduce_min_sync(~0u, there ? s.words[lane][2 * w] : ~0u);
    const uint32_t high = __reduce_max_sync(~0u, there ? s.words[lane][2 * w + 1] : 0);
    found.low |= static_cast<Pair>(low) << (32 * w);
    found.high |= static_cast<Pair>(high) << (32 * w);
  }
  return found;
}

// Finds, from the top, the bin in which the running count reaches `want`. One warp; 8 bins a lane.
template <class Pair>
__device__ __forceinline__ void find_bin(int want) {
  auto& s = block<Pair>();
  const int lane = threadIdx.x;
  uint32_t mine[8];
  int sum = 0;
#pragma unroll
  for (int b = 0; b < 8; ++b) sum += mine[b] = s.bins[lane * 8 + b];
  int above = sum;  // becomes the count of this lane's bins and all higher ones
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_down_sync(~0u, above, step);
    if (lane + step < 32) above += other;
  }
  int before = above - sum;
  if (before < want && want <= above) {
#pragma unroll
    for (int b = 7; b >= 0; --b) {
      const int in_bin = static_cast<int>(mine[b]);
      if (before < want && want <= before + in_bin)
        s.digit = lane * 8 + b, s.rest = want - before, s.size = in_bin;
      before += in_bin;
    }
  }
}

// A bound that at least `want` and at most `most` of the `count` pairs reach, and how many do in
// block().kept; 1 <= want <= most, want < count. Radix select, 8 bits a round, as few rounds as
// that allows. Ends with a barrier behind it.
template <class Pair, int kThreads>
__device__ __noinline__ Pair select_bound(int count, int want, int most) {
  const Pair* const pairs = buffer<Pair>();
  auto& s = block<Pair>();
  const auto range = extremes<Pair, kThreads>(count);
  int width = 8;
  int shift = range.bits() > 8 ? range.bits() - 8 : 0;
  Pair prefix = 0;
  int rest = want;
  while (true) {
#pragma unroll 1
    for (int b = threadIdx.x; b < 256; b += kThreads) s.bins[b] = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const Pair high = (pairs[i] - range.low) >> shift;
      if ((high >> width) == prefix)
        atomicAdd(&s.bins[static_cast<uint32_t>(high) & ((1u << width) - 1)], 1u);
    }
    __syncthreads();
    if (threadIdx.x < 32) find_bin<Pair>(rest);
    __syncthreads();
    prefix = (prefix << width) | static_cast<Pair>(s.digit);
    rest = s.rest;
    const int kept = want - rest + s.size;
    if (kept <= most || shift == 0) {
      if (threadIdx.x == 0) s.kept = kept;
      __syncthreads();
      return range.low + (prefix << shift);
    }
    width = shift < 8 ? shift : 8;
    shift -= width;
  }
}

// Keeps at least the best `want` and at most the best `most` of the first `count` pairs, in no
// order; returns a bound that exactly these reach, and leaves their number in block().count.
template <class Pair, int kThreads>
__device__ __noinline__ Pair keep_best(int count, int want, int most, int capacity) {
  const Pair bound = select_bound<Pair, kThreads>(count, want, most);
  Pair* const pairs = buffer<Pair>();
  uint16_t* const holes = positions<Pair>(capacity);
  auto& s = block<Pair>();
  const int kept = s.kept;
  if (threadIdx.x == 0) s.holes = 0, s.movers = 0, s.count = kept;
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < kept; i += kThreads)
    if (pairs[i] < bound) holes[atomicAdd(&s.holes, 1)] = static_cast<uint16_t>(i);
  __syncthreads();
#pragma unroll 1
  for (int i = kept + threadIdx.x; i < count; i += kThreads)
    if (pairs[i] >= bound) pairs[holes[atomicAdd(&s.movers, 1)]] = pairs[i];
  __syncthreads();
  return bound;
}

template <class Pair>
__device__ __forceinline__ int count_better(int better, Pair mine, Pair a, Pair b) {
  if (a > mine) ++better;
  if (b > mine) ++better;
  return better;
}

// The lanes' values in descending order: a bitonic sort.
__device__ __forceinline__ uint32_t sort_lanes(uint32_t value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int run = 2; run <= 32; run *= 2) {
#pragma unroll
    for (int step = run / 2; step > 0; step /= 2) {
      const uint32_t other = __shfl_xor_sync(~0u, value, step);
      const bool larger = ((lane & step) == 0) == ((lane & run) == 0 || run == 32);
      value = larger ? (other > value ? other : value) : (other < value ? other : value);
    }
  }
  return value;
}

// A bound that at least `rank` of the threads' pairs reach: the lowest of those that an equal share
// of each warp's reach. 0 where some warp has too few that are not 0.
template <int kThreads>
__device__ __forceinline__ Narrow warps_bound(Narrow mine, int rank) {
  constexpr int kWarps = kThreads / 32;
  auto& s = block<Narrow>();
  const auto key = static_cast<uint32_t>(mine >> 32);
  const int share = (rank + kWarps - 1) / kWarps;
  const uint32_t least = __shfl_sync(~0u, sort_lanes(key), share - 1);
  // Of equal keys no more lanes, and thus indices, than are needed.
  const unsigned equal = __ballot_sync(~0u, key == least), below = (1u << threadIdx.x % 32) - 1;
  const int needed = share - __popc(__ballot_sync(~0u, key > least));
  const bool in = key == least && __popc(equal & below) < needed;
  const uint32_t last = __reduce_min_sync(~0u, in ? static_cast<uint32_t>(mine) : ~0u);
  if (threadIdx.x % 32 == 0) s.groups[threadIdx.x / 32] = static_cast<Narrow>(least) << 32 | last;
  __syncthreads();
  Narrow bound = s.groups[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) bound = s.groups[w] < bound ? s.groups[w] : bound;
  return bound >> 32 ? bound : 0;
}

// The rank-th largest (1 is the largest) of `groups` maxima, each of the pairs of every groups-th
// thread; 0 where fewer are not 0. groups: 32, 64 or 128, and at most kThreads; more where `best`
// has room for them. All threads share the counting of those better than each. The buffer of pairs
// is used.
template <class Pair, int kThreads>
__device__ __forceinline__ Pair group_bound_here(Pair mine, int groups, int rank,
                                                 Pair* best = block<Pair>().groups) {
  auto& s = block<Pair>();
  Pair* const all = buffer<Pair>();
  all[threadIdx.x] = mine;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < groups) {
#pragma unroll 4
    for (int i = threadIdx.x + groups; i < kThreads; i += groups)
      mine = all[i] > mine ? all[i] : mine;
    best[threadIdx.x] = mine;
  }
  if (threadIdx.x == 0) s.bound = 0;
  __syncthreads();
  const int shift = __ffs(kThreads) - __ffs(groups);
  const int lanes = 1 << shift, lane = threadIdx.x & (lanes - 1);  // up to 32
  mine = best[threadIdx.x >> shift];
  int better = 0;
#pragma unroll 4
  for (int i = 2 * lane; i < groups; i += 2 * lanes)  // 16-byte loads of narrow pairs
    better = count_better(better, mine, best[i], best[i + 1]);
#pragma unroll 1
  for (int step = lanes / 2; step > 0; step /= 2) better += __shfl_xor_sync(~0u, better, step);
  if (lane == 0 && better == rank - 1) s.bound = mine;
  __syncthreads();
  return s.bound;
}
// The same out of line.
template <class Pair, int kThreads>
__device__ __noinline__ Pair group_bound(Pair mine, int groups, int rank) {
  return group_bound_here<Pair, kThreads>(mine, groups, rank);
}

}  // namespace gpuprims
