// What the host may ask of the GPU for merge_topk: raw pointers, a stream; no PyTorch.
#pragma once
#include <cuda_runtime_api.h>

#include "topk/missing.h"

namespace gpuprims {

constexpr int64_t kMostMerged = 4096;  // candidates a row in shared memory; more are sorted

struct MergeArgs {
  const void* values = nullptr;      // [rows, m]
  const void* indices = nullptr;     // [rows, m]
  void* out_values = nullptr;        // [rows, k]
  void* out_indices = nullptr;       // [rows, k]
  int64_t* out_positions = nullptr;  // [rows, k]
  int64_t rows = 0;
  int64_t m = 0;
  int64_t k = 0;
  Dtype dtype = Dtype::f32;
  int bytes = 4;  // of a value
  bool largest = true;
  bool wide_index = true;  // int64, else int32
  uint64_t missing = 0;    // bits of a slot without an element
};

// m up to kMostMerged.
cudaError_t launch_merge_rows(const MergeArgs& args, int sms, cudaStream_t stream);
// In index order: sorted[i] is the value of candidate order[i], kept[i] whether there is one.
cudaError_t launch_merge_gather(const MergeArgs& args, const int64_t* order, void* sorted,
                                bool* kept, cudaStream_t stream);
// Writes the outputs; chosen [rows, found]: places in that order, -1 for none.
cudaError_t launch_merge_write(const MergeArgs& args, const int64_t* order, const int64_t* chosen,
                               int64_t found, cudaStream_t stream);

}  // namespace gpuprims
