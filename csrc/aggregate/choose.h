// Shape, dtype and alignment -> widths, grid and workspace. Pure host code.
#pragma once
#include <cstdlib>

#include "aggregate/plan.h"

namespace gpuprims {

constexpr int64_t kGroupUnits = 4;  // a group's, in graphs that fill the GPU: 128 of work
constexpr int64_t kShortUnits = 3;  // where rows are of less than kShortRows edges
constexpr int64_t kShortRows = 8;
constexpr int64_t kDenseUnits = 8;   // where rows are long, or scheduled
constexpr int64_t kWholeUnits = 16;  // and each is one group's
constexpr int64_t kDeepRows = 32;    // edges of scheduled rows, from which 16 are in flight

constexpr int64_t kNarrowestTile = 128;  // bytes: HBM gives rows of 64 at half its rate

constexpr int64_t kNarrowUnits = 32;  // a warp's, where features are narrow
constexpr int64_t kSmallUnits = 160;  // of a multiprocessor, in graphs that are called small
constexpr int64_t kSmallRows = 64;    // and each group's of a multiprocessor's warps

// What the environment forces, for timing variants side by side; results do not depend on it.
struct AggregateTuning {
  int64_t tile_bytes = 0;   // GPUPRIMS_AGGREGATE_TILE: 128, 256 or 512, features of 512 bytes on
  int64_t group_units = 0;  // GPUPRIMS_AGGREGATE_UNITS
  int64_t warps = 0;        // GPUPRIMS_AGGREGATE_WARPS: of a block, 1 .. 24
  int small = 0;            // GPUPRIMS_AGGREGATE_SMALL: 1 or -1, the kernel of small graphs or not
  int deep = 0;             // GPUPRIMS_AGGREGATE_DEEP: 1 or -1, 16 edges in flight or 8
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
          static_cast<int>(std::clamp<int64_t>(number("GPUPRIMS_AGGREGATE_SMALL"), -1, 1)),
          static_cast<int>(std::clamp<int64_t>(number("GPUPRIMS_AGGREGATE_DEEP"), -1, 1)),
          static_cast<int>(std::clamp<int64_t>(number("GPUPRIMS_AGGREGATE_CHUNK"), -1, 1 << 20))};
}

// What a plan is made of beside sizes.
struct AggregateFacts {
  int64_t sources = 0;             // rows of x
  bool checked = false;            // the graph was validated
  bool no_hubs = false;            // no row is a hub
  bool no_long = false;            // no row has kLongDegree edges
  bool planned = false;            // a plan tensor is there
  bool scheduled = false;          // and orders the rows
  bool positions = false;          // max and min
  bool taken = false;              // their gradient
  bool bits = false;               // without weights, in whole vectors
  bool ids = false;                // edges have ids that are not their places
  int most_warps = kMostRowWarps;  // of a block, and of a multiprocessor
  bool narrow = false;             // features of a sum without weights are few, and no vectors
  bool plain = false;              // a sum without weights, in whole vectors
  bool may_deepen = false;         // in float32, no mean and no factor of rows
  int sms = 132;
  int64_t cache_bytes = 50 << 20;  // L2
  AggregateTuning tuning;
};

// A tile of all columns, up to 512 bytes, reads the indices once. Narrower tiles pay where they
// keep a slice of x in L2, which is 1 to 4 times smaller, and rows are read often; and where x is
// far larger than L2: what a half of L2 holds of x (about 25 MB) is the larger part of a narrow
// slice (uniform, 12 % at F=128).
inline int64_t pick_tile_bytes(int64_t row_bytes, int64_t edges, const AggregateFacts& facts) {
  constexpr int64_t kWide = 32 * kLaneBytes;
  if (row_bytes <= kNarrowestTile) return kWide;
  if (facts.tuning.tile_bytes) return facts.tuning.tile_bytes;
  const int64_t table = facts.sources * row_bytes;
  const int64_t held = facts.cache_bytes + facts.cache_bytes / 4;
  const bool dense = edges >= 64 * std::max<int64_t>(facts.sources, 1);
  if (dense && row_bytes >= kWide && table > held && table <= 4 * facts.cache_bytes)
    return facts.sources * 256 <= held ? 256 : 128;
  const bool far = table > 4 * facts.cache_bytes && edges >= 16 * facts.sources;
  if (far && facts.no_hubs && facts.plain && !facts.scheduled && !dense) return kNarrowestTile;
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
  // Those with hubs as many as fit at once: amazon_computers is 6 % faster so.
  plan.hubs = !facts.no_hubs && edges >= kHubDegree;
  const int64_t warps = small && plan.hubs ? 16 : 80;
  const int64_t wanted = plan.units * plan.tiles / (warps * int64_t(facts.sms) * groups);
  const int64_t most_units = !sparse && plan.log_ways == 0 ? kWholeUnits
                             : !sparse || facts.scheduled  ? kDenseUnits
                             : edges < kShortRows * rows   ? kShortUnits
                                                           : kGroupUnits;
  int64_t group_units = std::clamp<int64_t>(wanted, 1, most_units);
  if (facts.tuning.group_units) group_units = facts.tuning.group_units;
  plan.warp_units = group_units * groups;
  const int64_t runs = ceil_div(plan.units, plan.warp_units);
  // Of short rows (grid) neighbours lie near each other.
  const bool share = facts.scheduled || (sparse && plan.hubs) || edges < kShortRows * rows;
  plan.chunk_runs = share && runs > 2 * int64_t(kChunkRuns) * facts.sms ? kChunkRuns : 0;
  if (facts.tuning.chunk_runs) plan.chunk_runs = std::max(facts.tuning.chunk_runs, 0);
  plan.long_rows = plan.log_ways > 0 ? !facts.no_long && edges >= kLongDegree : plan.hubs;
  plan.small = dtype == Dtype::f32 && facts.plain && !plan.hubs &&
               (facts.tuning.small ? facts.tuning.small > 0
                                   : small && rows * plan.tiles <= kSmallRows * facts.sms * groups);
  // Batches of 16 edges pay where x comes from HBM for the most part and rows fill two of them
  // (products at F=128, mean degree 48: 6 % faster); sbm, of degree 29, is 3 % slower.
  const bool deep = facts.scheduled && plan.log_ways == 0 && edges >= kDeepRows * rows;
  plan.deep = facts.may_deepen && !plan.small && (facts.tuning.deep ? facts.tuning.deep > 0 : deep);
  plan.bits = facts.bits && facts.checked;
  const int most = plan.deep ? kDeepRowWarps : plan.bits ? kBitsRowWarps : facts.most_warps;
  plan.warps = plan.chunk_runs ? most : kRowWarps;
  if (facts.tuning.warps) plan.warps = std::min(static_cast<int>(facts.tuning.warps), most);
  plan.blocks = ceil_div(runs, plan.chunk_runs ? plan.chunk_runs : plan.warps);
  if (plan.chunk_runs)
    plan.blocks = std::min<int64_t>(plan.blocks, facts.sms * int64_t(most / plan.warps));
  if (plan.small) {
    plan.chunk_runs = 0;
    plan.warps = kRowWarps;
    plan.blocks = ceil_div(rows, int64_t(groups) * plan.warps);
  }
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
  if (facts.taken)
    plan.taken_words = static_cast<int>(ceil_div(
        std::min<int64_t>(features, plan.tile_lanes * kLaneBytes / dtype_bytes(dtype)), 32));
  if (!plan.prepare && !plan.hubs && !facts.taken) return plan;
  const int64_t capacity = plan.hubs ? edges / kChunk : 0;
  const int64_t accumulator = dtype == Dtype::f64 ? 8 : 4;
  plan.plan_at = kSpaceHeader;
  plan.partial_at =
      align_up(plan.plan_at + (plan.prepare ? plan_layout(rows, edges).size * 8 : 0), 16);
  plan.position_at = plan.partial_at + align_up(capacity * features * accumulator, 16);
  plan.taken_at = align_up(plan.position_at + (facts.positions ? capacity * features * 4 : 0), 16);
  plan.marked_at =
      facts.ids ? plan.taken_at + align_up(edges * plan.taken_words * 4, 16) : plan.taken_at;
  plan.space_bytes = plan.marked_at + edges * plan.taken_words * 4;
  return plan;
}

inline SddmmPlan plan_sddmm(int load_bytes, int64_t edges, bool checked) {
  return {load_bytes, ceil_div(edges, kWarps * kSddmmEdges), checked ? 0 : kSpaceHeader};
}

}  // namespace gpuprims
