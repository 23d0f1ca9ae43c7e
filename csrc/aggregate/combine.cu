// The second pass of hubs.
#include "aggregate/elements.cuh"
#include "common/launch.h"

namespace gpuprims {
namespace {

__device__ __forceinline__ float affine_as(Dtype dtype, const AggregateArgs& a, int64_t row,
                                           int64_t column, float sum) {
  return dtype == Dtype::f32   ? affine<float>(a, row, column, sum)
         : dtype == Dtype::f16 ? affine<__half>(a, row, column, sum)
                               : affine<__nv_bfloat16>(a, row, column, sum);
}
__device__ __forceinline__ double affine_as(Dtype, const AggregateArgs& a, int64_t row,
                                            int64_t column, double sum) {
  return affine<double>(a, row, column, sum);
}

// Adds the chunks of a hub in order: a warp a hub and 32 columns.
template <class Acc>
__device__ __forceinline__ void combine_all(const AggregateArgs& a, const Dtype dtype) {
  const int64_t stripes = (a.features + 31) / 32;
  const int64_t items = *a.hub_count * stripes;
  const Acc* partial = static_cast<const Acc*>(a.partial);
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; item < items;
       item += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t row = a.hubs[item / stripes];
    const int64_t column = item % stripes * 32 + threadIdx.x % 32;
    if (column >= a.features) continue;
    const int64_t begin = load_int(a.csr.indptr, a.csr.wide_offsets, row);
    const int64_t degree = load_int(a.csr.indptr, a.csr.wide_offsets, row + 1) - begin;
    const int64_t chunks = degree / kChunk;
    int64_t at = begin / kChunk * a.features + column;
    const bool extreme = a.partial_position != nullptr;
    Acc value = partial[at];
    int64_t position = extreme ? a.partial_position[at] : 0;
    if (extreme) {
#pragma unroll 8
      for (int64_t chunk = 1; chunk < chunks; ++chunk) {
        at += a.features;
        const Acc other = partial[at];
        const int64_t other_position = chunk * kChunk + a.partial_position[at];
        if (!(other <= value) && value == value) position = other_position;
        value = larger(value, other);
      }
    } else {
#pragma unroll 8
      for (int64_t chunk = 1; chunk < chunks; ++chunk) {
        at += a.features;
        value += partial[at];
      }
    }
    const int64_t place = a.csr.order ? a.csr.order[row] : row;
    if (static_cast<uint64_t>(place) >= static_cast<uint64_t>(a.csr.rows)) continue;
    const int64_t to = place * a.features + column;
    if (extreme) {
      if (a.reduce == Reduce::min) value = -value;
      if (a.arg_out) {
        if (a.csr.wide_offsets)
          static_cast<int64_t*>(a.arg_out)[to] = begin + position;
        else
          static_cast<int32_t*>(a.arg_out)[to] = static_cast<int32_t>(begin + position);
      }
    } else if (a.reduce == Reduce::mean) {
      value = quotient(value, static_cast<Acc>(degree));
    }
    if (a.scale) value = affine_as(dtype, a, place, column, value);
    store_as(dtype, a.out, to, value);
  }
}

__global__ void __launch_bounds__(32 * kWarps)
    combine_hubs(const __grid_constant__ AggregateArgs a, const Dtype dtype) {
  if (a.flag && *a.flag) return;
  if (dtype == Dtype::f64)
    combine_all<double>(a, dtype);
  else
    combine_all<float>(a, dtype);
}

}  // namespace

cudaError_t launch_combine(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                           cudaStream_t stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.hub_blocks)), dim3(32 * kWarps)};
  return launch(combine_hubs, shape, stream, args, dtype);
}

}  // namespace gpuprims
