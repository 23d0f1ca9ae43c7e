// Segments by length, on the device: nobody waits to learn how many there are of which. The order
// of the lists depends on timing, and nothing on the order of the lists.
#include "common/launch.h"
#include "sort/records.cuh"

namespace gpuprims {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    segment_lists(const __grid_constant__ SortArgs args, const __grid_constant__ SegmentLists lists,
                  const __grid_constant__ SweepSpace space) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  bool wrong = false;
  for (int64_t s = blockIdx.x * int64_t{kThreads} + threadIdx.x; s < args.rows; s += stride) {
    const RowSpan span = row_span(args, s);
    wrong |= span.n < 0 || span.start < 0 || span.start + span.n > args.n ||
             (s == 0 && span.start != 0) || (s == args.rows - 1 && span.start + span.n != args.n);
    if (wrong || span.n <= sort_tuning::kShortSegment) continue;
    constexpr int kLong = kSegmentClasses - 1;
    const int kind = span.n <= sort_tuning::kWarpRow ? 0
                     : span.n <= 4096                ? 1
                     : span.n <= kSegmentTile        ? 2
                                                     : kLong;
    if (kind < kLong) {
      const uint32_t at = atomicAdd(lists.count[kind], 1u);
      if (at < lists.capacity[kind]) lists.list[kind][at] = span;
      continue;
    }
    const uint64_t tiles = sort_divide_up(span.n, kSegmentTile);
    const uint64_t before = atomicAdd(reinterpret_cast<unsigned long long*>(space.totals),
                                      static_cast<unsigned long long>(tiles << 32 | 1));
    const uint32_t at = static_cast<uint32_t>(before);
    if (at >= lists.capacity[kLong]) continue;
    lists.list[kLong][at] = span;
    space.tile_base[at] = static_cast<uint32_t>(before >> 32);
  }
  if (args.rows == 0 && args.n != 0) wrong = true;
  if (wrong) *lists.bad = 1;
}

// Where indptr is wrong.
__device__ __forceinline__ void fill(const SortArgs& args, bool floating) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  unsigned char* const values = static_cast<unsigned char*>(args.values);
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < args.n; i += stride) {
    for (int b = 0; b < args.bytes; ++b) values[i * args.bytes + b] = floating ? 0xff : 0;
    store_index(args, i, -1);
  }
}

// Which row a tile of the sweep belongs to.
__global__ void __launch_bounds__(kThreads)
    segment_tiles(const __grid_constant__ SortArgs args, const __grid_constant__ SegmentLists lists,
                  const __grid_constant__ SweepSpace space, int64_t capacity, bool floating) {
  if (*lists.bad) return fill(args, floating);
  const uint32_t rows = space.totals[0];
  for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t tiles = sort_divide_up(lists.list[kSegmentClasses - 1][row].n, kSegmentTile);
    const int64_t base = space.tile_base[row];
    for (int64_t i = threadIdx.x; i < tiles && base + i < capacity; i += kThreads)
      space.tile_row[base + i] = row;
  }
}

}  // namespace

cudaError_t launch_segment_lists(const SortArgs& args, const SegmentLists& lists,
                                 const SweepSpace& space, int64_t tiles, bool floating, int grid,
                                 int fill_grid, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(grid)), dim3(kThreads)};
  if (const auto code = launch(segment_lists, shape, stream, args, lists, space)) return code;
  shape.grid = dim3(static_cast<unsigned>(std::max(grid, fill_grid)));
  return launch(segment_tiles, shape, stream, args, lists, space, tiles, floating);
}

}  // namespace gpuprims
