// From sizes to tiles, lists, grids and workspace of segment_reduce: a pure function. Lengths are
// on the device, so the plan makes room for any. Nothing here changes a bit of a result: the trees
// are functions of a segment's length alone.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "reduce/segment_ops.h"

namespace gpuprims {

// The tree of a flat segment is that of `reduce` over a contiguous extent (ops.h): chunks of
// kSegmentChunk values; in a chunk value i joins accumulator i mod 32 V in order, where V values
// make 16 bytes; the V accumulators of a slot are halved (e takes e + V / 2, .. e + 1), then the 32
// slots; kSegmentGroup neighbouring chunks pairwise; groups join kSegmentFinish accumulators in
// order, which are halved.
constexpr int kSegmentChunk = 4096, kSegmentGroup = 8, kSegmentFinish = 256;
// The tree of each column of rows: pieces of kRowPiece rows; in a piece row i joins lane
// i mod kRowLanes in order, and the lanes are halved. The pieces' results are the next level's
// rows. 64 pieces of 64 rows are the same 4,096.
constexpr int kRowPiece = 64, kRowLanes = 8;

namespace segment_reduce_tuning {
constexpr int kThreads = 256;
constexpr int kStaged = 16;           // values a thread brings to shared memory at once
constexpr int kStageMean = 100;       // longer segments on average gain nothing from a stage
constexpr int kTileValues = 2560;     // that a staged tile should have
constexpr int kRingMean = 16;         // longest on average that warps take 32 at a time
constexpr int kRingValues = 640;      // of such 32, or else they are read where they lie
constexpr int kInlineShort = 1024;    // longest segment that a tile of short ones reduces itself
constexpr int kInlineRows = 256;      // longest that a thread of a column walks alone, of many,
constexpr int kInlineFewRows = 64;    // and of few
constexpr int64_t kHeader = 64;       // bytes of SegmentReduceHeader
constexpr int64_t kLevelRows = 4096;  // a block of segment_levels takes two levels of rows
constexpr int kLevelColumns = 4;
}  // namespace segment_reduce_tuning

constexpr int64_t kReduceChecked = 1, kReduceShort = 4;  // bits of `promises`, as Segments has them

// Blocks of 256 threads on a multiprocessor that registers leave room for: with the loads in flight
// that a warp has, each keeps the memory busy.
constexpr int segment_blocks(int state_bytes) {
  return state_bytes == 4 ? 4 : state_bytes == 8 ? 3 : 2;
}

struct SegmentReduceProblem {
  Dtype dtype = Dtype::f32;
  SegmentOp op = SegmentOp::sum;
  int64_t n = 0;  // rows
  int64_t segments = 0;
  int64_t features = 1;
  int vec = 1;  // columns of a thread that may be loaded at once: 1 or 4
  int sms = 132;
  bool must_look = true;
  int64_t promises = 0;
  bool aligned = false;  // the values' address, to 16 bytes
};

constexpr int kMostLevels = 4;

struct SegmentReducePlan {
  bool nothing = true;
  bool rows = false;   // a thread a column; otherwise flat values
  bool lists = false;  // there may be segments that are cut
  bool header = false;
  // flat: a block takes `tile` consecutive segments
  int tile = 0;
  bool stage = false;
  bool ring = false;  // a warp takes 32 segments at a time, and asks for the next 32
  int capacity = 0;   // values of a staged tile
  int64_t tiles = 0;
  int blocks = 0;
  // rows
  int vec = 1;
  int64_t groups = 1;  // of `vec` columns
  int64_t row_blocks = 0;
  // what is longer than `inline_limit` is cut every `piece`
  int inline_limit = 0;
  int piece = 0;
  int64_t entries = 0;  // room for cut segments
  int64_t pieces = 0;   // and for their pieces
  int long_blocks = 0;
  int levels = 0;                      // of rows, after the pieces
  int64_t level_at[kMostLevels] = {};  // states, from the pieces' own
  // workspace, bytes from its start
  int64_t list_at = 0, done_at = 0, states_at = 0, workspace = 0;
  int64_t traffic = 0;
};

constexpr int64_t segment_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline SegmentReducePlan plan_segment_reduce(const SegmentReduceProblem& p) {
  namespace t = segment_reduce_tuning;
  SegmentReducePlan plan;
  const int bytes = dtype_bytes(p.dtype);
  plan.traffic = p.n * p.features * bytes + (p.segments + 1) * 8 +
                 p.segments * p.features * dtype_bytes(segment_result(p.dtype, p.op));
  plan.nothing = p.segments == 0 || p.features == 0;
  if (plan.nothing) return plan;
  plan.rows = p.features > 1;
  const bool pair = p.op == SegmentOp::logsumexp;
  const int state =
      (segment_accumulator(p.dtype) == SegmentAccumulator::f32 ? 4 : 8) * (pair ? 2 : 1);
  const int64_t resident = int64_t{p.sms} * segment_blocks(state);
  const int64_t mean = p.n / p.segments;
  const bool known_short = (p.promises & kReduceShort) && !p.must_look;  // then nothing is cut
  if (plan.rows) {
    plan.vec = p.vec;
    plan.groups = segment_div_up(p.features, p.vec);
    const int64_t threads = p.segments * plan.groups;
    plan.row_blocks = std::min<int64_t>(segment_div_up(threads, t::kThreads), INT32_MAX);
    plan.piece = kRowPiece;
    const bool few = threads < int64_t{p.sms} * 1024 && !known_short;
    plan.inline_limit = few ? t::kInlineFewRows : t::kInlineRows;
  } else {
    plan.stage = mean <= t::kStageMean;
    const int64_t wanted = plan.stage ? t::kTileValues / std::max<int64_t>(mean, 1) : 8;
    // Few segments are spread over all multiprocessors.
    const int64_t spread = std::max<int64_t>(p.segments / (p.sms * 16LL), 8);
    const auto most = static_cast<uint64_t>(std::clamp<int64_t>(std::min(wanted, spread), 8, 256));
    plan.tile = static_cast<int>(std::bit_floor(most));
    plan.capacity = plan.stage ? t::kThreads * t::kStaged : 0;
    plan.tiles = segment_div_up(p.segments, plan.tile);
    plan.blocks = static_cast<int>(std::min<int64_t>(plan.tiles, resident));
    plan.ring = p.aligned && mean <= t::kRingMean && p.dtype == Dtype::f32;
    plan.piece = kSegmentChunk;
    plan.inline_limit = plan.stage ? t::kInlineShort : kSegmentChunk;
  }
  plan.lists = p.n > plan.inline_limit && !known_short;
  plan.header = plan.lists || p.must_look;
  if (!plan.header) return plan;
  plan.workspace = t::kHeader;
  plan.long_blocks = p.must_look ? static_cast<int>(std::min<int64_t>(p.sms, plan.blocks + 1)) : 0;
  if (plan.rows && p.must_look) plan.long_blocks = p.sms;
  if (!plan.lists) return plan;

  plan.entries = p.n / (plan.inline_limit + 1);
  plan.pieces = p.n / plan.piece + plan.entries;
  const int64_t most = plan.rows ? segment_div_up(plan.pieces * plan.groups, t::kThreads)
                                 : segment_div_up(plan.pieces, t::kThreads / 32);
  plan.long_blocks = static_cast<int>(
      std::max<int64_t>(std::min<int64_t>(most, plan.rows ? p.sms * 8LL : resident), 1));
  int64_t states = plan.pieces;
  if (plan.rows) {
    for (int64_t left = segment_div_up(p.n, kRowPiece), room = plan.pieces; left > 1;) {
      left = segment_div_up(left, t::kLevelRows);
      room = room / t::kLevelRows + plan.entries + 1;
      plan.level_at[plan.levels++] = states;
      states += left > 1 ? room : 0;  // the last level writes results
    }
  }
  plan.list_at = plan.workspace;
  plan.done_at = plan.list_at + plan.entries * 24;
  plan.states_at =
      segment_div_up(plan.done_at + (plan.rows ? 0 : plan.pieces * 4), 256) * int64_t{256};
  plan.workspace = plan.states_at + states * p.features * state;
  return plan;
}

}  // namespace gpuprims
