// Edges that max and min took: from their places in the graph to their ids. A pass of its own,
// because within the row kernels the loads of ids wait at every row's end, and the code of eight
// ends would no longer fit the instruction caches.
#include "aggregate/elements.cuh"
#include "common/launch.h"

namespace gpuprims {
namespace {

constexpr int kNamedAtOnce = 4;

// One instance for both widths of ids: a branch costs nothing beside the random reads.
template <class Id>
__device__ __forceinline__ void name_all(const Csr& csr, Id* arg, int64_t count) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; at < count; at += kNamedAtOnce * threads) {
    Id edge[kNamedAtOnce];
#pragma unroll
    for (int u = 0; u < kNamedAtOnce; ++u)
      edge[u] = at + u * threads < count ? arg[at + u * threads] : -1;
#pragma unroll
    for (int u = 0; u < kNamedAtOnce; ++u)
      if (edge[u] >= 0) edge[u] = __ldg(static_cast<const Id*>(csr.edge_ids) + edge[u]);
#pragma unroll
    for (int u = 0; u < kNamedAtOnce; ++u)
      if (at + u * threads < count) arg[at + u * threads] = edge[u];
  }
}

__global__ void __launch_bounds__(256) name_edges(const Csr csr, void* arg, const int64_t count) {
  if (csr.wide_offsets)
    name_all(csr, static_cast<long long*>(arg), count);
  else
    name_all(csr, static_cast<int*>(arg), count);
}

}  // namespace

cudaError_t launch_name_edges(const AggregateArgs& args, cudaStream_t stream) {
  const int64_t count = args.csr.rows * args.features;
  if (!args.arg_out || !args.csr.edge_ids || count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(ceil_div(count, int64_t(256) * kNamedAtOnce), 1 << 20));
  return launch(name_edges, {dim3(blocks), dim3(256)}, stream, args.csr, args.arg_out, count);
}

}  // namespace gpuprims
