// The kernels around RowGroup and RowStream, and their launch.
#pragma once
#include "aggregate/row_stream.cuh"
#include "aggregate/vector_stream.cuh"
#include "common/launch.h"

namespace gpuprims {

// How the plan deals rows; small enough for a kernel's arguments.
struct Dealing {
  int64_t units;
  int64_t first_tile;
  int warp_units;
  int chunk_runs;  // a block's warps' runs, one each; or, shared among them, those of a chunk
  bool share;
  int tile_lanes;
  int log_ways;  // groups that walk a long row together
  int long_degree;
  bool long_rows;  // there may be some
};

// The rows of a warp's run that it walks with all its lanes: from deal.long_degree edges on, and
// the chunks of hubs that start within the run. Little is kept while a chunk is walked: registers
// hold rows of x.
template <class Group>
__device__ __forceinline__ void walk_long_rows(Group& group, const Dealing& deal,
                                               int64_t first_unit, int64_t row0, int64_t row1) {
  const AggregateArgs& a = group.a;
  const auto offset = [&](int64_t row) { return load_int(a.csr.indptr, a.csr.wide_offsets, row); };
  // The row before the run may be a hub that reaches into it.
#pragma unroll 1
  for (int64_t base = row0 - 1; base < row1; base += 32) {
    unsigned left;
    {
      const int64_t mine = base + threadIdx.x % 32;
      const bool inside = mine >= 0 && mine < row1;
      const int64_t degree = inside ? offset(mine + 1) - offset(mine) : 0;
      left = __ballot_sync(~0u, degree >= (mine < row0 ? kHubDegree : deal.long_degree));
    }
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      const int64_t row = base + __ffs(static_cast<int>(left)) - 1;
      int number = 0, past = 1;  // chunks; a row below kHubDegree is one
      if (offset(row + 1) - offset(row) >= kHubDegree) {
        const int64_t ahead = first_unit * kUnit - offset(row) - kRowCost * row;  // of the row
        if (row < row0) number = static_cast<int>(ceil_div(ahead, kChunk));
        const int64_t end = ceil_div(ahead + deal.warp_units * kUnit, kChunk);
        const int64_t chunks = (offset(row + 1) - offset(row)) / kChunk;
        past = static_cast<int>(end < chunks ? end : chunks);
      }
      // With one way a chunk is a group's, and the groups take turns. With more the others repeat.
      const int step = deal.log_ways > 0 ? 1 : group.lanes.groups;
      if (deal.log_ways == 0) number += group.lanes.group;
#pragma unroll 1
      for (; number < past; number += step) {
        const int64_t start = offset(row) + number * kChunk, rest = offset(row + 1) - start;
        group.reduce_chunk(start, static_cast<int>(rest < kHubDegree ? rest : kChunk),
                           deal.log_ways);
        if (deal.log_ways > 0 && group.lanes.group != 0) continue;
        const int64_t begin = offset(row), degree = offset(row + 1) - begin;
        if (degree >= kHubDegree)
          group.store_partial((begin + number * kChunk) / kChunk);
        else
          group.store_row(row, begin, degree);
      }
      __syncwarp();
    }
  }
}

// The run of a warp that starts at a unit.
template <class Group>
__device__ __forceinline__ void walk_run(const AggregateArgs& a, const Dealing& deal,
                                         int64_t first) {
  Group group(a, deal.first_tile + blockIdx.y, deal.tile_lanes);
  const int groups = group.lanes.groups, mine = group.lanes.group;
  const int64_t last = first + deal.warp_units < deal.units ? first + deal.warp_units : deal.units;
  const auto start = [&](int64_t unit) {
    return __ldg(reinterpret_cast<const long long*>(group.a.starts) + (unit < last ? unit : last));
  };
  if (deal.long_rows) walk_long_rows(group, deal, first, start(first), start(last));
  const int64_t row0 = start(first + deal.warp_units * mine / groups);
  const int64_t row1 = start(first + deal.warp_units * (mine + 1) / groups);
  if (row0 >= row1) return;
  if constexpr (!Group::kWeighted)
    VectorStream<Group>(group, row0, row1, deal.long_degree).walk(deal.long_degree);
  else
    RowStream<Group>(group, row0, row1, deal.long_degree).walk();
}

template <class T, int kVec, Mode kMode, class Index, Shape kShape>
__global__ void __launch_bounds__((RowGroup<T, kVec, kMode, Index, kShape>::kThreads))
    aggregate_rows(const __grid_constant__ AggregateArgs a, const Dealing deal) {
  using Group = RowGroup<T, kVec, kMode, Index, kShape>;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  Group group(a, deal.first_tile + blockIdx.y, deal.tile_lanes);
  const int groups = group.lanes.groups, mine = group.lanes.group;
  if (a.flag && *a.flag) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * (blockDim.x / 32) * groups;
    for (int64_t row = warp * groups + mine; row < a.csr.rows; row += step) group.fill_row(row);
    return;
  }
  // The block's warps take turns at the runs of its chunks. Which one walks a run changes no bit.
  __shared__ int turns;
  if (deal.share) {
    if (threadIdx.x == 0) turns = static_cast<int>(blockDim.x / 32);
    __syncthreads();
  }
#pragma unroll 1
  for (int turn = static_cast<int>(threadIdx.x / 32);;) {
    const int64_t chunk = blockIdx.x + static_cast<int64_t>(turn / deal.chunk_runs) * gridDim.x;
    const int64_t run = chunk * deal.chunk_runs + turn % deal.chunk_runs;
    if (run * deal.warp_units >= deal.units) return;  // as will be all later ones
    walk_run<Group>(a, deal, run * deal.warp_units);
    if (!deal.share) return;
    __syncwarp();
    if (threadIdx.x % 32 == 0) turn = atomicAdd(&turns, 1);
    turn = __shfl_sync(~0u, turn, 0);
  }
}

// Small graphs: a group a row, and whole warps for the long ones among them. No list of runs is
// looked at, and the code is short: that of a launch's first instructions comes from L2.
template <class T, int kVec, Mode kMode, class Index>
__global__ void __launch_bounds__(32 * kRowWarps, 4)
    aggregate_small(const __grid_constant__ AggregateArgs a, const Dealing deal) {
  RowGroup<T, kVec, kMode, Index, Shape::small> group(a, deal.first_tile + blockIdx.y,
                                                      deal.tile_lanes);
  const auto offset = [&](int64_t row) { return load_int(a.csr.indptr, a.csr.wide_offsets, row); };
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  const int64_t row = warp * group.lanes.groups + group.lanes.group;
  const bool inside = row < a.csr.rows;
  if (a.flag && *a.flag) {
    if (inside) group.fill_row(row);
    return;
  }
  const int64_t begin = inside ? offset(row) : 0;
  const int degree = inside ? static_cast<int>(offset(row + 1) - begin) : 0;
  const bool is_long = degree >= deal.long_degree;
  unsigned left = __ballot_sync(~0u, is_long && threadIdx.x % group.lanes.count == 0);
  if (inside && !is_long) {
    group.reset();
    if (degree > 0) group.reduce_chunk(begin, degree, 0);
    group.store_row(row, begin, degree);
  }
  __syncwarp();
#pragma unroll 1
  for (; left != 0; left &= left - 1) {
    const int lane = __ffs(static_cast<int>(left)) - 1;
    const int64_t from = __shfl_sync(~0u, begin, lane);
    const int edges = __shfl_sync(~0u, degree, lane);
    group.reduce_chunk(from, edges, deal.log_ways);
    if (group.lanes.group == 0)
      group.store_row(warp * group.lanes.groups + lane / group.lanes.count, from, edges);
  }
}

inline Dealing dealing_of(const AggregatePlan& plan, int64_t first_tile) {
  return {plan.units,
          first_tile,
          static_cast<int>(plan.warp_units),
          plan.chunk_runs ? plan.chunk_runs : plan.warps,
          plan.chunk_runs > 0,
          plan.tile_lanes,
          plan.log_ways,
          static_cast<int>(plan.long_degree),
          plan.long_rows};
}

template <class T, int kVec, Mode kMode, class Index, Shape kShape = Shape::usual>
cudaError_t launch_rows(const AggregatePlan& plan, const AggregateArgs& args, cudaStream_t stream) {
  for (int64_t tile = 0; tile < plan.tiles; tile += kMostGridY) {
    const auto tiles = static_cast<unsigned>(std::min(plan.tiles - tile, kMostGridY));
    const auto kernel = [] {
      if constexpr (kShape == Shape::small)
        return aggregate_small<T, kVec, kMode, Index>;
      else
        return aggregate_rows<T, kVec, kMode, Index, kShape>;
    }();
    const auto code = launch(kernel,
                             {dim3(static_cast<unsigned>(plan.blocks), tiles),
                              dim3(static_cast<unsigned>(32 * plan.warps))},
                             stream, args, dealing_of(plan, plan.first_tile + tile));
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

template <class T, Mode kMode>
cudaError_t launch_dtype(const AggregatePlan& plan, const AggregateArgs& args,
                         cudaStream_t stream) {
  if constexpr (sizeof(T) < 8) {  // float64 is not worth a second kernel
    constexpr int kFull = kLaneBytes / sizeof(T);
    if constexpr (kMode == Mode::sum && sizeof(T) == 4)
      if (takes_vectors(plan.load_bytes, args) && plan.small)
        return launch_rows<T, kFull, kMode, int32_t, Shape::small>(plan, args, stream);
    if constexpr (kMode == Mode::sum && sizeof(T) == 4)
      if (takes_vectors(plan.load_bytes, args) && plan.deep)
        return launch_rows<T, kFull, kMode, int32_t, Shape::deep>(plan, args, stream);
    if constexpr (kMode == Mode::extreme_grad)
      if (takes_vectors(plan.load_bytes, args) && plan.bits)
        return launch_rows<T, kFull, kMode, int32_t, Shape::bits>(plan, args, stream);
    if (takes_vectors(plan.load_bytes, args))
      return launch_rows<T, kFull, kMode, int32_t>(plan, args, stream);
  }
  if constexpr (RowGroup<T, 1, kMode, int64_t>::kPlain || kMode == Mode::extreme) {
    return cudaErrorInvalidValue;
  } else {
    if constexpr (kMode == Mode::weighted_sum && sizeof(T) == 2)  // extremes make do without
      if (plan.load_bytes == 4 && !args.csr.wide_indices)
        return launch_rows<T, 2, kMode, int32_t>(plan, args, stream);
    return launch_rows<T, 1, kMode, int64_t>(plan, args, stream);
  }
}

// Rows, then the chunks of hubs.
template <Mode kMode>
cudaError_t launch_mode(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                        cudaStream_t stream) {
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const auto code = launch_dtype<T, kMode>(plan, args, stream);
    if (code != cudaSuccess || !plan.hubs) return code;
    return launch_combine(dtype, plan, args, stream);
  };
  switch (dtype) {
    case Dtype::f32:
      return run(float{});
    case Dtype::f64:
      return run(double{});
    case Dtype::f16:
      return run(__half{});
    case Dtype::bf16:
      return run(__nv_bfloat16{});
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace gpuprims
