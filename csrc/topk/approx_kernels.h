// What the host may ask of the GPU for approx_topk: raw pointers, sizes, a stream; no PyTorch.
#pragma once
#include <cuda_runtime_api.h>

#include "topk/approx_plan.h"

namespace gpuprims {

// Of dtypes of 2 or 4 bytes, as the plan says.
cudaError_t launch_bucket_best(const ApproxArgs& args, cudaStream_t stream);
cudaError_t launch_remap(int64_t* indices, const int32_t* columns, int64_t rows, int64_t k,
                         int64_t candidates, cudaStream_t stream);

}  // namespace gpuprims
