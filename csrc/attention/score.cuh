// An edge's score, in the lane of its slot and head.
#pragma once
#include "attention/lanes.cuh"

namespace gpuprims::attention {

template <class Acc>
struct alignas(16) Stats {  // of a destination and head
  Acc a_dst, lse, delta, unused;
};

template <class Acc>
__device__ __forceinline__ Stats<Acc> load_stats(const Stats<Acc>* from) {
  Stats<Acc> stats;
  uint4 words[sizeof(stats) / 16];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(stats) / 16); ++i)
    words[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
  memcpy(&stats, words, sizeof(stats));
  return stats;
}

// What edges bring by their ids to a batch from `edge` on, of which `inside` are there: a_edge,
// added to the terms (NaN where an id is out of range), and whether dropout keeps them. Where the
// batch has room, the ids stay.
template <class T, class Batch>
__device__ __forceinline__ void add_edge_terms(const Csr& csr, const Scores& scores, int64_t heads,
                                               int64_t head, int inside, int64_t edge,
                                               Batch& batch) {
  constexpr int kFlight = sizeof(batch.term) / sizeof(batch.term[0]);
  const uint64_t seed = scores.seed ? static_cast<uint64_t>(*scores.seed) : 0;
#pragma unroll
  for (int u = 0; u < kFlight; ++u) {
    if (u >= inside) continue;
    const int64_t id = edge_id(csr, edge + u);
    const bool good = static_cast<uint64_t>(id) < static_cast<uint64_t>(csr.edges);
    if constexpr (requires { batch.id; }) batch.id[u] = good ? static_cast<unsigned>(id) : kNone;
    if (!good) {
      batch.term[u] = not_a_number<typename Math<T>::Acc>();
      continue;
    }
    if (scores.a_edge)
      batch.term[u] += widen(__ldg(static_cast<const T*>(scores.a_edge) + id * heads + head));
    if (scores.seed && !kept(seed, static_cast<uint64_t>(id * heads + head), scores.threshold))
      batch.kept &= ~(1u << u);
  }
}

template <class Acc>
__device__ __forceinline__ Acc dropout_scale(const Scores& scores, Acc without) {
  return scores.seed ? static_cast<Acc>(scores.kept_scale) : without;
}

template <int kFlight>
__device__ __forceinline__ bool all_good(const unsigned (&source)[kFlight], int64_t columns) {
  unsigned most = source[0];
#pragma unroll
  for (int u = 1; u < kFlight; ++u) most = source[u] > most ? source[u] : most;
  return most < static_cast<uint64_t>(columns);
}

// Keeps a value in a register, where it would be made again at every use.
__device__ __forceinline__ float pinned(float v) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+f"(v));
#endif
  return v;
}
__device__ __forceinline__ double pinned(double v) { return v; }

// What a lane reads of a matrix's rows, which lie `bytes` apart: the address of row `node` takes
// one multiplication of 32 bits. Of a matrix that is not there, or has no rows, zeros are read.
struct Rows {
  const char* first;
  unsigned bytes;

  __device__ __forceinline__ Rows(const void* matrix, int element, int64_t offset, int64_t stride,
                                  int64_t rows, const Hubs& hubs)
      : first(static_cast<const char*>(hubs.zeros)), bytes(0) {
    if (!matrix || rows <= 0) return;
    first = static_cast<const char*>(matrix) + offset * element;
    bytes = static_cast<unsigned>(stride * element);
  }
  template <class T>
  __device__ __forceinline__ const T* at(unsigned node) const {
    return reinterpret_cast<const T*>(at_offset(first, node, bytes));
  }
};

}  // namespace gpuprims::attention
