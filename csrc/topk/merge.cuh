// The last block of a split row merges what all its blocks have written.
#pragma once
#include "topk/stream.cuh"

namespace gpuprims {

// Global memory of split rows.
struct StreamWorkspace {
  void* pairs = nullptr;  // [rows, splits * flush], filled from the front in no order
  // [rows] blocks that have finished, and in the lower half pairs written
  unsigned long long* state = nullptr;
  int* again = nullptr;    // [rows] the shared bound was too high
  void* maxima = nullptr;  // [rows, groups] of the shared sample
  int run_shift = 1;       // log2 of the sample's vectors that follow each other
};

// Past L1, which may hold what lay there before.
template <class Pair>
__device__ __forceinline__ Pair load_written(const Pair* p) {
  if constexpr (sizeof(Pair) == 8) {
    return __ldcg(reinterpret_cast<const unsigned long long*>(p));
  } else {
    const ulonglong2 both = __ldcg(reinterpret_cast<const ulonglong2*>(p));
    return (static_cast<Pair>(both.y) << 64) | both.x;
  }
}

// merge_parts where the buffer has no room for all.
template <class Pair, int kThreads>
__device__ __noinline__ int merge_many(const Pair* written, int total, int k, int capacity) {
  auto& s = block<Pair>();
  Pair bound = 0;
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
#pragma unroll 1
  for (int first = 0; first < total; first += kThreads) {
    const int i = first + threadIdx.x;
    const Pair pair = i < total ? load_written(written + i) : Pair(0);
    bool more = i < total;
    while (true) {
      more = more && pair >= bound;
      if (more) {
        const int to = atomicAdd(&s.count, 1);
        if (to < capacity) buffer<Pair>()[to] = pair, more = false;
      }
      if (!__syncthreads_or(more)) break;
      bound = keep_best<Pair, kThreads>(capacity, k, (capacity + k) / 2, capacity);
    }
  }
  return s.count;
}

// Gathers the best k of the row's `total` written pairs, and some others, in the buffer; returns
// how many there are. Of some hundred pairs and more, the k-th best of groups of them is a bound
// that hardly more than k reach.
template <class Pair, int kThreads>
__device__ __noinline__ int merge_parts(const Pair* written, int total, int k, int capacity) {
  constexpr int kLoads = 8, kGroups = topk_tuning::kMaxGroups;
  if (total > capacity) return merge_many<Pair, kThreads>(written, total, k, capacity);
  auto& s = block<Pair>();
  const bool bounded =
      total > kByCounting<kThreads> && total <= kLoads * kThreads && k <= kGroups / 4 * 3;
  if (threadIdx.x == 0) s.count = bounded ? 0 : total;
#pragma unroll 1
  for (int first = 0; first < total; first += kLoads * kThreads) {
    Pair mine[kLoads], best = 0;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int i = first + u * kThreads + threadIdx.x;
      mine[u] = i < total ? load_written(written + i) : Pair(0);
      best = mine[u] > best ? mine[u] : best;
    }
    const Pair bound = bounded ? group_bound<Pair, kThreads>(best, kGroups, k) : Pair(0);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int i = first + u * kThreads + threadIdx.x;
      if (i < total && mine[u] >= bound)
        buffer<Pair>()[bounded ? atomicAdd(&s.count, 1) : i] = mine[u];
    }
  }
  __syncthreads();
  return s.count;
}

}  // namespace gpuprims
