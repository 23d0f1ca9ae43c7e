// The second pass of hubs.
#include "aggregate/elements.cuh"
#include "common/launch.h"

namespace gpuprims {
namespace {

// Adds the chunks of a hub in order, where they are pieces of chunks those of each first.
template <class Acc>
__device__ __forceinline__ void combine_row(const AggregateArgs& a, Dtype dtype, int64_t edges_each,
                                            int64_t row, int64_t column) {
  const int64_t begin = load_int(a.csr.indptr, a.csr.wide_offsets, row);
  const int64_t degree = load_int(a.csr.indptr, a.csr.wide_offsets, row + 1) - begin;
  const int64_t pieces = degree / edges_each;
  const Acc* const partial =
      static_cast<const Acc*>(a.partial) + begin / edges_each * a.features + column;
  Acc value = partial[0];
  int64_t position = 0;
  if (a.partial_position) {
    const int32_t* const positions = a.partial_position + (partial - static_cast<Acc*>(a.partial));
    position = positions[0];
#pragma unroll 8
    for (int64_t piece = 1; piece < pieces; ++piece) {
      const Acc other = partial[piece * a.features];
      const int64_t other_position = piece * edges_each + positions[piece * a.features];
      if (!(other <= value) && value == value) position = other_position;
      value = larger(value, other);
    }
  } else {
    const int64_t per_chunk = kChunk / edges_each;
    const int64_t last = degree < kHubDegree ? 0 : (degree / kChunk - 1) * per_chunk;
    Acc chunks = 0;  // those before the one at hand
#pragma unroll 8
    for (int64_t piece = 1; piece < pieces; ++piece) {
      const Acc other = partial[piece * a.features];
      if (piece <= last && (piece & (per_chunk - 1)) == 0) {
        chunks = piece == per_chunk ? value : chunks + value;
        value = other;
      } else {
        value += other;
      }
    }
    if (last > 0) value = chunks + value;
  }
  const int64_t place = a.csr.order ? a.csr.order[row] : row;
  if (static_cast<uint64_t>(place) >= static_cast<uint64_t>(a.csr.rows)) return;
  const int64_t to = place * a.features + column;
  if (a.partial_position) {
    if (a.reduce == Reduce::min) value = -value;
    if (a.arg_out) {
      const int64_t id = edge_id(a.csr, begin + position);
      if (a.csr.wide_offsets)
        static_cast<int64_t*>(a.arg_out)[to] = id;
      else
        static_cast<int32_t*>(a.arg_out)[to] = static_cast<int32_t>(id);
    }
  } else if (a.reduce == Reduce::mean) {
    value = quotient(value, static_cast<Acc>(degree));
  }
  if (a.row_scale) value *= a.row_scale[place];
  store_as(dtype, a.out, to, value);
}

// A warp takes 32 columns of a hub; or, as rows whose chunks are pieces are not listed, of those
// among 32 rows.
template <class Acc>
__global__ void __launch_bounds__(32 * kWarps)
    combine_hubs(const __grid_constant__ AggregateArgs a, const Dtype dtype, const int edges_each) {
  if (a.flag && *a.flag) return;
  const int64_t stripes = (a.features + 31) / 32;
  const bool listed = edges_each == kChunk;
  const int64_t items = (listed ? *a.hub_count : ceil_div(a.csr.rows, 32)) * stripes;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; item < items;
       item += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t column = item % stripes * 32 + threadIdx.x % 32;
    if (listed) {
      if (column < a.features)
        combine_row<Acc>(a, dtype, edges_each, a.hubs[item / stripes], column);
      continue;
    }
    const int64_t row = item / stripes * 32 + threadIdx.x % 32;
    const bool inside = row < a.csr.rows;
    const int64_t degree = inside ? load_int(a.csr.indptr, a.csr.wide_offsets, row + 1) -
                                        load_int(a.csr.indptr, a.csr.wide_offsets, row)
                                  : 0;
    for (unsigned left = __ballot_sync(~0u, degree >= 2 * edges_each); left != 0; left &= left - 1)
      if (column < a.features)
        combine_row<Acc>(a, dtype, edges_each,
                         item / stripes * 32 + __ffs(static_cast<int>(left)) - 1, column);
  }
}

}  // namespace

cudaError_t launch_combine(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                           cudaStream_t stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.hub_blocks)), dim3(32 * kWarps)};
  const auto kernel = dtype == Dtype::f64 ? combine_hubs<double> : combine_hubs<float>;
  return launch(kernel, shape, stream, args, dtype, static_cast<int>(plan.chunk));
}

}  // namespace gpuprims
