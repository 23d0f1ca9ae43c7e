// How a call's work is cut: what kernels and host agree on. choose.h fills it in.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/dtype.h"

namespace gpuprims {

constexpr int kWarps = 8;          // of the blocks of helper kernels
constexpr int kRowWarps = 4;       // of the row kernels: small blocks leave few registers unused
constexpr int kMostRowWarps = 24;  // of sums and means without weights, 80 registers each
constexpr int kDeepRowWarps = 16;  // of sums with 16 edges in flight, 128
constexpr int kWeightedRowWarps = 20;  // of the others, 96
constexpr int kGradRowWarps = 16;      // of gradients of max and min, 128
constexpr int kBitsRowWarps = 20;      // and without weights, 96

// Rows are dealt by work: an edge counts 1, a row kRowCost, and every kUnit of that is a unit.
// Row r lies at indptr[r] + kRowCost * r; starts[u] is the first row at or after u * kUnit. A warp
// takes a run of units, each of its groups of lanes a part of them.
constexpr int64_t kUnit = 32;
constexpr int64_t kRowCost = 2;
constexpr int kNarrowTile = 512;  // edges that a warp gathers at a time, where features are narrow

// Where rows are scheduled, or differ much, one block fills a multiprocessor and its warps share
// chunks of consecutive runs: all of them walk neighbouring rows, which find each other's
// neighbours in L1, and none waits for the block's longest row.
constexpr int kChunkRuns = 24;

// A row of at least kHubDegree edges is cut into chunks of kChunk edges, the last one taking the
// rest, so every chunk has at least kChunk edges and there are at most edges / kChunk of them. A
// chunk is one warp's work: 512 edges bound the tail of a launch at about 20 us, and partial sums
// at 1/512 of the edges' traffic. The chunk that starts at edge b keeps its partial result in slot
// b / kChunk, which no other has.
constexpr int64_t kChunk = 512;
constexpr int64_t kHubDegree = 2 * kChunk;
// From here on a whole warp walks a row, where its features leave it more than one group.
constexpr int64_t kLongDegree = 64;

constexpr int kLaneBytes =
    16;  // columns a lane owns, in bytes: one 16-byte load where it is aligned
constexpr int64_t kSddmmEdges = 128;  // a warp's run of edges
constexpr int64_t kMostGridY = 65535;
constexpr int64_t kMostStride = int64_t(1) << 31;  // bytes between rows: kernels multiply 32 bits

// The plan tensor of a graph, int64: [kPlanHeader] hubs and their edges; starts
// [units + 1]; rows that are hubs [edges / kHubDegree];
// and where rows are scheduled, order [rows]: row i of indptr is row order[i] of the output.
// torch_gpuprims/aggregate_plan.py writes it.
constexpr int64_t kPlanHeader = 4;
constexpr int64_t kSpaceHeader = 16;  // a flag, in a call's workspace

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t align_up(int64_t a, int64_t to) { return ceil_div(a, to) * to; }

constexpr int64_t count_units(int64_t rows, int64_t edges) {
  return ceil_div(edges + kRowCost * rows, kUnit);
}

struct PlanLayout {
  int64_t starts, hubs, order, size;  // in elements; size without order
};

constexpr PlanLayout plan_layout(int64_t rows, int64_t edges) {
  const int64_t hubs = kPlanHeader + count_units(rows, edges) + 1;
  const int64_t order = hubs + edges / kHubDegree;
  return {kPlanHeader, hubs, order, order};
}

struct AggregatePlan {
  int load_bytes;  // one load of features: 16, 4 or an element. Speed depends on it, bits never do
  int tile_lanes;  // 16 bytes of columns each: a tile's width
  int64_t first_tile, tiles;  // blockIdx.y, tiles outermost
  int log_ways;               // partial sums of a long row: 1, or all groups of a warp
  int64_t long_degree;        // rows from here are walked by the warp
  int64_t units, warp_units;
  int warps;  // of a block
  int64_t blocks;
  int chunk_runs;   // of the chunks that a block's warps share; 0: a warp has one run of its own
  bool narrow;      // lanes over edges; a tile is a column
  bool deep;        // 16 edges in flight
  bool small;       // a group a row, no dealing
  bool bits;        // gradients of max and min: nothing but bits and rows to be read
  bool hubs;        // some row may be cut
  bool long_rows;   // some row may be walked by the warp
  int hub_blocks;   // that combine the chunks of hubs
  bool prepare;     // the data is looked at, or the plan made, within the call
  int taken_words;  // gradients of max and min: of 32 columns of a tile
  int64_t plan_at, partial_at, position_at, taken_at, marked_at, space_bytes;  // workspace
};

struct SddmmPlan {
  int load_bytes;
  int64_t blocks;
  int64_t space_bytes;
};

// Every row starts at address + a multiple of row_bytes and has width_bytes; both and the address
// must be multiples of the load.
inline int pick_load_bytes(Dtype dtype, uint64_t address, int64_t row_bytes, int64_t width_bytes) {
  if (dtype == Dtype::f64) return 8;
  const uint64_t all =
      address | static_cast<uint64_t>(row_bytes) | static_cast<uint64_t>(width_bytes);
  if (all % 16 == 0) return 16;
  if (dtype_bytes(dtype) == 2 && all % 4 == 0) return 4;
  return dtype_bytes(dtype);
}

// Lanes that `bytes` of features take: a power of two, at most a warp.
constexpr int lanes_for(int64_t bytes) {
  int lanes = 1;
  while (lanes < 32 && lanes * kLaneBytes < bytes) lanes *= 2;
  return lanes;
}

}  // namespace gpuprims
