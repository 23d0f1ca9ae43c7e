// Shape -> lanes, grid and workspace. Pure host code; the constants are the device's too.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/dtype.h"

namespace gpuprims::attention {

constexpr int kWarps =
    4;  // rows a block works on at a time; small blocks fill the registers better

// A row of at least kHubDegree edges is cut every kChunk edges, the last chunk taking the rest, as
// in csrc/aggregate/plan.h: a chunk is one warp's work.
constexpr int64_t kChunk = 256;
constexpr int64_t kHubDegree = 2 * kChunk;
constexpr int kLaneBytes = 16;    // channels that a lane owns, in bytes
constexpr int kStreamBytes = 32;  // in the streams of forward.cu and backward.cu
constexpr int64_t kMostGridY = 65535;
constexpr int64_t kSpaceHeader = 48;  // flag, chunk count, zeros

// Rows are dealt to groups of lanes by work: an edge counts 1, a row kRowCost. Row r lies at
// indptr[r] + kRowCost * r; starts[i] is the first row at or after i * run_work. Graphs that do not
// fill the GPU take shorter runs.
constexpr int64_t kRowCost = 12;
constexpr int64_t kRunWork = 512, kLeastRunWork = 16;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t align_up(int64_t a, int64_t to) { return ceil_div(a, to) * to; }

// Lanes that a head takes: a power of two up to a warp, whole warps beyond.
constexpr int64_t lanes_per_head(int64_t channels, int64_t owned) {
  const int64_t needed = ceil_div(channels, owned);
  if (needed > 32) return align_up(needed, 32);
  int64_t lanes = 1;
  while (lanes < needed) lanes *= 2;
  return lanes;
}

// Accumulators that a chunk leaves in the forward pass.
constexpr int64_t attended_partial(int64_t heads, int64_t channels, bool positive) {
  return (heads * channels + heads) * (positive ? 2 : 1) + heads;
}

struct Plan {
  bool vector;         // 16-byte loads of features; an element each otherwise. It changes no bit
  int64_t row_blocks;  // where a warp takes a row
  int64_t run_blocks;  // where a group of lanes takes a run of rows
  int64_t run_work, runs;
  int64_t chunk_blocks;  // the first blocks of that grid: a group each chunk there may be
  int64_t tiles;         // of 32 lanes of heads and channels: blockIdx.y
  int hub_blocks;        // the first blocks of the grid share the list of chunks. 0: no row is cut
  int64_t capacity;      // chunks
  int64_t chunks_at, starts_at, partial_at, space_bytes;  // workspace; 0: nothing is prepared
};

// Groups of lanes in a warp of the first tile, which has the fewest.
constexpr int64_t groups_of(int64_t heads, int64_t lanes) {
  int64_t held = 1;
  while (held < heads && held * lanes < 32) held *= 2;
  return std::max<int64_t>(32 / (held * lanes), 1);
}

// `partial` accumulators a chunk are kept for a hub; `runs`: rows are dealt in runs.
inline Plan plan_rows(Dtype dtype, bool vector, int64_t rows, int64_t edges, int64_t heads,
                      int64_t channels, int64_t partial, bool checked, bool no_hubs, int sms,
                      bool runs) {
  Plan plan{};
  plan.vector = vector;
  plan.row_blocks = ceil_div(rows, kWarps);
  const int64_t head_lanes =
      lanes_per_head(channels, (runs ? kStreamBytes : kLaneBytes) / dtype_bytes(dtype));
  plan.tiles = std::max<int64_t>(ceil_div(heads * head_lanes, 32), 1);
  const int64_t groups = groups_of(heads, head_lanes);
  if (runs) {
    const int64_t work = edges + kRowCost * rows;
    plan.run_work =
        std::clamp(work * plan.tiles / (64 * int64_t(sms) * groups), kLeastRunWork, kRunWork);
    plan.runs = ceil_div(work, plan.run_work);
    plan.run_blocks = ceil_div(plan.runs, kWarps * groups);
  }
  if (!no_hubs && edges >= kHubDegree) {
    plan.capacity = edges / kChunk;
    plan.hub_blocks =
        static_cast<int>(std::min<int64_t>(ceil_div(plan.capacity, kWarps), 16 * sms));
    plan.chunk_blocks = ceil_div(plan.capacity, kWarps * groups);
  }
  if (checked && plan.capacity == 0 && !runs) return plan;
  const int64_t accumulator = dtype == Dtype::f64 ? 8 : 4;
  plan.chunks_at = kSpaceHeader;
  plan.starts_at = plan.chunks_at + plan.capacity * 16;
  plan.partial_at = plan.starts_at + (runs ? align_up((plan.runs + 1) * 8, 16) : 0);
  plan.space_bytes = plan.partial_at + plan.capacity * partial * accumulator;
  return plan;
}

// An alpha is kept where the upper half of its hash reaches this.
inline uint64_t dropout_threshold(double dropout) {
  return static_cast<uint64_t>(dropout * 4294967296.0 + 0.5);
}

}  // namespace gpuprims::attention
