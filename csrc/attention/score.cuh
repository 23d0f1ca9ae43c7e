// An edge's score, in the lane of its slot and head.
#pragma once
#include "attention/lanes.cuh"

namespace gpuprims::attention {

template <class Acc>
struct alignas(16) Stats {  // of a destination and head
  Acc a_dst, lse, delta, unused;
};

template <class T>
struct EdgeScore {
  using Acc = typename Math<T>::Acc;
  unsigned node;  // the other end; kNone where there is no edge, or one out of range
  int64_t at;     // id * heads + head: its place in per-edge tensors and in the dropout's stream
  Acc raw;        // a_edge; NaN for an edge out of range

  // `number` is an edge's position in the CSR matrix, `ahead` its node, `there` whether it is one.
  __device__ EdgeScore(const Csr& csr, const Scores& scores, int64_t heads, int64_t head,
                       bool there, int64_t number, unsigned ahead)
      : node(ahead), at(-1), raw(0) {
    if (!there) return;
    if (scores.by_id) {
      const int64_t id = edge_id(csr, number);
      if (static_cast<uint64_t>(id) < static_cast<uint64_t>(csr.edges))
        at = id * heads + head;
      else
        node = kNone;
    }
    if (node == kNone)
      raw = not_a_number<Acc>();
    else if (scores.a_edge)
      raw = widen(__ldg(static_cast<const T*>(scores.a_edge) + at));
  }
};

// What dropout multiplies an alpha with.
template <class Acc>
__device__ __forceinline__ Acc dropout_factor(const Scores& scores, uint64_t seed, int64_t at) {
  if (!scores.seed) return Acc(1);
  return kept(seed, static_cast<uint64_t>(at), scores.threshold)
             ? static_cast<Acc>(scores.kept_scale)
             : Acc(0);
}

__device__ __forceinline__ uint64_t seed_of(const Scores& scores) {
  return scores.seed ? static_cast<uint64_t>(*scores.seed) : 0;
}

}  // namespace gpuprims::attention
