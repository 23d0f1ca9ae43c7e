// Plans for part_row: long rows of floats, each a block's, or shared out among blocks.
#pragma once
#include <algorithm>

#include "topk/plan_types.h"

namespace gpuprims {

namespace topk_tuning {
constexpr int kPartThreads = 512;
constexpr int kPartLoads = 8;          // of a tile, of which a thread keeps the best
constexpr int kPartPairs = 4096;       // room for candidates: as many as the last block takes
constexpr int kPartK = 192;            // the most winners: 3/4 of 256 groups
constexpr int kPartTiles = 80;         // the longest part,
constexpr int64_t kPartVectors = 512;  // and the shortest
}  // namespace topk_tuning

// Fills in how rows are shared out; false where they cannot be.
inline bool topk_parts(const TopkProblem& p, TopkPlan& plan) {
  namespace t = topk_tuning;
  const int64_t vector = topk_vector(p.dtype);
  if (!p.vectors || p.rows > p.sms || p.n > INT32_MAX || p.k > t::kPartK) return false;
  plan.threads = t::kPartThreads;
  plan.unroll = t::kPartLoads;
  const int64_t most = std::clamp<int64_t>(p.n / (t::kPartVectors * vector), 1, p.sms / p.rows);
  plan.chunk = round_up(divide_up(p.n, most), 32 * vector);
  plan.splits = static_cast<int>(divide_up(p.n, plan.chunk));
  plan.tile = static_cast<int>(divide_up(plan.chunk / vector, int64_t{plan.threads} * plan.unroll));
  // What a block hands over: hardly more than k reach its bound. The last block takes all at once.
  plan.flush = static_cast<int>(std::min<int64_t>(p.k + p.k / 2 + 16, t::kPartPairs / plan.splits));
  plan.smem = stream_memory(t::kPartPairs, t::kPartK, plan.threads, 8) +
              int64_t{plan.tile} * plan.threads * 4;
  return plan.tile <= t::kPartTiles && plan.smem + t::kNarrowBytes <= p.smem &&
         (plan.splits == 1 || p.k + p.k / 8 + 4 <= plan.flush);
}

inline bool topk_part_fits(const TopkProblem& p) {
  TopkPlan plan;
  return topk_parts(p, plan);
}

// What cluster_row leaves.
inline bool topk_part_wins(const TopkProblem& p) {
  return p.n * dtype_bytes(p.dtype) >= 32 * topk_tuning::kPartVectors && topk_part_fits(p);
}

// Groups whose k-th best is a part's bound: a quarter of them may hide another of the best.
inline int part_groups(int64_t k) {
  return k * 4 <= topk_tuning::kMaxGroups * 3 ? topk_tuning::kMaxGroups
                                              : 2 * topk_tuning::kMaxGroups;
}

// The same where a row's parts are merged: fewer, as nothing is looked at again; 0, and so all that
// was handed over, where ranks can be counted at once.
inline int part_merge_groups(int splits, int64_t k) {
  if (splits * (k + k / 6) <= topk_tuning::kPartThreads / 2) return 0;
  return k * 4 <= 64 * 3 ? 64 : part_groups(k);
}

inline TopkPlan plan_topk_part(const TopkProblem& p, TopkPlan plan) {
  topk_parts(p, plan);
  plan.algo = TopkAlgo::part_row;
  plan.groups = part_groups(p.k);
  plan.rank = static_cast<int>(p.k);
  plan.grid = p.rows * plan.splits;
  plan.workspace = plan.splits > 1 ? p.rows * plan.splits * plan.flush * 8 : 0;
  return plan;
}

}  // namespace gpuprims
