// Plans for part_row: long rows of floats, each a block's, or shared out among blocks.
#pragma once
#include <algorithm>

#include "topk/plan_types.h"

namespace gpuprims {

namespace topk_tuning {
constexpr int kPartThreads = 512;         // a block of a few rows',
constexpr int kPartPairs = 4096;          // room for candidates: as many as the last block takes,
constexpr int kPartK = 192;               // the most winners: 3/4 of 256 groups,
constexpr int kPartTiles = 80;            // the longest part,
constexpr int64_t kPartVectors = 512;     // and the shortest
constexpr int kPartSmall = 128;           // a block of many rows,
constexpr int kPartResident = 8;          // so many to a multiprocessor,
constexpr int kPartSmallK = 96;           // the most winners: 3/4 of the threads,
constexpr int64_t kPartLeast = 32 << 10;  // and the shortest row, bytes: from here on latency hides
}  // namespace topk_tuning

// Vectors of a thread and tile, whose best it keeps.
constexpr int part_loads(int threads) { return threads == topk_tuning::kPartSmall ? 2 : 8; }

// Tiles of small blocks: so many that 8 blocks find room.
constexpr int part_tiles(int threads, int size) {
  return threads == topk_tuning::kPartSmall ? 8 * size : topk_tuning::kPartTiles;
}

// Room for candidates. Small blocks: more where elements are small, as then more may be equal.
constexpr int part_pairs(int threads, int size) {
  return threads == topk_tuning::kPartSmall ? (size == 4 ? 576 : 1024) : topk_tuning::kPartPairs;
}

constexpr int part_winners(int threads) {
  return threads == topk_tuning::kPartSmall ? topk_tuning::kPartSmallK : topk_tuning::kPartK;
}

// Shared memory behind BlockMemory.
constexpr int64_t part_memory(int threads, int size, int64_t tiles) {
  return stream_memory(part_pairs(threads, size), part_winners(threads), threads, 8) +
         tiles * threads * 4;
}

// Fills in how rows are shared out; false where they cannot be.
inline bool topk_parts(const TopkProblem& p, TopkPlan& plan) {
  namespace t = topk_tuning;
  const int size = dtype_bytes(p.dtype);
  const int64_t vector = topk_vector(p.dtype);
  if (!p.vectors || p.n > INT32_MAX || p.rows > INT32_MAX) return false;
  const bool small = p.rows > p.sms;
  plan.threads = small ? t::kPartSmall : t::kPartThreads;
  const int64_t most = std::clamp<int64_t>(p.n / (t::kPartVectors * vector), 1,
                                           std::max<int64_t>(p.sms / p.rows, 1));
  plan.chunk = small ? p.n : round_up(divide_up(p.n, most), 32 * vector);
  plan.splits = static_cast<int>(divide_up(p.n, plan.chunk));
  plan.tile = static_cast<int>(
      divide_up(plan.chunk / vector, int64_t{plan.threads} * part_loads(plan.threads)));
  // What a block hands over: hardly more than k reach its bound. The last block takes all at once.
  plan.flush = static_cast<int>(std::min<int64_t>(p.k + p.k / 2 + 16, t::kPartPairs / plan.splits));
  plan.smem = part_memory(plan.threads, size, plan.tile);
  return plan.tile <= part_tiles(plan.threads, size) && plan.smem + t::kNarrowBytes <= p.smem &&
         p.k <= part_winners(plan.threads) && (plan.splits == 1 || p.k + p.k / 8 + 4 <= plan.flush);
}

inline bool topk_part_fits(const TopkProblem& p) {
  TopkPlan plan;
  return topk_parts(p, plan);
}

// What cluster_row leaves; of many rows those that keep the memory busy.
inline bool topk_part_wins(const TopkProblem& p) {
  namespace t = topk_tuning;
  const int64_t bytes = p.n * dtype_bytes(p.dtype);
  const bool tried = p.trial & (p.rows > p.sms ? t::kTryManyParts : t::kTryParts);
  return tried && bytes >= (p.rows > p.sms ? t::kPartLeast : 32 * t::kPartVectors) &&
         topk_part_fits(p);
}

inline TopkPlan plan_topk_part(const TopkProblem& p, TopkPlan plan) {
  namespace t = topk_tuning;
  topk_parts(p, plan);
  plan.algo = TopkAlgo::part_row;
  plan.groups = p.k * 4 <= t::kMaxGroups * 3 ? t::kMaxGroups : 2 * t::kMaxGroups;
  plan.rank = static_cast<int>(p.k);
  plan.grid = p.rows * plan.splits;
  plan.workspace = plan.splits > 1 ? p.rows * plan.splits * plan.flush * 8 : 0;
  return plan;
}

}  // namespace gpuprims
