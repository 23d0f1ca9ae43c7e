// Sums and means without weights of features below 16 bytes, where a row of x is few elements:
// lanes lie over edges, and a column is a pass of its own. A warp gathers the edges of its short
// rows into shared memory, side by side and coalesced; then each lane adds a row's, in order. The
// tree of a sum is row_warp.cuh's: a group is a lane.
#include "aggregate/rows.cuh"

namespace gpuprims {
namespace {

// What walk_long_rows asks of a group.
struct NarrowGroup {
  const AggregateArgs& a;
  const Dtype dtype;
  const int64_t column;
  struct {
    int groups, group;
  } lanes;
  float value = 0;

  __device__ NarrowGroup(const AggregateArgs& args, Dtype type, int64_t at)
      : a(args), dtype(type), column(at), lanes{32, static_cast<int>(threadIdx.x % 32)} {}

  // Elements of the rows that `source` names. One branch on the dtype, not one an element.
  template <int kCount>
  __device__ __forceinline__ void gather(float (&to)[kCount], const int (&source)[kCount]) const {
    const auto each = [&](auto load) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        const bool good = static_cast<uint64_t>(static_cast<unsigned>(source[u])) <
                          static_cast<uint64_t>(a.csr.columns);
        to[u] = good ? load(static_cast<int64_t>(source[u]) * a.x_stride + column)
                     : __int_as_float(0x7fffffff);
      }
    };
    if (dtype == Dtype::f32)
      each([&](int64_t at) { return __ldg(static_cast<const float*>(a.x) + at); });
    else if (dtype == Dtype::f16)
      each([&](int64_t at) { return widen(__ldg(static_cast<const __half*>(a.x) + at)); });
    else
      each([&](int64_t at) { return widen(__ldg(static_cast<const __nv_bfloat16*>(a.x) + at)); });
  }

  __device__ __forceinline__ void reduce_chunk(int64_t begin, int length, int) {
    constexpr int kFlight = 8;
    const int* const indices = static_cast<const int*>(a.csr.indices) + begin;
    value = 0;
#pragma unroll 1
    for (int from = lanes.group; from < length; from += 32 * kFlight) {
      int source[kFlight];
      float loaded[kFlight];
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        source[u] = from + 32 * u < length ? __ldg(indices + from + 32 * u) : 0;
      gather(loaded, source);
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        if (from + 32 * u < length) value += loaded[u];
    }
    for (int distance = 1; distance < 32; distance *= 2)
      value += __shfl_xor_sync(~0u, value, distance);
  }

  __device__ __forceinline__ void store_row(int64_t row, int64_t, int64_t degree) const {
    if (a.csr.order) row = __ldg(reinterpret_cast<const long long*>(a.csr.order) + row);
    if (static_cast<uint64_t>(row) >= static_cast<uint64_t>(a.csr.rows)) return;
    const bool mean = a.reduce == Reduce::mean && degree > 0;
    store_as(dtype, a.out, row * a.features + column,
             mean ? quotient(value, static_cast<float>(degree)) : value);
  }

  __device__ void store_partial(int64_t slot) const {
    static_cast<float*>(a.partial)[slot * a.features + column] = value;
  }
};

// Rows of less than long_degree edges, a lane each.
__device__ __forceinline__ void walk_short_rows(NarrowGroup& group, int64_t row0, int64_t row1,
                                                int long_degree, float* gathered) {
  constexpr int kFlight = 8;
  const AggregateArgs& a = group.a;
  const int lane = group.lanes.group;
  const auto offset = [&](int64_t row) { return load_int(a.csr.indptr, a.csr.wide_offsets, row); };
#pragma unroll 1
  for (int64_t base = row0; base < row1; base += 32) {
    const int64_t row = base + lane;
    // Counted from the first row's edges; what is long, and all behind it, may be far away.
    const int64_t origin = offset(base);
    const int64_t begin = row < row1 ? offset(row) - origin : 0;
    const int64_t degree = row < row1 ? offset(row + 1) - origin - begin : 0;
    const bool mine = row < row1 && degree < long_degree;
    int64_t next = mine && degree > 0 ? begin : INT64_MAX;
    const int64_t end = begin + degree;
    group.value = 0;
#pragma unroll 1
    while (true) {
      // The first edge that is still to be added, of any lane; rows lie in the order of lanes.
      const unsigned left = __ballot_sync(~0u, next != INT64_MAX);
      if (left == 0) break;
      const int64_t from = __shfl_sync(~0u, next, __ffs(static_cast<int>(left)) - 1);
      const int64_t past = __shfl_sync(~0u, end, 31 - __clz(static_cast<int>(left)));
      const int* const indices = static_cast<const int*>(a.csr.indices) + origin + from;
      int source[kNarrowTile / 32];
      float loaded[kNarrowTile / 32];
      const int count = past - from < kNarrowTile ? static_cast<int>(past - from) : kNarrowTile;
#pragma unroll
      for (int u = 0; u < kNarrowTile / 32; ++u)
        source[u] = lane + 32 * u < count ? __ldg(indices + lane + 32 * u) : 0;
      group.gather(loaded, source);
#pragma unroll
      for (int u = 0; u < kNarrowTile / 32; ++u) gathered[lane + 32 * u] = loaded[u];
      __syncwarp();
      if (next != INT64_MAX && next < from + count) {
        const int stop = static_cast<int>(end - from < count ? end - from : count);
        int at = static_cast<int>(next - from);
#pragma unroll 1
        for (; at + kFlight <= stop; at += kFlight) {
#pragma unroll
          for (int u = 0; u < kFlight; ++u) group.value += gathered[at + u];
        }
#pragma unroll 1
        for (; at < stop; ++at) group.value += gathered[at];
        next = from + at < end ? from + at : INT64_MAX;
      }
      __syncwarp();
    }
    if (mine) group.store_row(row, 0, degree);
  }
}

__global__ void __launch_bounds__(32 * kWarps)
    aggregate_narrow(const __grid_constant__ AggregateArgs a, const Dealing deal,
                     const Dtype dtype) {
  __shared__ float gathered[kWarps][kNarrowTile];
  NarrowGroup group(a, dtype, deal.first_tile + blockIdx.y);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (a.flag && *a.flag) {
    for (int64_t row = warp * 32 + threadIdx.x % 32; row < a.csr.rows;
         row += static_cast<int64_t>(gridDim.x) * kWarps * 32)
      store_as(dtype, a.out, row * a.features + group.column, not_a_number<float>());
    return;
  }
  const int64_t first = warp * deal.warp_units;
  if (first >= deal.units) return;
  const int64_t last = std::min(first + deal.warp_units, deal.units);
  const int64_t row0 = a.starts[first], row1 = a.starts[last];
  if (deal.long_rows) walk_long_rows(group, deal, first, row0, row1);
  walk_short_rows(group, row0, row1, deal.long_degree, gathered[threadIdx.x / 32]);
}

}  // namespace

cudaError_t launch_narrow(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                          cudaStream_t stream) {
  for (int64_t tile = 0; tile < plan.tiles; tile += kMostGridY) {
    const auto tiles = static_cast<unsigned>(std::min(plan.tiles - tile, kMostGridY));
    const auto code = launch(aggregate_narrow,
                             {dim3(static_cast<unsigned>(plan.blocks), tiles), dim3(32 * kWarps)},
                             stream, args, dealing_of(plan, tile), dtype);
    if (code != cudaSuccess) return code;
  }
  return plan.hubs ? launch_combine(dtype, plan, args, stream) : cudaSuccess;
}

}  // namespace gpuprims
