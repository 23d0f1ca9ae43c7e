// The last block of a split row merges what all its blocks have written.
#pragma once
#include "topk/stream.cuh"

namespace gpuprims {

// Global memory of split rows.
struct StreamWorkspace {
  void* pairs = nullptr;   // [rows, splits, flush]
  int* counts = nullptr;   // [rows, splits]
  int* done = nullptr;     // [rows] blocks that have finished
  int* again = nullptr;    // [rows] the shared bound was too high
  void* maxima = nullptr;  // [rows, groups] of the shared sample
};

// True in the row's last block to arrive, which then sees what the others wrote.
template <class Pair>
__device__ __forceinline__ bool last_block(int* done, int splits) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) block<Pair>().last = atomicAdd(done, 1) == splits - 1;
  __syncthreads();
  const bool last = block<Pair>().last;
  if (last) __threadfence();
  return last;
}

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

// Gathers written[0 .. splits)[0 .. counts) into the buffer, keeping the best k where they do not
// all fit; returns how many there are.
template <class Pair, int kThreads>
__device__ __noinline__ int merge_parts(const Pair* written, const int* counts, int splits,
                                        int stride, int k, int capacity) {
  __shared__ int offsets[topk_tuning::kMaxSplits + 1];
  auto& s = block<Pair>();
  for (int i = threadIdx.x; i < splits; i += kThreads) offsets[i + 1] = __ldcg(counts + i);
  if (threadIdx.x == 0) s.count = 0, offsets[0] = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    int base = 0;
    for (int first = 0; first < splits; first += 32) {
      const int i = first + threadIdx.x;
      int sum = i < splits ? offsets[i + 1] : 0;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (static_cast<int>(threadIdx.x) >= step) sum += other;
      }
      if (i < splits) offsets[i + 1] = base + sum;
      base += __shfl_sync(~0u, sum, 31);
    }
  }
  __syncthreads();
  const int total = offsets[splits];
  Pair bound = 0;
  for (int first = 0; first < total; first += kThreads) {
    const int i = first + threadIdx.x;
    bool more = i < total;
    Pair pair = 0;
    if (more) {
      int low = 0, high = splits;  // offsets[low] <= i < offsets[high]
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (offsets[middle] <= i)
          low = middle;
        else
          high = middle;
      }
      pair = load_written(written + static_cast<int64_t>(low) * stride + (i - offsets[low]));
    }
    if (total <= capacity) {
      if (more) buffer<Pair>()[i] = pair;
      continue;
    }
    while (true) {
      more = more && pair >= bound;
      if (more) {
        const int to = atomicAdd(&s.count, 1);
        if (to < capacity) buffer<Pair>()[to] = pair, more = false;
      }
      if (!__syncthreads_or(more)) break;
      bound = keep_best<Pair, kThreads>(capacity, k, capacity);
    }
  }
  __syncthreads();
  return total <= capacity ? total : s.count;
}

}  // namespace gpuprims
