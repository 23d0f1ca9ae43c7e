// Small graphs, hubs among them: a warp a row and 32 columns, a lane 4 bytes, so that 32 edges are
// in flight in 32 registers. What takes longest is shared: a block's warps take a partial sum each
// of its long rows, and of the chunks of a hub, which some blocks walk first of all; so there is no
// second pass. The tree of a sum is row_warp.cuh's. The code is short, as that of a launch's first
// instructions comes from L2.
#include "aggregate/rows.cuh"

namespace gpuprims {
namespace {

constexpr int kFlight = 32;

// Sum of edges first, first + step, .. below `length` of those that start at `begin`, in order.
__device__ __forceinline__ float add_edges(const AggregateArgs& a, const float* x, int64_t begin,
                                           int first, int step, int length) {
  const int lane = threadIdx.x % 32;
  const int count = (length - first + step - 1) / step;
  const int* const indices = static_cast<const int*>(a.csr.indices) + begin + first;
  const auto stride = static_cast<uint32_t>(a.x_stride) * static_cast<uint32_t>(sizeof(float));
  float sum = 0;
  int ahead = lane < count ? __ldg(indices + lane * step) : 0;
#pragma unroll 1
  for (int from = 0; from < count; from += kFlight) {
    const int left = count - from;
    const bool good =
        static_cast<uint64_t>(static_cast<unsigned>(ahead)) < static_cast<uint64_t>(a.csr.columns);
    const unsigned bad = __ballot_sync(~0u, !good && lane < left);
    const int source = good ? ahead : 0;
    float loaded[kFlight];
#pragma unroll
    for (int part = 0; part < kFlight; part += 8) {
      if (part >= left) continue;
#pragma unroll
      for (int u = part; u < part + 8; ++u) {
        const int of = __shfl_sync(~0u, source, u);
        loaded[u] = u < left ? __ldg(at_offset(x, of, stride)) : 0.0f;
      }
    }
    if (left > kFlight)
      ahead = lane < left - kFlight ? __ldg(indices + (from + kFlight + lane) * step) : 0;
    if (bad != 0) [[unlikely]] {
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        if (bad >> u & 1) loaded[u] = __int_as_float(0x7fffffff);
    }
    // What is not there adds +0, which changes no sum that began at +0.
#pragma unroll
    for (int part = 0; part < kFlight; part += 8) {
      if (part >= left) continue;
#pragma unroll
      for (int u = part; u < part + 8; ++u) sum += loaded[u];
    }
  }
  return sum;
}

__device__ __forceinline__ void store_sum(const AggregateArgs& a, int64_t row, int64_t column,
                                          int64_t degree, float sum) {
  if (column >= a.features) return;
  if (a.reduce == Reduce::mean && degree > 0) sum = quotient(sum, static_cast<float>(degree));
  if (a.scale) sum = affine<float>(a, row, column, sum);
  __stcs(static_cast<float*>(a.out) + row * a.features + column, sum);
}

// The butterfly's order: neighbours first.
__device__ __forceinline__ float add_ways(const float (*part)[32], int ways) {
  float sum[kWarps];
#pragma unroll
  for (int way = 0; way < kWarps; ++way) sum[way] = way < ways ? part[way][threadIdx.x % 32] : 0.0f;
#pragma unroll
  for (int distance = 1; distance < kWarps; distance *= 2) {
#pragma unroll
    for (int way = 0; way + distance < kWarps; way += 2 * distance) sum[way] += sum[way + distance];
  }
  return sum[0];
}

__global__ void __launch_bounds__(32 * kWarps, 4)
    aggregate_words(const __grid_constant__ AggregateArgs a, const Dealing deal, const int tiles,
                    const int hub_blocks) {
  __shared__ float part[kWarps][kWarps][32];
  __shared__ int64_t begins[kWarps];
  __shared__ int degrees[kWarps];
  const int warp = threadIdx.x / 32, ways = 1 << deal.log_ways;
  const int64_t block = blockIdx.x / tiles;
  const int64_t column = blockIdx.x % tiles * 32 + threadIdx.x % 32;
  // Lanes beyond the last column read the first one.
  const float* const x = static_cast<const float*>(a.x) + (column < a.features ? column : 0);
  const auto offset = [&](int64_t row) { return load_int(a.csr.indptr, a.csr.wide_offsets, row); };
  if (block < hub_blocks) {
#pragma unroll 1
    for (int64_t hub = block; hub < *a.hub_count; hub += hub_blocks) {
      const int64_t row = a.hubs[hub], begin = offset(row), degree = offset(row + 1) - begin;
      const int64_t chunks = degree / kChunk;
      float sum = 0;
      // As many chunks at a time as the block has warps for.
#pragma unroll 1
      for (int64_t base = 0; base < chunks; base += kWarps >> deal.log_ways) {
        const int64_t chunk = base + (warp >> deal.log_ways);
        if (chunk < chunks) {
          const int64_t start = begin + chunk * kChunk, rest = begin + degree - start;
          part[0][warp][threadIdx.x % 32] =
              add_edges(a, x, start, warp & (ways - 1), ways,
                        static_cast<int>(rest < kHubDegree ? rest : kChunk));
        }
        __syncthreads();
        for (int64_t next = base; next < chunks && next < base + (kWarps >> deal.log_ways);
             ++next) {
          const float one = add_ways(part[0] + (next - base) * ways, ways);
          sum = next == 0 ? one : sum + one;
        }
        __syncthreads();
      }
      if (warp == 0) store_sum(a, row, column, degree, sum);
    }
    return;
  }
  const int64_t row0 = (block - hub_blocks) * kWarps, row = row0 + warp;
  const bool inside = row < a.csr.rows;
  const int64_t begin = inside ? offset(row) : 0;
  const int64_t degree = inside ? offset(row + 1) - begin : 0;
  const bool is_long = degree >= deal.long_degree && degree < kHubDegree;
  if (inside && degree < deal.long_degree)
    store_sum(a, row, column, degree, add_edges(a, x, begin, 0, 1, static_cast<int>(degree)));
  if (threadIdx.x % 32 == 0) {
    begins[warp] = begin;
    degrees[warp] = is_long ? static_cast<int>(degree) : 0;
  }
  if (!__syncthreads_or(is_long)) return;
#pragma unroll 1
  for (int item = warp; item < kWarps * ways; item += kWarps) {
    const int which = item >> deal.log_ways, way = item & (ways - 1);
    if (degrees[which] > 0)
      part[which][way][threadIdx.x % 32] =
          add_edges(a, x, begins[which], way, ways, degrees[which]);
  }
  __syncthreads();
  if (is_long) store_sum(a, row, column, degree, add_ways(part[warp], ways));
}

}  // namespace

cudaError_t launch_words(const AggregatePlan& plan, const AggregateArgs& args,
                         cudaStream_t stream) {
  return launch(aggregate_words,
                {dim3(static_cast<unsigned>(plan.blocks * plan.tiles)), dim3(32 * kWarps)}, stream,
                args, dealing_of(plan, 0), static_cast<int>(plan.tiles), plan.hub_blocks);
}

}  // namespace gpuprims
