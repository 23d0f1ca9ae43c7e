// What the host may ask of the GPU: raw pointers, sizes, a stream; no PyTorch.
#pragma once
#include <cuda_runtime_api.h>

#include "topk/plan_types.h"

namespace gpuprims {

// Row r = (r / inner, r % inner) of a tensor starts `outer * (r / inner) + inner_stride * (r %
// inner)` elements in; its elements lie `step` apart.
struct RowMap {
  int64_t outer = 0;
  int64_t inner_stride = 0;
  int64_t step = 1;
};

struct TopkArgs {
  const void* input = nullptr;    // step 1
  const uint8_t* mask = nullptr;  // null: nothing is dropped
  void* values = nullptr;         // [outer, k, inner]
  void* indices = nullptr;        // the same, int64 or int32
  int64_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t inner = 1;
  RowMap in;
  RowMap drop;  // of the mask
  Dtype dtype = Dtype::f32;
  bool largest = true;
  bool wide_index = true;  // int64 indices
};

cudaError_t launch_topk_lanes(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream);
cudaError_t launch_topk_thread(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream);
cudaError_t launch_topk_warp(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream);
cudaError_t launch_topk_cluster(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream);
// tickets: `rows` zeros, which are zeros again afterwards.
cudaError_t launch_topk_part(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                             uint32_t* tickets, cudaStream_t stream);
cudaError_t launch_topk_count(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream);
cudaError_t launch_topk_stream(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                               cudaStream_t stream);
cudaError_t launch_topk_sort(const TopkArgs& args, const TopkPlan& plan, void* workspace,
                             cudaStream_t stream);

}  // namespace gpuprims
