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
constexpr int64_t kChunk = 512;
constexpr int64_t kHubDegree = 2 * kChunk;
constexpr int kLaneBytes = 16;  // channels that a lane owns, in bytes
constexpr int64_t kMostGridY = 65535;
constexpr int64_t kSpaceHeader = 16;  // flag and chunk count

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

struct Plan {
  bool vector;  // 16-byte loads of features; an element each otherwise. It changes no bit
  int64_t row_blocks;
  int64_t tiles;     // of 32 lanes of heads and channels: blockIdx.y
  int hub_blocks;    // the first blocks of the grid share the list of chunks. 0: no row is cut
  int64_t capacity;  // chunks
  int64_t chunks_at, partial_at, space_bytes;  // workspace; no bytes where nothing is prepared
};

// `partial` accumulators a chunk are kept for a hub.
inline Plan plan_rows(Dtype dtype, bool vector, int64_t rows, int64_t edges, int64_t heads,
                      int64_t channels, int64_t partial, bool checked, bool no_hubs, int sms) {
  Plan plan{};
  plan.vector = vector;
  plan.row_blocks = ceil_div(rows, kWarps);
  const int64_t lanes = heads * lanes_per_head(channels, kLaneBytes / dtype_bytes(dtype));
  plan.tiles = std::max<int64_t>(ceil_div(lanes, 32), 1);
  if (!no_hubs && edges >= kHubDegree) {
    plan.capacity = edges / kChunk;
    plan.hub_blocks = static_cast<int>(std::min<int64_t>(ceil_div(plan.capacity, kWarps), 4 * sms));
  }
  if (checked && plan.capacity == 0) return plan;
  const int64_t accumulator = dtype == Dtype::f64 ? 8 : 4;
  plan.chunks_at = kSpaceHeader;
  plan.partial_at = plan.chunks_at + plan.capacity * 16;
  plan.space_bytes = plan.partial_at + plan.capacity * partial * accumulator;
  return plan;
}

// An alpha is kept where the upper half of its hash reaches this.
inline uint64_t dropout_threshold(double dropout) {
  return static_cast<uint64_t>(dropout * 4294967296.0 + 0.5);
}

}  // namespace gpuprims::attention
