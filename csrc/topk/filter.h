// What the host may ask of the GPU for large k: raw pointers, sizes, a stream; no PyTorch.
#pragma once
#include <cuda_runtime_api.h>

#include "topk/kernels.h"
#include "topk/radix_plan.h"

namespace gpuprims {

struct FilterSpace {
  FilterRow* rows = nullptr;
  uint32_t* bins = nullptr;     // [rows, bins_per_row]
  uint2* counts = nullptr;      // [rows, chunks]
  void* values = nullptr;       // [rows, k]: the best, in the order of their indices
  uint32_t* columns = nullptr;  // [rows, k]: those indices
  int64_t chunk = 0;            // elements a block
  int64_t chunks = 1;           // blocks a row
  int bins_per_row = 0;
};

// Of a row's sorted elements the first k, with the indices that they had in the row.
struct FilterEmit {
  const void* sorted = nullptr;       // [rows, pitch] values; null: they are in place
  const void* positions = nullptr;    // [rows, pitch]
  const uint32_t* columns = nullptr;  // [rows, k]: what a position stands for; null: itself
  void* values = nullptr;             // [outer, k, inner]
  void* indices = nullptr;
  int64_t rows = 0;
  int64_t k = 0;
  int64_t inner = 1;
  int64_t pitch = 0;
};

cudaError_t launch_topk_filter(const TopkArgs& args, const FilterSpace& space, cudaStream_t stream);
// All of it (cuda_radix.cpp).
cudaError_t launch_topk_radix(const TopkArgs& args, const RadixPlan& plan, void* workspace, int sms,
                              cudaStream_t stream);
cudaError_t launch_topk_emit(const FilterEmit& emit, int bytes, bool wide_index,
                             cudaStream_t stream);

}  // namespace gpuprims
