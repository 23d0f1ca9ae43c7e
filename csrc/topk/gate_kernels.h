// What the host may ask of the GPU for topk_gate: raw pointers, sizes, a stream; no PyTorch.
#pragma once
#include <cuda_runtime_api.h>

#include "topk/gate_plan.h"

namespace gpuprims {

struct GateArgs {
  const void* logits = nullptr;  // [rows, n], elements of a row together
  const void* bias = nullptr;    // [n], or null
  void* weights = nullptr;       // [rows, k], float64 for float64 logits, else float32
  void* indices = nullptr;       // [rows, k], int64 or int32
  int64_t rows = 0;
  int64_t stride = 0;  // of rows, elements
  int n = 0;
  int k = 0;
  int num_groups = 1;
  int topk_groups = 1;
  Dtype dtype = Dtype::f32;
  Dtype bias_dtype = Dtype::f32;  // float32, or that of the logits
  bool sigmoid = false;           // otherwise softmax
  bool renormalize = true;
  bool wide_index = true;  // int64 indices
  bool aligned = false;    // rows are whole 16-byte vectors; the launcher finds out
  double scale = 1;
};

cudaError_t launch_gate(const GateArgs& args, const GatePlan& plan, cudaStream_t stream);

}  // namespace gpuprims
