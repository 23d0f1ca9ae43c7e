// Selecting pairs in a block's shared memory. All pairs are distinct, so every result is unique and
// independent of the order in which pairs were stored.
#pragma once
#include "topk/block.cuh"

namespace gpuprims {

// The highest bit in which pairs differ, or -1: leading digits that all pairs share are skipped.
template <class Pair, int kThreads>
__device__ __forceinline__ int highest_difference(int count) {
  const Pair* const pairs = buffer<Pair>();
  auto& s = block<Pair>();
  constexpr int kWords = sizeof(Pair) / 4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Pair all = ~Pair(0), any = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) all &= pairs[i], any |= pairs[i];
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const uint32_t both = __reduce_and_sync(~0u, static_cast<uint32_t>(all >> (32 * w)));
    const uint32_t some = __reduce_or_sync(~0u, static_cast<uint32_t>(any >> (32 * w)));
    if (lane == 0) s.words[warp][2 * w] = both, s.words[warp][2 * w + 1] = some;
  }
  __syncthreads();
  int top = -1;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    uint32_t both = ~0u, some = 0;
    if (lane < kThreads / 32) both = s.words[lane][2 * w], some = s.words[lane][2 * w + 1];
    const uint32_t differ = __reduce_and_sync(~0u, both) ^ __reduce_or_sync(~0u, some);
    if (differ) top = 32 * w + 31 - __clz(differ);
  }
  return top;
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

// A bound that exactly `want` of the `count` pairs reach; 1 <= want < count. Radix select, 8 bits a
// round. Ends with a barrier behind it.
template <class Pair, int kThreads>
__device__ __noinline__ Pair select_bound(int count, int want) {
  const Pair* const pairs = buffer<Pair>();
  auto& s = block<Pair>();
  const int top = highest_difference<Pair, kThreads>(count);
  int width = 8;
  int shift = top > 7 ? top - 7 : 0;
  Pair prefix = pairs[0] >> shift >> 8;  // common to all pairs
  while (true) {
#pragma unroll 1
    for (int b = threadIdx.x; b < 256; b += kThreads) s.bins[b] = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const Pair high = pairs[i] >> shift;
      if ((high >> width) == prefix)
        atomicAdd(&s.bins[static_cast<uint32_t>(high) & ((1u << width) - 1)], 1u);
    }
    __syncthreads();
    if (threadIdx.x < 32) find_bin<Pair>(want);
    __syncthreads();
    prefix = (prefix << width) | static_cast<Pair>(s.digit);
    want = s.rest;
    if (s.size == want || shift == 0) return prefix << shift;
    width = shift < 8 ? shift : 8;
    shift -= width;
  }
}

// Keeps the best `want` of the first `count` pairs, in no order; returns a bound that exactly these
// reach.
template <class Pair, int kThreads>
__device__ __noinline__ Pair keep_best(int count, int want, int capacity) {
  const Pair bound = select_bound<Pair, kThreads>(count, want);
  Pair* const pairs = buffer<Pair>();
  uint16_t* const holes = positions<Pair>(capacity);
  auto& s = block<Pair>();
  if (threadIdx.x == 0) s.holes = 0, s.movers = 0;
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < want; i += kThreads)
    if (pairs[i] < bound) holes[atomicAdd(&s.holes, 1)] = static_cast<uint16_t>(i);
  __syncthreads();
#pragma unroll 1
  for (int i = want + threadIdx.x; i < count; i += kThreads)
    if (pairs[i] >= bound) pairs[holes[atomicAdd(&s.movers, 1)]] = pairs[i];
  if (threadIdx.x == 0) s.count = want;
  __syncthreads();
  return bound;
}

// The rank-th largest (1 is the largest) of `groups` maxima, each of the pairs of kThreads / groups
// threads; 0 where fewer are not 0. groups: 32, 64 or 128, and at most kThreads. All threads of a
// group share the counting of those better than it.
template <class Pair, int kThreads>
__device__ __forceinline__ Pair group_bound(Pair mine, int groups, int rank) {
  auto& s = block<Pair>();
  const int shift = __ffs(kThreads) - __ffs(groups);
  const int lanes = 1 << shift, lane = threadIdx.x & (lanes - 1);  // up to 32
#pragma unroll 1
  for (int step = lanes / 2; step > 0; step /= 2) {
    const Pair other = shuffle_xor(mine, step);
    if (other > mine) mine = other;
  }
  if (lane == 0) s.groups[threadIdx.x >> shift] = mine;
  if (threadIdx.x == 0) s.bound = 0;
  __syncthreads();
  int better = 0;
#pragma unroll 4
  for (int i = 2 * lane; i < groups; i += 2 * lanes)  // 16-byte loads of narrow pairs
    better += (s.groups[i] > mine) + (s.groups[i + 1] > mine);
#pragma unroll 1
  for (int step = lanes / 2; step > 0; step /= 2) better += __shfl_xor_sync(~0u, better, step);
  if (lane == 0 && better == rank - 1) s.bound = mine;
  __syncthreads();
  return s.bound;
}

}  // namespace gpuprims
