// The best pairs of a block's buffer, in order: by counting where they are few, by bins where they
// spread, by a bitonic sort where they do not.
#pragma once
#include "common/block_scan.cuh"
#include "topk/select.cuh"

namespace gpuprims {

// Bitonic sort, descending, of kThreads * kItems pairs, of which `count` are there and the others
// 0. A thread holds neighbours; exchanges go through registers, then shuffles, then, between warps,
// shared memory.
template <class Pair, int kThreads, int kItems>
__device__ __noinline__ void sort_items(int count) {
  Pair* const pairs = buffer<Pair>();
  const int thread = threadIdx.x, first = thread * kItems;
  Pair item[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) item[i] = first + i < count ? pairs[first + i] : Pair(0);
#pragma unroll 1
  for (int run = 2; run <= kThreads * kItems; run *= 2) {
#pragma unroll 1
    for (int step = run / 2; step >= kItems; step /= 2) {
      const bool best =
          ((first & step) == 0) == ((first & run) == 0);  // which of two this thread keeps
      if (step >= 32 * kItems) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kItems; ++i) pairs[i * kThreads + thread] = item[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          const Pair other = pairs[i * kThreads + (thread ^ (step / kItems))];
          if ((other > item[i]) == best) item[i] = other;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          const Pair other = shuffle_xor(item[i], step / kItems);
          if ((other > item[i]) == best) item[i] = other;
        }
      }
    }
#pragma unroll
    for (int step = kItems / 2; step > 0; step /= 2) {
      if (step >= run) continue;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (i & step) continue;
        const Pair a = item[i], b = item[i + step];
        if ((a < b) == (((first + i) & run) == 0)) item[i] = b, item[i + step] = a;
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) pairs[first + i] = item[i];
  __syncthreads();
}

// Sorts the first `count` pairs, descending. The buffer must have room for the next power of two,
// and for a pair a thread; at most 8 pairs a thread.
template <class Pair, int kThreads>
__device__ __forceinline__ void block_sort(int count) {
  if (count <= kThreads)
    sort_items<Pair, kThreads, 1>(count);
  else if (count <= 2 * kThreads)
    sort_items<Pair, kThreads, 2>(count);
  else if (count <= 4 * kThreads)
    sort_items<Pair, kThreads, 4>(count);
  else
    sort_items<Pair, kThreads, 8>(count);
}

// Calls put(rank, where in the buffer, pair) for the best k pairs: a pair's rank is the number of
// better ones, counted by as many threads as there are for it. The buffer has room for a pair more.
template <class Pair, int kThreads, class Put>
__device__ __forceinline__ void rank_by_counting(int count, int k, const Put& put) {
  Pair* const pairs = buffer<Pair>();
  int shift = 0;
  while (shift < 5 && count << (shift + 1) <= kThreads) ++shift;
  const int lanes = 1 << shift, lane = threadIdx.x & (lanes - 1);
  if (threadIdx.x == 0) pairs[count] = 0;  // pairs are read by twos
  __syncthreads();
#pragma unroll 1
  for (int first = 0; first < count; first += kThreads >> shift) {
    const int i = first + (threadIdx.x >> shift);
    const Pair mine = i < count ? pairs[i] : Pair(0);
    int better = 0;
#pragma unroll 4
    for (int other = 2 * lane; other < count; other += 2 * lanes)  // 16-byte loads of narrow pairs
      better = count_better(better, mine, pairs[other], pairs[other + 1]);
#pragma unroll 1
    for (int step = lanes / 2; step > 0; step /= 2) better += __shfl_xor_sync(~0u, better, step);
    if (lane == 0 && i < count && better < k) put(better, i, mine);
  }
}

// The same by bins, evenly spread from the lowest pair to the highest, and by counting within a
// bin. False where a bin that counts is crowded.
template <class Pair, int kThreads>
__device__ __forceinline__ bool rank_by_bins(int count, int k, int capacity, uint16_t* order) {
  constexpr int kBins = 4 * kThreads, kCrowd = 64;
  constexpr int kBits = kThreads == 128 ? 9 : kThreads == 256 ? 10 : 11;
  static_assert(kBins == 1 << kBits);
  constexpr int kAtOnce = kThreads == 512 ? 4 : 1;  // pairs, where a thread or a bin has several
  const Pair* const pairs = buffer<Pair>();
  uint32_t* const bins = scratch<Pair>(capacity);
  uint16_t* const binned = positions<Pair>(capacity);
  uint4* const mine =
      reinterpret_cast<uint4*>(bins) + (kThreads - 1 - threadIdx.x);  // from the top
  *mine = make_uint4(0, 0, 0, 0);
  const auto range = extremes<Pair, kThreads>(count);  // with a barrier
  const int shift = range.bits() > kBits ? range.bits() - kBits : 0;
  const auto bin = [&](Pair pair) { return static_cast<uint32_t>((pair - range.low) >> shift); };
#pragma unroll kAtOnce
  for (int i = threadIdx.x; i < count; i += kThreads) atomicAdd(&bins[bin(pairs[i])], 1u);
  __syncthreads();
  const auto wanted = static_cast<uint32_t>(k);
  const uint4 size = *mine;
  uint4 start;
  start.w = sum_before<kThreads>(size.x + size.y + size.z + size.w, &block<Pair>().words[0][0]);
  start.z = start.w + size.w;
  start.y = start.z + size.z;
  start.x = start.y + size.y;
  *mine = start;
  const bool crowded =
      (start.w < wanted && size.w > kCrowd) || (start.z < wanted && size.z > kCrowd) ||
      (start.y < wanted && size.y > kCrowd) || (start.x < wanted && size.x > kCrowd);
  if (__syncthreads_or(crowded)) return false;
#pragma unroll kAtOnce
  for (int i = threadIdx.x; i < count; i += kThreads)
    binned[atomicAdd(&bins[bin(pairs[i])], 1u)] = static_cast<uint16_t>(i);
  __syncthreads();
  // bins now holds each bin's end, which is the start of the bin below.
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const uint16_t at = binned[i];
    const Pair pair = pairs[at];
    const uint32_t b = bin(pair), end = bins[b], begin = b == kBins - 1 ? 0 : bins[b + 1];
    if (begin >= wanted) break;
    uint32_t rank = begin;
#pragma unroll 1
    for (uint32_t other = begin; other < end; other += kAtOnce) {
#pragma unroll
      for (uint32_t next = other; next < other + kAtOnce; ++next)
        rank += pairs[next < end ? binned[next] : at] > pair;
    }
    if (rank < wanted) order[rank] = at;
  }
  return true;
}

template <int kThreads>
constexpr int kByCounting = kThreads == 128 ? 64 : 256;  // pairs up to which counting is quicker

// Finds the best min(k, count) pairs of the buffer in order: order[rank] says where in the buffer
// each is. The buffer has room for a pair more, and for a power of two >= k. Ends with a barrier.
template <class Pair, int kThreads>
__device__ __noinline__ const uint16_t* rank_best(int count, int k, int capacity) {
  uint16_t* const order = ranked<Pair, kThreads>(capacity);
  if (count <= kByCounting<kThreads>) {
    rank_by_counting<Pair, kThreads>(
        count, k, [&](int rank, int at, Pair) { order[rank] = static_cast<uint16_t>(at); });
  } else if (!rank_by_bins<Pair, kThreads>(count, k, capacity, order)) {
    if (count > k) keep_best<Pair, kThreads>(count, k, k, capacity);
    block_sort<Pair, kThreads>(count < k ? count : k);
#pragma unroll 1
    for (int i = threadIdx.x; i < k; i += kThreads) order[i] = static_cast<uint16_t>(i);
  }
  __syncthreads();
  return order;
}

}  // namespace gpuprims
