// Selecting and sorting pairs in a block's shared memory. All pairs are distinct, so every result
// is unique and independent of the order in which pairs were stored.
//
// The block's dynamic shared memory is laid out as BlockMemory, the buffer of pairs, and a list of
// 16-bit positions as long as the buffer. Functions find it by themselves: passed pointers would
// lose the address space, and big functions stay out of line to keep the streaming loop's
// registers.
#pragma once
#include "topk/rows.cuh"

namespace gpuprims {

template <class Pair>
struct BlockMemory {
  alignas(16) uint32_t bins[256];
  alignas(16) Pair bound;
  alignas(16) Pair groups[topk_tuning::kMaxGroups];
  uint32_t words[32][8];  // a warp's AND and OR, up to 4 words each
  int digit;
  int rest;  // how many of the digit's pairs are still wanted
  int size;  // how many pairs have the digit
  int holes;
  int movers;
  int count;  // pairs in the buffer, or more where some found no room
  int full;   // some pair found no room
  int last;   // this block is its row's last
};

extern __shared__ __align__(16) unsigned char dynamic_memory[];

template <class Pair>
__device__ __forceinline__ BlockMemory<Pair>& block() {
  return *reinterpret_cast<BlockMemory<Pair>*>(dynamic_memory);
}
template <class Pair>
constexpr size_t kBufferAt = (sizeof(BlockMemory<Pair>) + 15) / 16 * 16;
template <class Pair>
__device__ __forceinline__ Pair* buffer() {
  return reinterpret_cast<Pair*>(dynamic_memory + kBufferAt<Pair>);
}
template <class Pair>
__device__ __forceinline__ uint16_t* positions(int capacity) {
  return reinterpret_cast<uint16_t*>(buffer<Pair>() + capacity);
}

// The highest bit in which pairs differ, or -1: leading digits that all pairs share are skipped.
template <class Pair, int kThreads>
__device__ __forceinline__ int highest_difference(int count) {
  const Pair* const pairs = buffer<Pair>();
  auto& s = block<Pair>();
  constexpr int kWords = sizeof(Pair) / 4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Pair all = ~Pair(0), any = 0;
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
    for (int b = threadIdx.x; b < 256; b += kThreads) s.bins[b] = 0;
    __syncthreads();
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
  for (int i = threadIdx.x; i < want; i += kThreads)
    if (pairs[i] < bound) holes[atomicAdd(&s.holes, 1)] = static_cast<uint16_t>(i);
  __syncthreads();
  for (int i = want + threadIdx.x; i < count; i += kThreads)
    if (pairs[i] >= bound) pairs[holes[atomicAdd(&s.movers, 1)]] = pairs[i];
  if (threadIdx.x == 0) s.count = want, s.full = 0;
  __syncthreads();
  return bound;
}

// How many of the first `count` pairs, an even number or one with a 0 behind it, are better than
// `mine`.
template <class Pair>
__device__ __forceinline__ int count_better(const Pair* pairs, int count, Pair mine) {
  int better = 0;
#pragma unroll 4
  for (int i = 0; i < count; i += 2) {  // 16-byte loads of narrow pairs
    const Pair a = pairs[i], b = pairs[i + 1];
    better += (a > mine) + (b > mine);
  }
  return better;
}

// The rank-th largest (1 is the largest) of `groups` maxima, each of the pairs of kThreads / groups
// threads; 0 where fewer are not 0. groups: 32, 64 or 128, and at most kThreads.
template <class Pair, int kThreads>
__device__ __noinline__ Pair group_bound(Pair mine, int groups, int rank) {
  auto& s = block<Pair>();
  const int lanes = kThreads / groups;  // a power of two up to 32
  for (int step = lanes / 2; step > 0; step /= 2) {
    const Pair other = shuffle_xor(mine, step);
    if (other > mine) mine = other;
  }
  if (threadIdx.x % lanes == 0) s.groups[threadIdx.x / lanes] = mine;
  if (threadIdx.x == 0) s.count = 0, s.bound = 0;
  __syncthreads();
  if (groups == 32) {  // every warp for itself
    mine = s.groups[threadIdx.x % 32];
    const unsigned holder = __ballot_sync(~0u, count_better(s.groups, 32, mine) == rank - 1);
    return holder ? s.groups[__ffs(static_cast<int>(holder)) - 1] : Pair(0);
  }
  if (static_cast<int>(threadIdx.x) < groups) {
    mine = s.groups[threadIdx.x];
    if (count_better(s.groups, groups, mine) == rank - 1) s.bound = mine;
  }
  __syncthreads();
  return s.bound;
}

// Leaves the best `want` of the first `count` pairs, and few others, at the front; returns how
// many. For small `want`: each thread's pairs make a group, and those below the want-th best group
// are dropped.
template <class Pair, int kThreads>
__device__ __noinline__ int drop_most(int count, int want) {
  constexpr int kItems = 8;
  auto& s = block<Pair>();
  Pair* const pairs = buffer<Pair>();
  Pair mine[kItems], top = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = i * kThreads + threadIdx.x;
    mine[i] = at < count ? pairs[at] : Pair(0);
    top = mine[i] > top ? mine[i] : top;
  }
  const Pair bound = group_bound<Pair, kThreads>(top, topk_tuning::groups_for(want), want);
#pragma unroll
  for (int i = 0; i < kItems; ++i)
    if (mine[i] != 0 && mine[i] >= bound) pairs[atomicAdd(&s.count, 1)] = mine[i];
  __syncthreads();
  return s.count;
}

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

// Calls emit(rank, pair) for the best min(k, count) pairs. The buffer has room for a power of two
// >= k.
template <class Pair, int kThreads, class Emit>
__device__ __forceinline__ void emit_sorted(int count, int k, int capacity, const Emit& emit) {
  constexpr int kByCounting = 200;  // few pairs: a pair's rank is the number of better ones
  const Pair* const pairs = buffer<Pair>();
  if (count > kByCounting && count <= 8 * kThreads && topk_tuning::groups_for(k) > 0)
    count = drop_most<Pair, kThreads>(count, k);
  if (count > k && count > kByCounting) {
    keep_best<Pair, kThreads>(count, k, capacity);
    count = k;
  }
  const bool by_counting = count <= kByCounting;
  if (by_counting) {
    if (threadIdx.x == 0) buffer<Pair>()[count] = 0;
    __syncthreads();
  }
  if (!by_counting) block_sort<Pair, kThreads>(count);
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const Pair mine = pairs[i];
    int rank = i;
    if (by_counting) {
      rank = count_better(pairs, count, mine);
    }
    if (rank < k) emit(rank, mine);
  }
}

}  // namespace gpuprims
