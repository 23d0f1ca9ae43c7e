// Plans for cluster_row: few rows, a block or a cluster of blocks each.
#pragma once
#include <algorithm>

#include "topk/plan_types.h"

namespace gpuprims {

// Blocks a row: as few as keep all of their vectors in registers, or the most; 0 where it cannot
// be. Before sm_90, whose blocks have less shared memory, there are no clusters.
inline int topk_cluster_blocks(const TopkProblem& p) {
  namespace t = topk_tuning;
  if (!p.vectors || t::groups_for(p.k) == 0) return 0;
  const int64_t vectors = p.n / topk_vector(p.dtype);
  int64_t blocks = 1;
  while (vectors > blocks * t::kClusterThreads * t::kClusterFew && blocks < t::kClusterBlocks)
    blocks *= 2;
  if (vectors > blocks * t::kClusterThreads * t::kClusterVectors || p.rows > INT32_MAX / blocks)
    return 0;
  return blocks == 1 || p.smem >= t::kClusterMemory ? static_cast<int>(blocks) : 0;
}

// Where all rows are read at once: clusters of two and more do not fill the device, since each must
// lie within a part of it.
inline bool topk_cluster_wins(const TopkProblem& p) {
  const int64_t blocks = topk_cluster_blocks(p);
  return blocks > 0 && p.n > topk_tuning::kCountMaxN &&
         p.rows * blocks * 4 <= int64_t{p.sms} * (blocks == 1 ? 4 : 3);
}

inline TopkPlan plan_topk_cluster(const TopkProblem& p, TopkPlan plan) {
  namespace t = topk_tuning;
  plan.algo = TopkAlgo::cluster_row;
  plan.threads = t::kClusterThreads;
  plan.splits = topk_cluster_blocks(p);
  plan.groups = std::max(t::groups_for(p.k), plan.splits > 1 ? 64 : 32);
  plan.rank = static_cast<int>(p.k);
  plan.grid = p.rows * plan.splits;
  plan.smem = stream_memory(t::kClusterPairs, p.k, plan.threads, 8);
  return plan;
}

}  // namespace gpuprims
