// Launchers of labels.cu: raw pointers in, cudaError_t out.
#pragma once
#include <cuda_runtime_api.h>

#include "aggregate/labels.h"

namespace gpuprims {

cudaError_t launch_first_labels(Labels method, int32_t* labels, int64_t rows, int64_t spacing,
                                cudaStream_t stream);
// One round.
cudaError_t launch_labels(Labels method, const LabelArgs& args, cudaStream_t stream);

}  // namespace gpuprims
