// Plans for short rows: lanes and thread_row.
#pragma once
#include <algorithm>
#include <bit>

#include "topk/plan_types.h"

namespace gpuprims {

// Lanes a row: k must stay below 3/4 of them, or the lanes' best elements bound nothing.
constexpr int topk_lanes(int64_t n, int64_t k) {
  for (int lanes : {8, 16, 32})
    if (n <= lanes * topk_tuning::kLaneItems && k * 4 <= lanes * 3) return lanes;
  return 0;
}

inline TopkPlan plan_topk_lanes(const TopkProblem& p, TopkPlan plan) {
  plan.algo = TopkAlgo::lanes;
  plan.lanes = topk_lanes(p.n, p.k);
  plan.threads = 128;
  plan.grid = std::min<int64_t>(divide_up(p.rows, plan.threads / plan.lanes), INT32_MAX);
  return plan;
}

// Where lanes is chosen, if nothing above it is: where as many lanes have elements as it takes.
inline bool topk_lanes_win(const TopkProblem& p) {
  namespace t = topk_tuning;
  if (!p.vectors || topk_lanes(p.n, p.k) == 0 || p.k * 4 > p.n / topk_vector(p.dtype) * 3)
    return false;
  return p.n >= t::kLanesFrom || p.rows < 4 * p.sms ||
         (p.n > 32 && p.rows < (p.k > 12 ? t::kLanesRows : 4 * t::kLanesRows));
}

// Rows for which thread_row is: short ones, and enough of them that latency does not matter. 16
// winners of 8 bytes are too many for it.
inline bool topk_thread_fits(const TopkProblem& p) {
  const int most = dtype_bytes(p.dtype) == 8 ? 8 : topk_tuning::kThreadMaxK;
  return p.n <= topk_tuning::kThreadMaxN && p.k <= most;
}

// Rows that a block each reads with little to do behind it: few, and few winners.
inline bool topk_quick_blocks(const TopkProblem& p) {
  const int size = dtype_bytes(p.dtype);
  return size > 1 && p.rows <= 8 * p.sms && p.k <= (size == 8 ? 128 : 64);
}

// Where thread_row is chosen, if nothing above it is.
inline bool topk_thread_wins(const TopkProblem& p) {
  const int size = dtype_bytes(p.dtype);
  if (!topk_thread_fits(p) || (size == 8 && p.n > 64 && topk_quick_blocks(p))) return false;
  return p.rows >= 4 * p.sms || p.n <= topk_tuning::kThreadFewN || size < 4;
}

// A warp's shared memory in thread_row: rows, their mask, each lane's list; the winners are laid
// over all three at the end.
struct TopkThreadMemory {
  int share = 0;  // vectors a lane
  int slots = 0;  // of a lane's list
  int64_t mask = 0, list = 0, bytes = 0;
};

inline TopkThreadMemory topk_thread_memory(const TopkProblem& p, int lanes) {
  const int64_t rows = 32 / lanes, size = dtype_bytes(p.dtype), winners = rows * (p.k | 1);
  TopkThreadMemory m;
  m.share = static_cast<int>(divide_up(divide_up(p.n, topk_vector(p.dtype)), lanes));
  const int elements = m.share * topk_vector(p.dtype);
  m.slots = elements <= 32 ? 32 : elements <= 128 ? 64 : 128;  // half of the elements, or k groups
  m.mask = round_up(rows * p.n * size, 16) + 32;  // a vector may be read that starts in the row
  m.list = m.mask + (p.masked ? round_up(rows * p.n, 16) : 0);
  m.bytes = std::max(m.list + 32 * m.slots, round_up(winners * size, 8) + winners * 8);
  m.bytes = round_up(m.bytes, 128);
  return m;
}

inline TopkPlan plan_topk_thread(const TopkProblem& p, TopkPlan plan) {
  namespace t = topk_tuning;
  plan.algo = TopkAlgo::thread_row;
  plan.lanes = 1;
  TopkThreadMemory memory = topk_thread_memory(p, plan.lanes);
  const auto more = [&] {
    if (memory.share * topk_vector(p.dtype) > t::kThreadShare) return true;
    return p.n >= 2 * plan.lanes * t::kThreadElements &&
           (memory.bytes > t::kThreadTile ||
            p.rows * plan.lanes < int64_t{32} * t::kThreadWarps * p.sms);
  };
  while (plan.lanes < t::kThreadLanes && more()) memory = topk_thread_memory(p, plan.lanes *= 2);
  const int warps = memory.bytes <= 6 * 1024 ? 4 : memory.bytes <= 12 * 1024 ? 2 : 1;
  plan.threads = 32 * warps;
  plan.smem = warps * memory.bytes;
  plan.grid = std::min<int64_t>(divide_up(p.rows, warps * 32 / plan.lanes), INT32_MAX);
  return plan;
}

// A warp's shared memory in warp_row: bests of vectors, over which candidates lie later; winners; a
// list of vectors.
struct TopkWarpMemory {
  int tops = 0, bytes = 0;
};
inline TopkWarpMemory topk_warp_memory(Dtype dtype, int64_t n) {
  const int64_t vectors = divide_up(n, topk_vector(dtype));
  TopkWarpMemory m;
  m.tops =
      static_cast<int>(round_up(std::max<int64_t>(vectors * 4, topk_tuning::kWarpPairs * 8), 16));
  m.bytes = static_cast<int>(round_up(m.tops + 32 * 8 + vectors * 2, 16));
  return m;
}

inline bool topk_warp_fits(const TopkProblem& p) {
  return p.vectors && p.k <= topk_tuning::kWarpK &&
         divide_up(p.n, topk_vector(p.dtype)) <= topk_tuning::kWarpVectors;
}

// Many rows.
inline bool topk_warp_wins(const TopkProblem& p) {
  return topk_warp_fits(p) && p.n > topk_tuning::kLanesMaxN && p.rows > 8 * p.sms;
}

inline TopkPlan plan_topk_warp(const TopkProblem& p, TopkPlan plan) {
  plan.algo = TopkAlgo::warp_row;
  plan.threads = topk_tuning::kWarpThreads;
  const int warps = plan.threads / 32;
  plan.grid = std::min<int64_t>(divide_up(p.rows, warps), INT32_MAX);
  plan.smem = int64_t{warps} * topk_warp_memory(p.dtype, p.n).bytes;
  return plan;
}

inline bool topk_count_fits(const TopkProblem& p) {
  return !p.masked && p.n <= topk_tuning::kCountMaxN && p.rows * p.n <= INT32_MAX;
}

// Small enough for n^2 comparisons a row; measured beside every other kernel on an H200.
inline bool topk_count_wins(const TopkProblem& p) {
  namespace t = topk_tuning;
  if (!topk_count_fits(p)) return false;
  const int size = dtype_bytes(p.dtype);
  const bool quick = topk_thread_wins(p) || (p.n > 128 && topk_quick_blocks(p));
  if (p.rows * p.n > (quick ? 100'000 : 140'000)) return false;
  const int64_t most = !quick                  ? size < 4     ? t::kCountSmall
                                                 : p.n >= 512 ? t::kCountLong
                                                              : t::kCountShort
                       : size == 8             ? p.k > 32 ? t::kCountShort : t::kCountWide
                       : p.k > 8 && p.n <= 128 ? t::kCountWide
                                               : t::kCountQuick;
  return p.rows * p.n * p.n * (size == 8 ? 5 : 4) <= 4 * most;
}

inline TopkPlan plan_topk_count(const TopkProblem& p, TopkPlan plan) {
  namespace t = topk_tuning;
  plan.algo = TopkAlgo::count_row;
  plan.threads = t::kCountThreads;
  plan.tile = t::kCountThreads;
  while (plan.tile > 32 && p.rows * p.n < int64_t{plan.tile} * p.sms) plan.tile /= 2;
  plan.splits = static_cast<int>(divide_up(p.n, plan.tile));
  int64_t in_block = 1;
  if (plan.splits == 1) in_block = plan.tile / static_cast<int64_t>(std::bit_ceil<uint64_t>(p.n));
  plan.grid = divide_up(p.rows, in_block) * plan.splits;
  const int64_t word = dtype_bytes(p.dtype) == 8 ? 8 : 4;
  plan.smem = in_block * round_up(p.n * word, 16);
  return plan;
}

}  // namespace gpuprims
