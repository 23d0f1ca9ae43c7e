// The graph as CPU and CUDA kernels see it.
#pragma once
#include <cstdint>

namespace gpuprims {

enum class Reduce : int32_t { sum, mean, max, min };

// CSR by destination. Offsets (indptr, edge_ids, and arg matrices) share one width, indices have
// their own.
struct Csr {
  const void* indptr;    // [rows + 1]
  const void* indices;   // [edges], each in [0, columns)
  const void* edge_ids;  // [edges]; null: an edge's id is its position
  bool wide_offsets;     // int64; int32 otherwise
  bool wide_indices;
  int64_t rows;
  int64_t columns;
  int64_t edges;
  const int64_t* order;  // [rows]: what row i makes is row order[i] of the output; null: row i
};

// What is wrong with the data. Ids and indices are looked at under GPUPRIMS_CHECK=1 alone: kernels
// never follow a bad one, and an edge that has one counts as NaN.
constexpr int kBadOffsets = 1;
constexpr int kBadIndices = 2;
constexpr int kBadIds = 4;

}  // namespace gpuprims
