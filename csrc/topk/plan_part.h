// Plans for part_row: few long rows of floats, each shared out among blocks.
#pragma once
#include <algorithm>

#include "topk/plan_types.h"

namespace gpuprims {

namespace topk_tuning {
constexpr int kPartThreads = 512;      // a block of part_row,
constexpr int kPartLoads = 8;          // vectors of a thread and tile,
constexpr int kPartPairs = 4096;       // room for candidates: 8 a thread,
constexpr int kPartK = 192;            // the most winners: 3/4 of 256 groups,
constexpr int kPartTiles = 80;         // and the longest part, of whose tiles each thread keeps a best
constexpr int64_t kPartVectors = 512;  // the shortest
}  // namespace topk_tuning

// Shared memory behind BlockMemory.
constexpr int64_t part_memory(int64_t tiles) {
  namespace t = topk_tuning;
  return stream_memory(t::kPartPairs, t::kPartK, t::kPartThreads, 8) + tiles * t::kPartThreads * 4;
}

// Fills in how rows are shared out; false where they cannot be.
inline bool topk_parts(const TopkProblem& p, TopkPlan& plan) {
  namespace t = topk_tuning;
  const int64_t vector = topk_vector(p.dtype);
  if (!p.vectors || p.k > t::kPartK || p.rows > p.sms || p.n > INT32_MAX) return false;
  const int64_t most = std::clamp<int64_t>(p.n / (t::kPartVectors * vector), 1, p.sms / p.rows);
  plan.chunk = round_up(divide_up(p.n, most), 32 * vector);
  plan.splits = static_cast<int>(divide_up(p.n, plan.chunk));
  plan.tile = static_cast<int>(
      divide_up(plan.chunk / vector, int64_t{t::kPartThreads} * t::kPartLoads));
  // What a block hands over: hardly more than k reach its bound. The last block takes all at once.
  plan.flush = static_cast<int>(std::min<int64_t>(p.k + p.k / 2 + 16, t::kPartPairs / plan.splits));
  plan.smem = part_memory(plan.tile);
  return plan.tile <= t::kPartTiles && plan.smem + t::kNarrowBytes <= p.smem &&
         (plan.splits == 1 || p.k + p.k / 8 + 4 <= plan.flush);
}

inline bool topk_part_fits(const TopkProblem& p) {
  TopkPlan plan;
  return topk_parts(p, plan);
}

// What cluster_row leaves.
inline bool topk_part_wins(const TopkProblem& p) {
  return (p.trial & topk_tuning::kTryParts) &&
         p.n > 2 * topk_tuning::kPartVectors * topk_vector(p.dtype) && topk_part_fits(p);
}

inline TopkPlan plan_topk_part(const TopkProblem& p, TopkPlan plan) {
  namespace t = topk_tuning;
  topk_parts(p, plan);
  plan.algo = TopkAlgo::part_row;
  plan.threads = t::kPartThreads;
  plan.groups = p.k * 4 <= t::kMaxGroups * 3 ? t::kMaxGroups : 2 * t::kMaxGroups;
  plan.rank = static_cast<int>(p.k);
  plan.grid = p.rows * plan.splits;
  plan.workspace = plan.splits > 1 ? p.rows * plan.splits * plan.flush * 8 : 0;
  return plan;
}

}  // namespace gpuprims
