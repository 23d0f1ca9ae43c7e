// What the host may ask of the GPU: raw pointers in, cudaError_t out; no PyTorch on either side.
#pragma once
#include <cuda_runtime_api.h>

#include "aggregate/csr.h"
#include "aggregate/plan.h"
#include "common/dtype.h"

namespace gpuprims {

struct HubChunk {
  int64_t row;
  int64_t number;  // within its row
};

// Device memory beside one call: what prepare found out, and the partial results of hubs.
struct HubSpace {
  int* flag = nullptr;                  // kBad*; null: the offsets are known to be good
  unsigned long long* count = nullptr;  // chunks in the list
  HubChunk* chunks = nullptr;           // [capacity]; the chunks of a row lie together, in order
  int64_t capacity = 0;                 // 0: no row is cut
  void* partial = nullptr;              // [capacity, features] in the accumulator's type
  int32_t* partial_position = nullptr;  // [capacity, features], max and min: edge within the chunk
};

struct AggregateArgs {
  Csr csr;
  const void* x;  // [columns, features]
  int64_t x_stride;
  int64_t features;
  const void* edge_weight;  // [edges] by id, or null
  const void* arg;          // gradient of max and min: [columns, features]
  void* out;                // [rows, features]
  void* arg_out;            // max and min: [rows, features], or null
  Reduce reduce;
  HubSpace space;
};

struct SddmmArgs {
  Csr csr;
  const void* a;  // [rows, features]
  const void* b;  // [columns, features]
  int64_t a_stride;
  int64_t b_stride;
  int64_t features;
  const void* arg;  // [rows, features], or null
  void* out;        // [edges] by id
  const int* flag;
};

// Raises flags (with check_ids for indices and ids too) and lists the chunks of hubs.
cudaError_t launch_prepare(const Csr& csr, const HubSpace& space, bool check_ids,
                           cudaStream_t stream);

cudaError_t launch_sum(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                       cudaStream_t stream);
cudaError_t launch_extreme(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                           cudaStream_t stream);
cudaError_t launch_extreme_grad(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                                cudaStream_t stream);
cudaError_t launch_sddmm(Dtype dtype, const SddmmPlan& plan, const SddmmArgs& args,
                         cudaStream_t stream);

}  // namespace gpuprims
