// Shape, dtype and alignment -> widths, grid and workspace. Pure host code.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/dtype.h"

namespace gpuprims {

constexpr int kWarps = 8;  // rows a block works on at a time

// A row of at least kHubDegree edges is cut into chunks of kChunk edges, the last one taking the
// rest, so every chunk has at least kChunk edges and there are at most edges / kChunk of them. A
// chunk is one warp's work: 512 edges bound the tail of a launch at about 20 us, and partial sums
// at 1/512 of the edges' traffic.
constexpr int64_t kChunk = 512;
constexpr int64_t kHubDegree = 2 * kChunk;

constexpr int kLaneBytes =
    16;  // columns a lane owns, in bytes: one 16-byte load where it is aligned
constexpr int64_t kSddmmEdges = 128;  // a warp's run of edges
constexpr int64_t kMostGridY = 65535;
constexpr int64_t kSpaceHeader = 16;  // flag and chunk count

struct AggregatePlan {
  int load_bytes;  // one load of features: 16, 4 or an element. Speed depends on it, bits never do
  int64_t row_blocks;
  int tiles;       // of 512 bytes of features: blockIdx.y, tiles outermost
  int hub_blocks;  // the first blocks of the grid; they share the list of chunks. 0: no row is cut
  int64_t capacity;  // chunks
  int64_t chunks_at, partial_at, position_at,
      space_bytes;  // workspace; no bytes where nothing is prepared
};

struct SddmmPlan {
  int load_bytes;
  int64_t blocks;
  int64_t space_bytes;
};

// Every row starts at address + a multiple of row_bytes and has width_bytes; both and the address
// must be multiples of the load.
inline int pick_load_bytes(Dtype dtype, uint64_t address, int64_t row_bytes, int64_t width_bytes) {
  const uint64_t all =
      address | static_cast<uint64_t>(row_bytes) | static_cast<uint64_t>(width_bytes);
  if (all % 16 == 0) return 16;
  if (dtype_bytes(dtype) == 2 && all % 4 == 0) return 4;
  return dtype_bytes(dtype);
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t align_up(int64_t a, int64_t to) { return ceil_div(a, to) * to; }

// `no_hubs` is a promise of the caller; where it was not given, rows are looked at on the device.
inline AggregatePlan plan_aggregate(Dtype dtype, int load_bytes, int64_t rows, int64_t edges,
                                    int64_t features, bool checked, bool no_hubs, bool positions,
                                    int sms) {
  AggregatePlan plan{};
  plan.load_bytes = load_bytes;
  plan.row_blocks = ceil_div(rows, kWarps);
  const int64_t tile = 32 * kLaneBytes / dtype_bytes(dtype);
  plan.tiles = static_cast<int>(std::min(ceil_div(features, tile), kMostGridY));
  if (!no_hubs && edges >= kHubDegree) {
    plan.capacity = edges / kChunk;
    plan.hub_blocks = static_cast<int>(std::min<int64_t>(ceil_div(plan.capacity, kWarps), 4 * sms));
  }
  if (checked && plan.capacity == 0) return plan;
  const int64_t accumulator = dtype == Dtype::f64 ? 8 : 4;
  plan.chunks_at = kSpaceHeader;
  plan.partial_at = plan.chunks_at + plan.capacity * 16;
  plan.position_at = plan.partial_at + align_up(plan.capacity * features * accumulator, 16);
  plan.space_bytes = plan.position_at + (positions ? plan.capacity * features * 4 : 0);
  return plan;
}

inline SddmmPlan plan_sddmm(int load_bytes, int64_t edges, bool checked) {
  return {load_bytes, ceil_div(edges, kWarps * kSddmmEdges), checked ? 0 : kSpaceHeader};
}

}  // namespace gpuprims
