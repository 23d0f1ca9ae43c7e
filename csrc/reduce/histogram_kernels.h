// What the host may ask of the GPU for histogram: raw pointers, a plan, a stream; no PyTorch.
#pragma once
#include <cuda_runtime_api.h>

#include "reduce/histogram_bins.h"
#include "reduce/histogram_plan.h"

namespace gpuprims {

struct HistogramArgs {
  const void* input = nullptr;           // [n]
  const double* range = nullptr;         // [2], or null
  unsigned long long* counts = nullptr;  // [bins], zeroed
  int64_t n = 0;
  Dtype dtype = Dtype::f32;
  double lo = 0, hi = 0;
  int64_t bins = 0;
  bool closed = true;
};

cudaError_t launch_histogram(const HistogramArgs& args, const HistogramPlan& plan,
                             cudaStream_t stream);

}  // namespace gpuprims
