// The kernels around RowWarp, and their launch.
#pragma once
#include "aggregate/row_warp.cuh"
#include "common/launch.h"

namespace gpuprims {

// Blocks below hub_blocks share the list of chunks, the others take kWarps rows each. Both walk
// through the one call of reduce_chunk, which keeps the code small.
template <class T, int kVec, Mode kMode, class Index>
__global__ void __launch_bounds__(32 * kWarps, RowWarp<T, kVec, kMode, Index>::kBlocks)
    aggregate_rows(const __grid_constant__ AggregateArgs a, const int hub_blocks) {
  using Warp = RowWarp<T, kVec, kMode, Index>;
  const int warp = threadIdx.x / 32;
  const bool hub = blockIdx.x < hub_blocks;
  const bool bad = a.space.flag && *a.space.flag;
  const int64_t tile_columns = 32 * Warp::kOwned;
  for (int64_t tile = blockIdx.y; tile * tile_columns < a.features; tile += gridDim.y) {
    const Lanes lanes = Lanes::of<Warp::kOwned, kVec>(tile, a.features);
    Warp work{a, lanes};
    int64_t item = hub ? static_cast<int64_t>(blockIdx.x) * kWarps + warp
                       : static_cast<int64_t>(blockIdx.x - hub_blocks) * kWarps + warp;
    const int64_t items = !hub ? a.csr.rows : bad ? 0 : static_cast<int64_t>(*a.space.count);
    for (; item < items; item += static_cast<int64_t>(hub_blocks) * kWarps) {
      if (bad) {
        work.fill_row(item);
        break;
      }
      const int64_t row = hub ? a.space.chunks[item].row : item;
      int64_t begin = load_int(a.csr.indptr, a.csr.wide_offsets, row);
      const int64_t degree = load_int(a.csr.indptr, a.csr.wide_offsets, row + 1) - begin;
      int64_t length = degree;
      if (hub) {
        const int64_t number = a.space.chunks[item].number;
        begin += number * kChunk;
        length = number + 1 < degree / kChunk ? kChunk : degree - number * kChunk;
      } else if (hub_blocks > 0 && degree >= kHubDegree) {
        break;
      }
      work.reduce_chunk(begin, static_cast<int>(length));
      if (!hub) {
        work.store_row(row, begin, degree);
        break;
      }
      work.store_partial(item);
    }
  }
}

// Adds the chunks of a hub in order: a warp a hub and 32 columns.
template <class T, bool kExtreme>
__global__ void __launch_bounds__(32 * kWarps)
    combine_hubs(const __grid_constant__ AggregateArgs a) {
  using Acc = typename Math<T>::Acc;
  if (*a.space.flag) return;
  const int64_t stripes = (a.features + 31) / 32;
  const int64_t items = static_cast<int64_t>(*a.space.count) * stripes;
  const Acc* partial = static_cast<const Acc*>(a.space.partial);
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; item < items;
       item += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t slot = item / stripes;
    const int64_t column = item % stripes * 32 + threadIdx.x % 32;
    const HubChunk first = a.space.chunks[slot];
    if (first.number != 0 || column >= a.features) continue;
    const int64_t begin = load_int(a.csr.indptr, a.csr.wide_offsets, first.row);
    const int64_t degree = load_int(a.csr.indptr, a.csr.wide_offsets, first.row + 1) - begin;
    const int64_t chunks = degree / kChunk;
    int64_t at = slot * a.features + column;
    Acc value = partial[at];
    int64_t position = kExtreme ? a.space.partial_position[at] : 0;
#pragma unroll 8
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      at += a.features;
      const Acc other = partial[at];
      if constexpr (kExtreme) {
        const int64_t other_position = chunk * kChunk + a.space.partial_position[at];
        if (!(other <= value) && value == value) value = other, position = other_position;
      } else {
        value += other;
      }
    }
    const int64_t to = first.row * a.features + column;
    if constexpr (kExtreme) {
      if (a.reduce == Reduce::min) value = -value;
      if (a.arg_out) {
        const int64_t id = edge_id(a.csr, begin + position);
        if (a.csr.wide_offsets)
          static_cast<int64_t*>(a.arg_out)[to] = id;
        else
          static_cast<int32_t*>(a.arg_out)[to] = static_cast<int32_t>(id);
      }
    } else if (a.reduce == Reduce::mean) {
      value /= static_cast<Acc>(degree);
    }
    static_cast<T*>(a.out)[to] = narrow<T>(value);
  }
}

template <class T, int kVec, Mode kMode, class Index>
cudaError_t launch_rows(const AggregatePlan& plan, const AggregateArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.hub_blocks + plan.row_blocks), plan.tiles);
  const auto code = launch(aggregate_rows<T, kVec, kMode, Index>, {grid, dim3(32 * kWarps)}, stream,
                           args, plan.hub_blocks);
  if (code != cudaSuccess || plan.hub_blocks == 0) return code;
  return launch(combine_hubs<T, kMode == Mode::extreme>, {dim3(plan.hub_blocks), dim3(32 * kWarps)},
                stream, args);
}

template <class T, Mode kMode>
cudaError_t launch_dtype(const AggregatePlan& plan, const AggregateArgs& args,
                         cudaStream_t stream) {
  constexpr int kFull = kLaneBytes / sizeof(T);
  const bool full = plan.load_bytes == kLaneBytes;
  if (args.csr.wide_indices)  // rare (2^31 sources): no 4-byte loads of 16-bit features
    return full ? launch_rows<T, kFull, kMode, int64_t>(plan, args, stream)
                : launch_rows<T, 1, kMode, int64_t>(plan, args, stream);
  if (full) return launch_rows<T, kFull, kMode, int32_t>(plan, args, stream);
  if constexpr (sizeof(T) == 2)
    if (plan.load_bytes == 4) return launch_rows<T, 2, kMode, int32_t>(plan, args, stream);
  return launch_rows<T, 1, kMode, int32_t>(plan, args, stream);
}

template <Mode kMode>
cudaError_t launch_mode(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                        cudaStream_t stream) {
  switch (dtype) {
    case Dtype::f32:
      return launch_dtype<float, kMode>(plan, args, stream);
    case Dtype::f64:
      return launch_dtype<double, kMode>(plan, args, stream);
    case Dtype::f16:
      return launch_dtype<__half, kMode>(plan, args, stream);
    case Dtype::bf16:
      return launch_dtype<__nv_bfloat16, kMode>(plan, args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace gpuprims
