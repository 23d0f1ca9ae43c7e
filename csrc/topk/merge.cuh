// The last block of a split row merges what all its blocks have written.
#pragma once
#include "topk/stream.cuh"

namespace gpuprims {

// Global memory of split rows.
struct StreamWorkspace {
  void* pairs = nullptr;   // [rows, splits * flush], filled from the front in no order
  int* counts = nullptr;   // [rows] pairs written
  int* done = nullptr;     // [rows] blocks that have finished
  int* again = nullptr;    // [rows] the shared bound was too high
  void* maxima = nullptr;  // [rows, groups] of the shared sample
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

// Gathers the best k of the row's `total` written pairs, and some others, in the buffer; returns
// how many there are.
template <class Pair, int kThreads>
__device__ __noinline__ int merge_parts(const Pair* written, int total, int k, int capacity) {
  auto& s = block<Pair>();
  if (total <= capacity) {
#pragma unroll 4
    for (int i = threadIdx.x; i < total; i += kThreads)
      buffer<Pair>()[i] = load_written(written + i);
    __syncthreads();
    return total;
  }
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

}  // namespace gpuprims
