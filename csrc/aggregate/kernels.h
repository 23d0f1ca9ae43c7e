// What the host may ask of the GPU: raw pointers in, cudaError_t out; no PyTorch on either side.
#pragma once
#include <cuda_runtime_api.h>

#include "aggregate/csr.h"
#include "aggregate/plan.h"
#include "common/dtype.h"

namespace gpuprims {

struct AggregateArgs {
  Csr csr;
  const void* x;     // [columns, features]
  int64_t x_stride;  // elements; below kMostStride bytes
  int64_t features;
  const void* edge_weight;  // [edges] by id, or null
  const void* scale;        // [rows], a factor of each sum, or null
  const void* bias;         // and [features] added to it; or null
  const void* arg;          // gradient of max and min: [columns, features]
  // And [edges, taken_words], a bit for each column of a tile: by id, and by the edge's place. The
  // same where ids are places. Workspace.
  unsigned *marked, *taken;
  int taken_words;
  void* out;      // [rows, features]
  void* arg_out;  // max and min: [rows, features], or null
  Reduce reduce;
  const int* flag;        // kBad*; null: the data is known to be good
  const int64_t* starts;  // [units + 1]
  const int64_t* hub_count;
  const int64_t* hubs;  // rows
  void* partial;        // [edges / kChunk, features] in the accumulator's type: chunks of hubs
  int32_t* partial_position;  // the same, max and min alone: edge within the chunk
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

// Whether the kernels of whole vectors take the call; the unweighted ones take no other.
// They place rows with 32 bits.
inline bool takes_vectors(int load_bytes, const AggregateArgs& args) {
  return load_bytes == kLaneBytes && !args.csr.wide_indices && args.features < (int64_t(1) << 29) &&
         !(args.csr.order && args.csr.rows >> 31);
}

// Whether a kernel with 16 edges in flight is there.
inline bool takes_deep(Dtype dtype, const AggregateArgs& args) {
  return args.reduce == Reduce::sum && dtype == Dtype::f32;
}

// Whether lanes lie over edges: rows of few elements, that no kernel of vectors takes.
inline bool takes_narrow(Dtype dtype, int load_bytes, const AggregateArgs& args) {
  return dtype != Dtype::f64 && load_bytes < kLaneBytes &&
         args.features * dtype_bytes(dtype) < kLaneBytes && !args.csr.wide_indices;
}

// Raises flags (with check_ids for indices and ids too); where `plan` is not null, writes the plan
// tensor of the graph there.
cudaError_t launch_prepare(const Csr& csr, int* flag, int64_t* plan, bool check_ids,
                           cudaStream_t stream);

using AggregateLauncher = cudaError_t(Dtype, const AggregatePlan&, const AggregateArgs&,
                                      cudaStream_t);
AggregateLauncher launch_sum, launch_affine, launch_weighted_sum, launch_extreme,
    launch_weighted_extreme, launch_extreme_grad, launch_narrow,
    launch_combine;  // the last two by the others

// Warps of a row kernel's block at most, as its registers allow.
inline int most_warps(AggregateLauncher* launcher, int load_bytes, const AggregateArgs& args) {
  if (launcher == launch_extreme_grad) return kGradRowWarps;
  return launcher == launch_sum && takes_vectors(load_bytes, args) ? kMostRowWarps
                                                                   : kWeightedRowWarps;
}

// Places of edges in args.arg_out -> their ids.
cudaError_t launch_name_edges(const AggregateArgs& args, cudaStream_t stream);

cudaError_t launch_sddmm(Dtype dtype, const SddmmPlan& plan, const SddmmArgs& args,
                         cudaStream_t stream);

}  // namespace gpuprims
