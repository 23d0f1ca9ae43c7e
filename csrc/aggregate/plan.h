// Shape, dtype and alignment -> widths, grid and workspace. Pure host code.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "common/dtype.h"

namespace gpuprims {

constexpr int kWarps = 8;          // of the blocks of helper kernels
constexpr int kRowWarps = 4;       // of the row kernels: small blocks leave few registers unused
constexpr int kMostRowWarps = 24;  // of sums and means without weights, 80 registers each
constexpr int kWeightedRowWarps = 20;  // of the others, 96
constexpr int kGradRowWarps = 12;      // of gradients of max and min, 168
constexpr int kDeepRowWarps = 8;       // of float32 sums of small graphs, 255
constexpr int64_t kSmallUnits = 160;   // of a multiprocessor, in graphs that are called small

// Rows are dealt by work: an edge counts 1, a row kRowCost, and every kUnit of that is a unit.
// Row r lies at indptr[r] + kRowCost * r; starts[u] is the first row at or after u * kUnit. A warp
// takes a run of units, each of its groups of lanes a part of them.
constexpr int64_t kUnit = 32;
constexpr int64_t kRowCost = 2;
constexpr int64_t kGroupUnits = 4;   // a group's, in graphs that fill the GPU: 128 of work
constexpr int64_t kDenseUnits = 8;   // where rows are long
constexpr int64_t kWholeUnits = 16;  // and each is one group's

constexpr int kNarrowTile = 512;       // edges that a warp gathers at a time, where features are narrow
constexpr int64_t kNarrowUnits = 32;  // a warp's, there

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

// The plan tensor of a graph, int64: [kPlanHeader] hubs and nothing else so far; starts
// [units + 1]; rows that are hubs [edges / kHubDegree]; and where rows are scheduled, order [rows]:
// row i of indptr is row order[i] of the output. torch_gpuprims/aggregate_plan.py writes it.
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

// What the environment forces, for timing variants side by side; results do not depend on it.
struct AggregateTuning {
  int64_t tile_bytes = 0;   // GPUPRIMS_AGGREGATE_TILE: 128, 256 or 512, features of 512 bytes on
  int64_t group_units = 0;  // GPUPRIMS_AGGREGATE_UNITS
  int64_t warps = 0;        // GPUPRIMS_AGGREGATE_WARPS: of a block, 1 .. 24
  int deep = 0;             // GPUPRIMS_AGGREGATE_DEEP: 1 or -1, the kernel of small graphs or not
  int chunk_runs = 0;       // GPUPRIMS_AGGREGATE_CHUNK: runs of a shared chunk; -1: none is shared
};

inline AggregateTuning read_aggregate_tuning() {
  const auto number = [](const char* name) {
    const char* text = std::getenv(name);
    return text ? static_cast<int64_t>(std::atoll(text)) : int64_t(0);
  };
  const int64_t tile = number("GPUPRIMS_AGGREGATE_TILE");
  return {tile == 128 || tile == 256 || tile == 512 ? tile : 0,
          std::clamp<int64_t>(number("GPUPRIMS_AGGREGATE_UNITS"), 0, 64),
          std::clamp<int64_t>(number("GPUPRIMS_AGGREGATE_WARPS"), 0, kMostRowWarps),
          static_cast<int>(std::clamp<int64_t>(number("GPUPRIMS_AGGREGATE_DEEP"), -1, 1)),
          static_cast<int>(std::clamp<int64_t>(number("GPUPRIMS_AGGREGATE_CHUNK"), -1, 1 << 20))};
}

struct AggregatePlan {
  int load_bytes;  // one load of features: 16, 4 or an element. Speed depends on it, bits never do
  int tile_lanes;  // 16 bytes of columns each: a tile's width
  int64_t tiles;   // blockIdx.y, tiles outermost
  int log_ways;    // partial sums of a long row: 1, or all groups of a warp
  int64_t long_degree;  // rows from here are walked by the warp
  int64_t units, warp_units;
  int warps;  // of a block
  int64_t blocks;
  int chunk_runs;  // of the chunks that a block's warps share; 0: a warp has one run of its own
  bool narrow;     // lanes over edges; a tile is a column
  bool deep;       // few warps: more edges in flight for each
  bool hubs;       // some row may be cut
  bool long_rows;  // some row may be walked by the warp
  int hub_blocks;  // that combine the chunks of hubs
  bool prepare;    // the data is looked at, or the plan made, within the call
  int64_t plan_at, partial_at, position_at, space_bytes;  // workspace
};

struct SddmmPlan {
  int load_bytes;
  int64_t blocks;
  int64_t space_bytes;
};

// What a plan is made of beside sizes.
struct AggregateFacts {
  int64_t sources = 0;             // rows of x
  bool checked = false;            // the graph was validated
  bool no_hubs = false;            // no row is a hub
  bool no_long = false;            // no row has kLongDegree edges
  bool planned = false;            // a plan tensor is there
  bool scheduled = false;          // and orders the rows
  bool positions = false;          // max and min
  int most_warps = kMostRowWarps;  // of a block, and of a multiprocessor
  bool narrow = false;             // features of a sum without weights are few, and no vectors
  bool plain = false;              // a sum without weights, in whole vectors
  int sms = 132;
  int64_t cache_bytes = 50 << 20;  // L2
  AggregateTuning tuning;
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

// A tile of all columns, up to 512 bytes, reads the indices once. Narrower tiles pay where they
// keep a slice of x in L2, which is 1 to 4 times smaller, and rows are read often.
inline int64_t pick_tile_bytes(int64_t row_bytes, int64_t edges, const AggregateFacts& facts) {
  constexpr int64_t kWide = 32 * kLaneBytes;
  if (row_bytes < kWide) return kWide;
  if (facts.tuning.tile_bytes) return facts.tuning.tile_bytes;
  const int64_t table = facts.sources * row_bytes;
  const int64_t held = facts.cache_bytes + facts.cache_bytes / 4;
  const bool dense = edges >= 64 * std::max<int64_t>(facts.sources, 1);
  if (dense && table > held && table <= 4 * facts.cache_bytes)
    return facts.sources * 256 <= held ? 256 : 128;
  return kWide;
}

inline AggregatePlan plan_aggregate(Dtype dtype, int load_bytes, int64_t rows, int64_t edges,
                                    int64_t features, const AggregateFacts& facts) {
  AggregatePlan plan{};
  plan.load_bytes = load_bytes;
  const int64_t row_bytes = std::max<int64_t>(features, 1) * dtype_bytes(dtype);
  // A function of the row's bytes alone, as the tree of a sum is; a narrower tile keeps it.
  for (int lanes = lanes_for(row_bytes); lanes < 32; lanes *= 2) ++plan.log_ways;
  plan.long_degree = plan.log_ways > 0 ? kLongDegree : kHubDegree;
  const int64_t tile_bytes = pick_tile_bytes(row_bytes, edges, facts);
  plan.tile_lanes = lanes_for(std::min(row_bytes, tile_bytes));
  plan.tiles = ceil_div(row_bytes, int64_t(plan.tile_lanes) * kLaneBytes);
  plan.units = count_units(rows, edges);
  const bool sparse = edges < kLongDegree * rows;
  const bool small = plan.units * plan.tiles <= kSmallUnits * facts.sms;
  const int groups = 32 / plan.tile_lanes;
  // Small graphs take smaller runs: as many warps as the GPU holds, four times over.
  const int64_t wanted = plan.units * plan.tiles / (80 * int64_t(facts.sms) * groups);
  const int64_t most_units = sparse ? kGroupUnits : plan.log_ways ? kDenseUnits : kWholeUnits;
  int64_t group_units = std::clamp<int64_t>(wanted, 1, most_units);
  if (facts.tuning.group_units) group_units = facts.tuning.group_units;
  plan.warp_units = group_units * groups;
  const int64_t runs = ceil_div(plan.units, plan.warp_units);
  plan.hubs = !facts.no_hubs && edges >= kHubDegree;
  const bool share = facts.scheduled || (sparse && plan.hubs);
  plan.chunk_runs = share && runs > 2 * int64_t(kChunkRuns) * facts.sms ? kChunkRuns : 0;
  if (facts.tuning.chunk_runs) plan.chunk_runs = std::max(facts.tuning.chunk_runs, 0);
  plan.long_rows = plan.log_ways > 0 ? !facts.no_long && edges >= kLongDegree : plan.hubs;
  // Not where hubs are: occupancy counts for more (amazon_computers 58 us so, 43 otherwise).
  plan.deep = dtype == Dtype::f32 && facts.plain &&
              (facts.tuning.deep ? facts.tuning.deep > 0 : small && plan.long_rows && !plan.hubs);
  const int most = plan.deep ? kDeepRowWarps : facts.most_warps;
  plan.warps = plan.chunk_runs ? most : kRowWarps;
  if (facts.tuning.warps) plan.warps = std::min(static_cast<int>(facts.tuning.warps), most);
  plan.blocks = ceil_div(runs, plan.chunk_runs ? plan.chunk_runs : plan.warps);
  if (plan.chunk_runs)
    plan.blocks = std::min<int64_t>(plan.blocks, facts.sms * int64_t(most / plan.warps));
  if (facts.narrow) {
    plan.narrow = true;
    plan.tiles = features;
    plan.chunk_runs = 0;
    plan.warps = kWarps;
    plan.warp_units = std::clamp<int64_t>(plan.units / (48 * int64_t(facts.sms)), 2, kNarrowUnits);
    if (facts.tuning.group_units) plan.warp_units = facts.tuning.group_units;
    plan.blocks = ceil_div(ceil_div(plan.units, plan.warp_units), kWarps);
  }
  if (plan.hubs) {
    const int64_t warps = edges / kHubDegree * ceil_div(std::max<int64_t>(features, 1), 32);
    plan.hub_blocks = static_cast<int>(std::min<int64_t>(ceil_div(warps, kWarps), 4 * facts.sms));
  }
  plan.prepare = !facts.checked || !facts.planned;
  if (!plan.prepare && !plan.hubs) return plan;
  const int64_t capacity = plan.hubs ? edges / kChunk : 0;
  const int64_t accumulator = dtype == Dtype::f64 ? 8 : 4;
  plan.plan_at = kSpaceHeader;
  plan.partial_at =
      align_up(plan.plan_at + (plan.prepare ? plan_layout(rows, edges).size * 8 : 0), 16);
  plan.position_at = plan.partial_at + align_up(capacity * features * accumulator, 16);
  plan.space_bytes = plan.position_at + (facts.positions ? capacity * features * 4 : 0);
  return plan;
}

inline SddmmPlan plan_sddmm(int load_bytes, int64_t edges, bool checked) {
  return {load_bytes, ceil_div(edges, kWarps * kSddmmEdges), checked ? 0 : kSpaceHeader};
}

}  // namespace gpuprims
