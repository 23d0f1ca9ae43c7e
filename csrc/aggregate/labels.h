// Labels of nodes that lie close together, for the order in which rows are walked. Integers alone:
// CPU and CUDA agree.
#pragma once
#include <cstdint>

#include "aggregate/csr.h"

#ifdef __CUDACC__
#define GPUPRIMS_BOTH __host__ __device__
#else
#define GPUPRIMS_BOTH
#endif

namespace gpuprims {

// majority: in each round a node takes the label that most of its neighbours have (label
// propagation, Raghavan et al. 2007), of kSampled neighbours at most; nodes start with their own
// number. grow: nodes without a label take the smallest of their neighbours'; every `spacing`-th
// node starts with its number.
enum class Labels : int32_t { majority, grow };

constexpr int kSampled = 32;
constexpr int32_t kNoLabel = INT32_MAX;

// Which of several labels that are equally frequent wins: a bijection, so that small numbers do not
// flood the graph.
GPUPRIMS_BOTH inline uint32_t scrambled(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// The place of sample `s` of `count` among a row's edges, evenly spread.
GPUPRIMS_BOTH inline int64_t sample_at(int64_t begin, int64_t degree, int s, int count) {
  return begin + (degree <= kSampled ? s : degree / count * s + degree % count * s / count);
}

struct LabelArgs {
  const void* indptr;
  const void* indices;
  bool wide_offsets, wide_indices;
  int64_t rows, edges;
  const int32_t* from;  // [rows]
  int32_t* to;
};

}  // namespace gpuprims
