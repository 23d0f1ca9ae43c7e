// Sums and means of small float32 graphs, whose time is that of the longest chain of loads. A block
// takes a run of units, and the rows of x of all its edges go through shared memory, in stages of
// which kStages - 1 are under way: no row waits for loads of its own, however long it is. The
// block's rows go round its warps, which add what has arrived: in order over 32 lanes, or as the
// groups of row_warp.cuh where a row is long; the bits are those of any other graph. Chunks of hubs
// belong to the run in which they start, as in rows.cuh.
#include "aggregate/lanes.cuh"
#include "common/launch.h"

namespace gpuprims {
namespace {

#ifdef __CUDACC__
extern __shared__ __align__(16) unsigned char dynamic_memory[];
#endif

constexpr int kStageBytes = 64 << 10, kStages = 3;

__device__ __forceinline__ void copy_row_part(float* to, const float* from) {
#ifdef __CUDA_ARCH__
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#else
  memcpy(to, from, 16);
#endif
}
__device__ __forceinline__ void end_stage() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until the oldest stage under way has arrived.
__device__ __forceinline__ void wait_for_stage() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
#endif
}

// What a block takes: rows from `row` on, and their edges from `from` on; the first row may be the
// rest of a hub, the last one a part.
struct Run {
  int64_t row, from;
  int rows, edges;
};

__device__ __forceinline__ int64_t row_begin(const Csr& csr, int64_t row) {
  return load_int(csr.indptr, csr.wide_offsets, row);
}

__device__ Run run_of_block(const AggregateArgs& a, int64_t units, int block_units) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * block_units;
  const int64_t last = std::min(first + block_units, units);
  int64_t row0 = a.starts[first];
  const int64_t row1 = a.starts[last];
  // The first chunk of a row that starts at or after a unit.
  const auto chunk_at = [&](int64_t unit, int64_t row, int64_t begin) {
    return ceil_div(unit * kUnit - begin - kRowCost * row, kChunk);
  };
  int64_t from = row_begin(a.csr, row0), past = row_begin(a.csr, row1);
  if (row0 > 0) {
    const int64_t begin = row_begin(a.csr, row0 - 1), degree = from - begin;
    const int64_t chunk = chunk_at(first, row0 - 1, begin);
    if (degree >= kHubDegree && chunk < degree / kChunk) --row0, from = begin + chunk * kChunk;
  }
  if (row1 > row0) {
    const int64_t begin = row_begin(a.csr, row1 - 1), degree = past - begin;
    const int64_t chunk = chunk_at(last, row1 - 1, begin);
    if (degree >= kHubDegree && chunk < degree / kChunk) past = begin + chunk * kChunk;
  }
  return {row0, from, static_cast<int>(row1 - row0), static_cast<int>(past - from)};
}

// A warp's place among the rows of its block: a row, or a chunk of one.
template <int kLog>  // of the partial sums of a long row
struct Adder {
  static constexpr int kLanes = 32 >> kLog;   // of a row, 4 columns each
  static constexpr int kColumns = 4 >> kLog;  // of a lane, where the warp adds edge by edge
  static constexpr int kFloats = 4 * kLanes;  // of a row in a stage
  static constexpr int kEdges = kStageBytes / 4 / kFloats;  // of a stage

  const AggregateArgs& a;
  const Run& run;
  const int* const offset;  // of the run's rows, from its first edge on
  const int64_t tile_at;
  const int width;  // of the tile
  int row = static_cast<int>(threadIdx.x / 32);
  int begin = 0, end = 0, degree = 0;
  float sum[4] = {};

  __device__ bool is_long() const { return degree >= (kLog > 0 ? kLongDegree : kHubDegree); }
  __device__ int lane() const { return threadIdx.x % 32; }

  __device__ void start_row() {
    if (row >= run.rows) return;
    begin = offset[row];
    degree = offset[row + 1] - begin;
    if (degree >= kHubDegree && begin < 0) begin = 0;  // the chunks before are another block's
    end_chunk();
  }
  __device__ void end_chunk() {
    const int past = offset[row + 1];
    end = degree >= kHubDegree && past - begin >= 2 * kChunk ? begin + kChunk : past;
  }

  // Adds what a stage that begins at edge `at` holds, and writes rows that end there.
  __device__ void walk(const float* stage, int at) {
    const int stop = at + kEdges < run.edges ? at + kEdges : run.edges;
    while (row < run.rows && (begin < stop || begin == end)) {
      const int from = begin > at ? begin : at, to = end < stop ? end : stop;
      if (is_long())
        add_long(stage, at, from, to);
      else
        add(stage, at, from, to);
      if (end > stop) return;
      finish();
    }
  }

  __device__ void add(const float* stage, int at, int from, int to) {
    const float* const mine = stage + lane() * kColumns;
#pragma unroll 8
    for (int edge = from; edge < to; ++edge) {
#pragma unroll
      for (int k = 0; k < kColumns; ++k) sum[k] += mine[(edge - at) * kFloats + k];
    }
  }

  __device__ void add_long(const float* stage, int at, int from, int to) {
    const int way = lane() / kLanes;
    const float* const mine = stage + lane() % kLanes * 4;
#pragma unroll 4
    for (int edge = from + ((way - (from - begin)) & ((1 << kLog) - 1)); edge < to;
         edge += 1 << kLog) {
      const float4 part = *reinterpret_cast<const float4*>(mine + (edge - at) * kFloats);
      sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
    }
  }

  // Goes on to the next chunk or row.
  __device__ void finish() {
    if (is_long()) {
      for (int distance = kLanes; distance < 32; distance *= 2)
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[k] += __shfl_xor_sync(~0u, sum[k], distance);
      if (lane() < kLanes) store<4>(lane() * 4);
    } else {
      store<kColumns>(lane() * kColumns);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) sum[k] = 0;
    if (degree >= kHubDegree && end < offset[row + 1] && end < run.edges) {
      begin = end;
      end_chunk();
    } else {
      row += kStagedWarps;
      start_row();
    }
  }

  template <int kCount>
  __device__ void store(int column) const {
    if (column >= width) return;
    Pack<float, kCount> pack;
#pragma unroll
    for (int k = 0; k < kCount; ++k) pack.v[k] = sum[k];
    if (degree >= kHubDegree) {
      const int64_t slot = (run.from + begin) / kChunk;
      float* const to = static_cast<float*>(a.partial) + slot * a.features + tile_at + column;
      *reinterpret_cast<Pack<float, kCount>*>(to) = pack;
      return;
    }
    int64_t to = run.row + row;
    if (a.csr.order) to = a.csr.order[to];
    if (static_cast<uint64_t>(to) >= static_cast<uint64_t>(a.csr.rows)) return;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (a.reduce == Reduce::mean && degree > 0)
        pack.v[k] = quotient(pack.v[k], static_cast<float>(degree));
      if (a.scale) pack.v[k] = affine<float>(a, to, tile_at + column + k, pack.v[k]);
    }
    gpuprims::store<float, kCount>(static_cast<float*>(a.out) + to * a.features + tile_at + column,
                                   pack);
  }
};

template <int kLog>
__global__ void __launch_bounds__(32 * kStagedWarps, 1)
    aggregate_staged(const __grid_constant__ AggregateArgs a, const int64_t units,
                     const int block_units, const int64_t first_tile) {
  using Adder = Adder<kLog>;
  float* const stages = reinterpret_cast<float*>(dynamic_memory);
  int* const source = reinterpret_cast<int*>(dynamic_memory + kStages * kStageBytes);
  int* const offset = source + block_units * kUnit + kHubDegree;
  const int64_t tile_at = (first_tile + blockIdx.y) * Adder::kFloats;
  const int width = static_cast<int>(std::min<int64_t>(a.features - tile_at, Adder::kFloats));
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kThreads = 32 * kStagedWarps;
  if (a.flag && *a.flag) {  // bad offsets
    const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + thread; row < a.csr.rows;
         row += threads)
      for (int k = 0; k < width; ++k)
        static_cast<float*>(a.out)[row * a.features + tile_at + k] = not_a_number<float>();
    return;
  }
  const Run run = run_of_block(a, units, block_units);
  for (int i = thread; i < run.edges; i += kThreads)
    source[i] = __ldg(static_cast<const int*>(a.csr.indices) + run.from + i);
  for (int i = thread; i <= run.rows; i += kThreads)
    offset[i] = static_cast<int>(row_begin(a.csr, run.row + i) - run.from);
  __syncthreads();
  const auto load_stage = [&](int number) {
    float* const stage = stages + number % kStages * (kStageBytes / 4);
#pragma unroll
    for (int i = 0; i < kStageBytes / 16; i += kThreads) {
      const int edge = number * Adder::kEdges + (i + thread) / Adder::kLanes;
      const int column = (i + thread) % Adder::kLanes * 4;
      if (edge >= run.edges || column >= width) continue;
      float* const to = stage + (i + thread) * 4;
      const auto node = static_cast<unsigned>(source[edge]);
      if (node < static_cast<uint64_t>(a.csr.columns)) {
        copy_row_part(to, static_cast<const float*>(a.x) + node * a.x_stride + tile_at + column);
      } else {
        for (int k = 0; k < 4; ++k) to[k] = not_a_number<float>();
      }
    }
    end_stage();
  };
  for (int number = 0; number < kStages - 1; ++number) load_stage(number);
  Adder adder{a, run, offset, tile_at, width};
  adder.start_row();
  for (int number = 0; number * Adder::kEdges <= run.edges; ++number) {
    wait_for_stage();
    __syncthreads();  // so has everyone's part of it, and the stage before is free
    load_stage(number + kStages - 1);
    adder.walk(stages + number % kStages * (kStageBytes / 4), number * Adder::kEdges);
  }
}

}  // namespace

cudaError_t launch_staged(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                          cudaStream_t stream) {
  const auto kernel = plan.log_ways == 0   ? aggregate_staged<0>
                      : plan.log_ways == 1 ? aggregate_staged<1>
                                           : aggregate_staged<2>;
  const size_t smem = kStages * kStageBytes + (plan.warp_units * kUnit + kHubDegree) * sizeof(int) +
                      (plan.warp_units * kUnit / kRowCost + 4) * sizeof(int);
  for (int64_t tile = 0; tile < plan.tiles; tile += kMostGridY) {
    const dim3 grid(static_cast<unsigned>(plan.blocks),
                    static_cast<unsigned>(std::min(plan.tiles - tile, kMostGridY)));
    const auto code = launch(kernel, {grid, dim3(32 * kStagedWarps), smem}, stream, args,
                             plan.units, static_cast<int>(plan.warp_units), tile);
    if (code != cudaSuccess) return code;
  }
  return plan.hubs ? launch_combine(dtype, plan, args, stream) : cudaSuccess;
}

}  // namespace gpuprims
