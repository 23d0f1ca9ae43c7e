// The gradient of max and min: a sum over the transpose of the columns that an edge gave. A walk
// over it meets each edge once, and of its columns an edge gave few: so the stored edges are first
// turned around, into a bit for each edge and column of a tile, and those are put in the order of
// the walk. Then an edge costs 4 bytes for 32 columns, read in turn, where the stored edges of its
// row would be 128 from anywhere, and the sectors of the gradient in which it has a bit.
#include "aggregate/rows.cuh"

namespace gpuprims {
namespace {

constexpr int kMarkedAtOnce = 4;  // words of 32 columns that a warp has in flight

// A warp takes 32 columns of a row. Those that took the same edge are one word, which the first of
// them writes. Where ids may repeat two rows may write the same word.
template <class Id>
__device__ __forceinline__ void mark_all(const AggregateArgs& a, int64_t first_column, int columns,
                                         bool unique) {
  const int64_t items = a.csr.columns * a.taken_words;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarps;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  for (int64_t from = warp * kMarkedAtOnce; from < items; from += warps * kMarkedAtOnce) {
    Id id[kMarkedAtOnce];
#pragma unroll
    for (int u = 0; u < kMarkedAtOnce; ++u) {
      const int64_t row = (from + u) / a.taken_words;
      const int column = static_cast<int>((from + u) % a.taken_words) * 32 + lane;
      id[u] = -1;
      if (from + u < items && column < columns)
        id[u] = __ldcs(static_cast<const Id*>(a.arg) + row * a.features + first_column + column);
    }
#pragma unroll
    for (int u = 0; u < kMarkedAtOnce; ++u) {
      if (!__any_sync(~0u, id[u] >= 0)) continue;  // a row without edges
      const unsigned same = __match_any_sync(~0u, id[u]);
      if (static_cast<uint64_t>(id[u]) >= static_cast<uint64_t>(a.csr.edges)) continue;
      if (lane != __ffs(static_cast<int>(same)) - 1) continue;
      unsigned* const to =
          a.marked + static_cast<int64_t>(id[u]) * a.taken_words + (from + u) % a.taken_words;
      if (unique)
        *to = same;
      else
        atomicOr(to, same);
    }
  }
}

__global__ void __launch_bounds__(32 * kWarps)
    mark_taken(const __grid_constant__ AggregateArgs a, const int64_t first_column,
               const int columns, const bool unique) {
  if (a.csr.wide_offsets)
    mark_all<long long>(a, first_column, columns, unique);
  else
    mark_all<int>(a, first_column, columns, unique);
}

// From the order of ids to that of the walk: random reads, with nothing else to wait for.
__global__ void __launch_bounds__(256) order_taken(const __grid_constant__ AggregateArgs a) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t edge = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; edge < a.csr.edges; edge += threads) {
    const int64_t id = edge_id(a.csr, edge);
    const bool good = static_cast<uint64_t>(id) < static_cast<uint64_t>(a.csr.edges);
    // Written past L2, which holds some of the marks.
    for (int word = 0; word < a.taken_words; ++word)
      __stcs(a.taken + edge * a.taken_words + word,
             good ? __ldg(a.marked + id * a.taken_words + word) : 0);
  }
}

cudaError_t launch_mark(const AggregateArgs& args, int64_t tile, int tile_columns,
                        cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(args.csr.edges) * args.taken_words * sizeof(unsigned);
  auto code = cudaMemsetAsync(args.marked, 0, bytes, stream);
  const int64_t items = ceil_div(args.csr.columns * args.taken_words, kMarkedAtOnce);
  if (code != cudaSuccess || items == 0) return code;
  const int64_t first = tile * tile_columns;
  const auto columns = static_cast<int>(std::min<int64_t>(args.features - first, tile_columns));
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(items, kWarps), 4096));
  code = launch(mark_taken, {dim3(blocks), dim3(32 * kWarps)}, stream, args, first, columns,
                !args.flag);
  if (code != cudaSuccess || !args.csr.edge_ids) return code;
  const auto order_blocks = std::min<int64_t>(ceil_div(args.csr.edges, 256), 1 << 20);
  return launch(order_taken, {dim3(static_cast<unsigned>(order_blocks)), dim3(256)}, stream, args);
}

}  // namespace

// A tile after the other, in the same words.
cudaError_t launch_extreme_grad(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                                cudaStream_t stream) {
  AggregatePlan one = plan;
  for (int64_t tile = 0; tile < plan.tiles; ++tile) {
    const int columns = plan.tile_lanes * kLaneBytes / static_cast<int>(dtype_bytes(dtype));
    auto code = launch_mark(args, tile, columns, stream);
    if (code != cudaSuccess) return code;
    one.first_tile = tile;
    one.tiles = 1;
    one.hubs = plan.hubs && tile + 1 == plan.tiles;
    code = launch_mode<Mode::extreme_grad>(dtype, one, args, stream);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace gpuprims
