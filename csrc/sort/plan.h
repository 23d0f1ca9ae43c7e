// From a problem's sizes to an algorithm, a grid and a workspace: a pure function, so that it can
// be tested and explained without a GPU. The sorts' tuning constants are here.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/dtype.h"

namespace gpuprims {

enum class SortAlgo : int32_t {
  automatic = 0,
  warp_row = 1,   // 1 to 32 lanes a row, a sorting network in registers
  block_row = 2,  // a block a row, digit by digit in shared memory
  sweep = 3,      // rows of any length: a pass over device memory for each digit
};

constexpr const char* sort_algo_name(SortAlgo algo) {
  constexpr const char* names[] = {"automatic", "warp_row", "block_row", "sweep"};
  return names[static_cast<int>(algo)];
}

constexpr int kMaxPasses = 8;
constexpr int kDigits = 256;
constexpr int kRowStateBytes = 32;
constexpr int kCodeCells = 2048;
constexpr int kCodeTableBytes = 32 + kCodeCells * 4;
constexpr int kMaxParts = 12;
constexpr int kRowSplitBytes = 64;
constexpr int kSpreadStateBytes = 32;
constexpr int kSegmentClasses = 4;  // up to 1,024, 4,096, 8,192, and longer

namespace sort_tuning {
constexpr int64_t kWarpRow = 1024;      // the longest row of a warp
constexpr int64_t kFew = 1024;          // elements a multiprocessor
constexpr int64_t kShortSegment = 256;  // found without a list
constexpr int kSweepThreads = 512;
constexpr int sweep_items(int record) { return record == 8 ? 16 : 24; }  // 64 registers a thread
constexpr int kBlocksPerSm = 2;                                          // of the sweep
constexpr int kFinishItems = 12;  // of the last step by codes, with as many threads
constexpr int64_t kFinishWindow = kSweepThreads * kFinishItems;
constexpr int64_t kCodedRow = 32768;         // the shortest row for passes by codes
constexpr int64_t kCoded = 6'000'000;        // the fewest elements for them
constexpr int64_t kOnePass = 256 * 2560;     // the longest row for one such pass
constexpr int64_t kTwoPasses = 120'000'000;  // ... and for two: windows must hold buckets
constexpr int64_t kBucket = 1600;            // records of one code, where there are two passes
constexpr int kPartItems = 24;               // of a part of a row, with 1,024 threads
constexpr int64_t kPartSize = 1024 * kPartItems;
constexpr int64_t kSplitSamples = 8192;  // of a row, which say where it is parted
constexpr int64_t kParted = 1'500'000;   // the fewest elements for parts
// Rows by buckets (spread.cuh): at most 2^16 of them, of so many records on average.
constexpr int64_t kSpreadRow = 2'500'000, kSpreadBucket = 1700;
constexpr int64_t kSpreadMost = kSpreadBucket << 16;
constexpr int64_t kSpreadSamples = 6144;  // at least
constexpr int kSpreadOnce = 10;           // the most bits of a code that one pass does
constexpr int kSettleItems = 16;          // of a window of buckets, with as many threads
constexpr int kSettleLog = 13;            // ... which has room for 2^13 records
constexpr int kBlockItems = 16;           // a thread; 32 in the largest block
constexpr int kBlockThreads = 1024;
}  // namespace sort_tuning

constexpr int sweep_tile(int record) {
  return sort_tuning::kSweepThreads * sort_tuning::sweep_items(record);
}
constexpr int kSegmentTile = sweep_tile(8);  // keys with an index

struct SortProblem {
  Dtype dtype = Dtype::f32;
  int64_t rows = 1;
  int64_t n = 1;
  bool values = true;
  bool indices = true;
  int index_bits = 64;
  int begin_bit = 0;
  int end_bit = 32;
  int sms = 132;
  SortAlgo forced = SortAlgo::automatic;
  bool in_place = false;  // keys alone, whose output is their input
  int code_bits = -1;     // of the codes that long rows are sorted by; 0: none; -1: as fits
  int parts = -1;         // that rows are sorted in; 0: none; -1: as fits
  int spread = -1;        // of the codes that one long row is sorted in buckets by; likewise
};

struct SortPlan {
  SortAlgo algo = SortAlgo::warp_row;
  int64_t grid = 0;  // 0: nothing to launch
  int threads = 0;
  int lanes = 0;        // warp_row: lanes a row
  int items = 0;        // warp_row, block_row: elements a thread
  bool packed = false;  // key and index in one 64-bit record
  int side = 0;         // bytes of an index that moves beside its key
  // sweep
  int tile = 0;
  int passes = 0;
  int64_t tiles_per_row = 0;
  int64_t tiles = 0;
  bool in_place = false;
  bool mend = false;  // rows may be sorted by their upper bits, and what is out of order mended
  bool wide_status = false;
  int code_passes = 0;  // passes by codes come first
  int code_bits = 0;    // of a code
  int64_t chunks = 0;   // of a row, each finished by one block
  int samples = 0;      // of a row
  int sample_threads = 0;
  int64_t codes_at = 0, code_counts_at = 0;
  int parts = 0;          // a block each sorts so many parts of a row first
  int64_t part_grid = 0;  // such blocks
  int64_t splits_at = 0;
  int spread_bits = 0;  // of a code; 0: not by buckets
  int64_t spread_grid = 0;
  int spread_low = 0;  // those that the second pass is for; 0: there is none
  int64_t spread_state_at = 0, spread_counts_at = 0, spread_starts_at = 0, spread_firsts_at = 0;
  int64_t spread_windows_at = 0, spread_crowded_at = 0, spread_tiles_at = 0;
  bool b_keys = false;      // the second buffer is workspace, not the output
  int64_t clear_bytes = 0;  // status, counts, state and counters stand first, and start as zeros
  int64_t counts_at = 0, state_at = 0, next_at = 0, a_keys_at = 0, a_side_at = 0, b_keys_at = 0;
  int64_t workspace = 0;
  int64_t traffic = 0;  // bytes that move through device memory, at most

  // Whether what comes before the passes by digits clears the workspace.
  constexpr bool clears_itself() const { return parts || code_passes || spread_bits; }
};

constexpr int64_t sort_round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}
constexpr int64_t sort_divide_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// The longest row that a block sorts: its records and 16-bit indices fill the shared memory of an
// SM.
constexpr int64_t block_limit(int key) {
  return int64_t{sort_tuning::kBlockThreads} * sort_tuning::kBlockItems * (key == 8 ? 1 : 2);
}

// Threads and items of the block that sorts rows of up to n elements.
inline void plan_block(SortPlan& plan, int64_t n) {
  plan.algo = SortAlgo::block_row;
  plan.items = sort_tuning::kBlockItems;
  plan.threads = 128;
  while (int64_t{plan.threads} * plan.items < n && plan.threads < sort_tuning::kBlockThreads)
    plan.threads *= 2;
  if (int64_t{plan.threads} * plan.items < n) plan.items *= 2;
}

// Lanes and items of the warps that sort rows of up to n elements. 8 elements a lane take the least
// code, and the time of few rows is that of fetching it; 32 take the least work.
inline void plan_warp(SortPlan& plan, int64_t n, bool few = false) {
  plan.algo = SortAlgo::warp_row;
  plan.threads = 128;
  plan.items = n <= 16 || (few && n <= 256) ? 8 : 32;
  plan.lanes = 1;
  while (static_cast<int64_t>(plan.lanes) * plan.items < n) plan.lanes *= 2;
}

// Whether rows are sorted by codes, and by how many bits of them. They pay for rows that one pass
// does, and for 8-byte integers.
inline void plan_codes(SortPlan& plan, const SortProblem& p, int64_t rows) {
  namespace t = sort_tuning;
  const int64_t key = dtype_bytes(p.dtype);
  if (p.code_bits == 0 || key < 4 || (key == 4 && !p.indices) || p.in_place || plan.side == 8 ||
      p.begin_bit != 0 || p.end_bit != key * 8)
    return;
  const bool pays =
      key == 8 ? !is_floating(p.dtype) && p.n <= t::kTwoPasses : rows > 1 && p.n <= t::kOnePass;
  if (p.code_bits < 0 && (!pays || p.n < t::kCodedRow || rows * p.n < t::kCoded)) return;
  plan.code_bits = 8;
  if (p.n > t::kOnePass)
    while (plan.code_bits < 16 && p.n >> plan.code_bits > t::kBucket) ++plan.code_bits;
  if (p.code_bits > 0) plan.code_bits = std::min(p.code_bits, 16);
  plan.code_passes = plan.code_bits > 8 ? 2 : 1;
  // Many rows have small samples and blocks: several at a time on a multiprocessor.
  const bool many = rows > p.sms / 2;
  plan.sample_threads = many ? 256 : 1024;
  plan.samples =
      many ? 2048 : static_cast<int>(std::clamp<int64_t>(p.n / 128, 4096, 16384) / 1024 * 1024);
  const int64_t blocks = int64_t{t::kBlocksPerSm} * p.sms, each = rows * p.n / (blocks * 4);
  const int64_t chunk = std::max<int64_t>(each < 4 * t::kFinishWindow ? each * 4 : each, 1024);
  plan.chunks = sort_divide_up(p.n, chunk);
}

// Whether rows are sorted in parts, and in how many. A part is to fit, with five times the
// deviation that the sample's quantiles have.
inline void plan_parts(SortPlan& plan, const SortProblem& p, int64_t rows) {
  namespace t = sort_tuning;
  if (p.parts == 0 || dtype_bytes(p.dtype) != 4 || !p.indices || p.begin_bit != 0 ||
      p.end_bit != 32 || p.n < t::kSplitSamples || p.n > kMaxParts * t::kPartSize)
    return;
  if (p.parts < 0 && (p.n < t::kCodedRow || rows * p.n < t::kParted)) return;
  int64_t parts = std::max<int64_t>(2, p.parts);
  const auto fits = [&] {  // (size - mean)^2 >= 25 parts / samples mean^2
    const int64_t mean = p.n / parts, room = t::kPartSize - mean;
    return room > 0 && room * room * t::kSplitSamples >= 25 * parts * mean * mean;
  };
  while (parts < kMaxParts && !fits()) ++parts;
  if (p.parts < 0 && !fits()) return;
  plan.parts = static_cast<int>(parts);
  plan.part_grid = std::min<int64_t>(rows * parts, p.sms);
}

// Whether a row is sorted by buckets, and by how many bits of codes.
inline void plan_spread(SortPlan& plan, const SortProblem& p, int64_t rows) {
  namespace t = sort_tuning;
  if (p.spread == 0 || rows != 1 || dtype_bytes(p.dtype) != 4 || !p.indices || p.begin_bit != 0 ||
      p.end_bit != 32 || p.n < t::kSpreadSamples || p.n > t::kSpreadMost ||
      (p.spread < 0 && p.n < t::kSpreadRow))
    return;
  plan.spread_bits = t::kSpreadOnce;
  while (p.n >> plan.spread_bits > t::kSpreadBucket) ++plan.spread_bits;
  if (p.spread > 0) plan.spread_bits = std::clamp<int>(p.spread, t::kSpreadOnce, 16);
  plan.spread_low = plan.spread_bits > t::kSpreadOnce ? plan.spread_bits / 2 : 0;
  plan.spread_grid = int64_t{t::kBlocksPerSm} * p.sms;
  plan.sample_threads = 1024;
  plan.samples =
      static_cast<int>(std::clamp<int64_t>(p.n / 1024, t::kSpreadSamples, 16384) / 1024 * 1024);
}

// Rows: how many the sweep's tables have room for; tiles: of all rows.
inline void plan_sweep(SortPlan& plan, const SortProblem& p, int64_t rows, int64_t tiles,
                       bool segments = false) {
  namespace t = sort_tuning;
  const int64_t key = dtype_bytes(p.dtype), total = rows > 0 ? p.rows * p.n : 0;
  plan.tile = sweep_tile(p.indices ? 8 : static_cast<int>(key));
  plan.algo = SortAlgo::sweep;
  plan.threads = sort_tuning::kSweepThreads;
  plan.passes = std::max(1, (p.end_bit - p.begin_bit + 7) / 8);
  plan.tiles = tiles;
  plan.grid = std::min<int64_t>(tiles, int64_t{sort_tuning::kBlocksPerSm} * p.sms);
  plan.packed = p.indices && key <= 4 && p.n <= int64_t{UINT32_MAX};
  plan.side = !p.indices || plan.packed ? 0 : p.n <= int64_t{UINT32_MAX} ? 4 : 8;
  plan.wide_status = p.n >= int64_t{1} << 30;
  plan.in_place = p.in_place;
  plan.mend = key == 8 && p.values && !p.in_place && p.begin_bit == 0 && p.end_bit == 64;
  if (!segments) plan_spread(plan, p, rows);
  if (!segments && !plan.spread_bits) plan_parts(plan, p, rows);
  if (!segments && !plan.spread_bits && !plan.parts) plan_codes(plan, p, rows);
  const int64_t record = plan.packed ? 8 : key;
  // B holds records between passes: the outputs serve, where they are wide enough.
  plan.b_keys = plan.packed ? p.index_bits != 64 : !p.values;
  int64_t at = sort_round_up(tiles * kDigits * (plan.wide_status ? 8 : 4), 256);
  plan.counts_at = at;
  at += rows * plan.passes * kDigits * 8;
  plan.code_counts_at = at;
  at += rows * plan.code_passes * kDigits * 8;
  plan.state_at = at;
  at = sort_round_up(at + rows * kRowStateBytes, 256);
  plan.next_at = at;
  at += 256;
  const int64_t buckets = plan.spread_bits ? int64_t{1} << plan.spread_bits : 0;
  plan.spread_state_at = at;
  plan.spread_counts_at = at + kSpreadStateBytes;
  if (buckets) at = sort_round_up(at + kSpreadStateBytes + buckets * 2, 256);
  plan.clear_bytes = at;
  plan.spread_starts_at = at;
  plan.spread_firsts_at = plan.spread_starts_at + buckets * 4;
  plan.spread_tiles_at = plan.spread_firsts_at + kDigits * 4;
  plan.spread_windows_at = plan.spread_tiles_at + (plan.tiles + kDigits) * 8;
  const int64_t windows = (p.n >> (t::kSettleLog - 2)) + 2;
  plan.spread_crowded_at = plan.spread_windows_at + windows * 4;
  if (buckets) at = sort_round_up(plan.spread_crowded_at + windows * 4, 256);
  plan.codes_at = at;
  if (plan.code_passes || buckets) at = sort_round_up(at + rows * kCodeTableBytes, 256);
  plan.splits_at = at;
  if (plan.parts) at = sort_round_up(at + rows * kRowSplitBytes, 256);
  plan.a_keys_at = at;
  at = sort_round_up(at + total * record, 256);
  plan.a_side_at = at;
  at = sort_round_up(at + total * plan.side, 256);
  plan.b_keys_at = at;
  if (plan.b_keys) at += total * record;
  plan.workspace = at;
  const int64_t moved = record + plan.side,
                out = (p.values ? key : 0) + (p.indices ? p.index_bits / 8 : 0);
  plan.traffic = total * (key + key + out + (plan.passes - 1) * 2 * moved);
}

inline SortPlan plan_sort(const SortProblem& p) {
  namespace t = sort_tuning;
  SortPlan plan;
  if (p.rows == 0 || p.n == 0) return plan;
  const int64_t key = dtype_bytes(p.dtype);
  const int64_t out = (p.values ? key : 0) + (p.indices ? p.index_bits / 8 : 0);
  plan.traffic = p.rows * p.n * (key + out);
  plan.side = p.indices ? 2 : 0;
  const bool warp_fits = p.n <= t::kWarpRow;
  const bool block_fits = p.n <= block_limit(static_cast<int>(key));
  SortAlgo algo = warp_fits    ? SortAlgo::warp_row
                  : block_fits ? SortAlgo::block_row
                               : SortAlgo::sweep;
  if (p.forced == SortAlgo::sweep || (p.forced == SortAlgo::block_row && block_fits))
    algo = p.forced;
  if (algo == SortAlgo::warp_row) {
    plan_warp(plan, p.n, p.rows * p.n <= t::kFew * p.sms);
    plan.grid = std::min<int64_t>(sort_divide_up(p.rows, plan.threads / plan.lanes), INT32_MAX);
    return plan;
  }
  if (algo == SortAlgo::block_row) {
    plan_block(plan, p.n);
    // The largest blocks stay, and go through the rows; smaller ones are better replaced.
    plan.grid = std::min<int64_t>(p.rows, plan.threads == t::kBlockThreads ? p.sms : INT32_MAX);
    return plan;
  }
  plan.tiles_per_row = sort_divide_up(p.n, sweep_tile(p.indices ? 8 : static_cast<int>(key)));
  plan_sweep(plan, p, p.rows, p.rows * plan.tiles_per_row);
  return plan;
}

// Segments of any lengths, of which the host knows the number and the sum alone: a kernel for each
// class of lengths, with lists that have room for as many as the sum allows.
struct SegmentSortPlan {
  struct Warp {
    int64_t shortest, longest;
    SortPlan shape;
  };
  Warp warps[3];
  SortPlan blocks[kSegmentClasses - 1];  // the first is warp_row's
  SortPlan sweep;
  int64_t capacity[kSegmentClasses] = {};  // 0: the class cannot occur
  int64_t list_at[kSegmentClasses] = {};
  int64_t list_grid = 1;
  int64_t head_at = 0;  // {rows, tiles of the sweep; bad; 0; counts of the blocks' classes}
  int64_t tile_row_at = 0, tile_base_at = 0;
  int64_t clear_bytes = 0;
  int64_t workspace = 0;
};

inline SegmentSortPlan plan_segments(const SortProblem& p, int64_t segments) {
  SegmentSortPlan plan;
  constexpr int64_t kLimits[kSegmentClasses] = {sort_tuning::kShortSegment, sort_tuning::kWarpRow,
                                                4096, kSegmentTile};
  for (int c = 0; c < kSegmentClasses; ++c) {
    plan.capacity[c] = std::min(segments, p.n / (kLimits[c] + 1));
    if (c == kSegmentClasses - 1) break;
    SortPlan& block = plan.blocks[c];
    block.side = 2;
    if (c == 0)
      plan_warp(block, kLimits[1]);
    else
      plan_block(block, kLimits[c + 1]);
    const int64_t resident = int64_t{p.sms} * (c == 0 ? 16 : 1024 / block.threads);
    block.grid = std::max<int64_t>(1, std::min(plan.capacity[c], resident));
  }
  const int64_t rows = plan.capacity[kSegmentClasses - 1];
  plan_sweep(plan.sweep, p, rows, rows > 0 ? p.n / kSegmentTile + rows : 0, true);
  const auto warp = [&](int64_t shortest, int64_t longest) {
    SortPlan shape;
    plan_warp(shape, longest);
    shape.grid = std::clamp<int64_t>(sort_divide_up(segments, shape.threads / shape.lanes), 1,
                                     int64_t{p.sms} * 16);
    return SegmentSortPlan::Warp{shortest, longest, shape};
  };
  plan.warps[0] = warp(1, 16);
  plan.warps[1] = warp(17, 64);
  plan.warps[2] = warp(65, kLimits[0]);
  plan.list_grid = std::clamp<int64_t>(sort_divide_up(segments, 256), 1, int64_t{p.sms} * 8);
  plan.clear_bytes = plan.sweep.clear_bytes;
  plan.head_at = plan.sweep.next_at + 128;  // in what is cleared, behind the counters of passes
  int64_t at = sort_round_up(plan.sweep.workspace, 256);
  for (int c = 0; c < kSegmentClasses; ++c) {
    plan.list_at[c] = at;
    at += sort_round_up(plan.capacity[c] * 16, 256);
  }
  plan.tile_row_at = at;
  at += sort_round_up(plan.sweep.tiles * 4, 256);
  plan.tile_base_at = at;
  at += sort_round_up(rows * 4, 256);
  plan.workspace = at;
  return plan;
}

}  // namespace gpuprims
