// From a problem's sizes to an algorithm, a grid and a workspace: a pure function, so that it can
// be tested and explained without a GPU.
#pragma once
#include <algorithm>

#include "topk/plan_cluster.h"
#include "topk/plan_part.h"
#include "topk/plan_short.h"
#include "topk/plan_stream.h"
#include "topk/radix_plan.h"

namespace gpuprims {

inline TopkPlan plan_topk_sort(const TopkProblem& p, TopkPlan plan) {
  plan.algo = TopkAlgo::sort;
  plan.wide = true;  // one record for all keys: rare, so one set of kernels
  plan.tile = topk_tuning::kSortTile;
  plan.threads = 512;
  plan.splits = static_cast<int>(divide_up(p.n, plan.tile));
  plan.grid = p.rows * plan.splits;
  constexpr int64_t pair = 16;
  plan.smem = plan.tile * pair;
  plan.workspace = 2 * round_up(p.rows * p.n * pair, 256);
  // Tiles write pairs, merges read and write k of each couple of runs, and k are read at the end.
  int64_t moved = p.n + p.k;
  for (int64_t run = plan.tile; run < p.n;) {
    run *= 2;
    moved += 2 * (p.n / run * std::min(p.k, run) + std::min(p.k, p.n % run));
  }
  plan.traffic += p.rows * moved * pair;
  return plan;
}

inline TopkPlan plan_topk_radix(const TopkProblem& p, TopkPlan plan) {
  const RadixPlan radix = plan_radix(p.dtype, p.rows, p.n, p.k, p.inner, p.index_bits, p.sms);
  plan.algo = TopkAlgo::radix;
  plan.filtered = radix.filtered;
  plan.threads = radix.filtered ? radix_tuning::kThreads : radix.sort.threads;
  plan.grid = radix.filtered ? p.rows * radix.chunks : radix.sort.grid;
  plan.workspace = radix.bytes;
  plan.traffic = radix.traffic;
  return plan;
}

inline bool topk_radix_fits(const TopkProblem& p) {
  return !p.masked && p.n <= UINT32_MAX && p.rows * divide_up(p.n, 4096) <= INT32_MAX &&
         p.rows * p.k / radix_tuning::kThreads < INT32_MAX;
}

// Where radix beats what else could serve k up to kMaxStreamK. Rows that csrc/sort has in registers
// or shared memory: of at most 512 or 1,024 elements, where a warp's sort costs no more than a
// block's selection; k is a good part of the row, so that a bound lets most of it through; of one
// byte, where ties do. Longer rows: where most vectors have a winner.
inline bool topk_radix_wins(const TopkProblem& p) {
  const int64_t size = dtype_bytes(p.dtype);
  if (p.k > topk_tuning::kMaxStreamK) return true;
  if (p.k <= 8 || p.inner != 1) return false;
  if (p.k * 2 >= p.n && p.n <= 4096) return true;
  if (topk_lanes_win(p) || topk_thread_wins(p)) return false;
  if (p.n <= 1024)  // warps sort
    return p.n <= 32 || (!topk_quick_blocks(p) && (p.n <= 512 || size != 4 || p.k * 8 >= p.n));
  if (p.n <= block_limit(static_cast<int>(size))) {
    const bool longer = p.n > 8192;
    const int share = size == 1   ? 8192
                      : size == 2 ? 8
                      : size == 4 ? (longer ? 2 : 4)
                      : longer    ? 3
                                  : 2;
    return p.k * share >= p.n;
  }
  if (!(size == 1 && (p.k * 64 >= p.n || p.k >= 2048)) &&
      !(size == 2 && p.k >= 2048 && p.rows <= 16))
    return false;
  return plan_radix(p.dtype, p.rows, p.n, p.k, 1, p.index_bits, p.sms).bytes <=
         p.rows * p.n * size / 20 + (16 << 20);
}

inline TopkPlan plan_topk(const TopkProblem& p) {
  namespace t = topk_tuning;
  TopkPlan plan;
  plan.wide = dtype_bytes(p.dtype) == 8 || p.n > UINT32_MAX;
  plan.traffic = p.rows * p.n * dtype_bytes(p.dtype) +
                 p.rows * p.k * (dtype_bytes(p.dtype) + p.index_bits / 8);
  if (p.rows == 0 || p.n == 0 || p.k == 0) return plan;  // grid 0: nothing to launch
  const bool stream_fits = p.k <= t::kMaxStreamK;
  const bool thread_fits = topk_thread_fits(p);
  const bool lanes_fit = p.vectors && topk_lanes(p.n, p.k) > 0;
  switch (p.forced) {
    case TopkAlgo::lanes:
      if (lanes_fit) return plan_topk_lanes(p, plan);
      break;
    case TopkAlgo::thread_row:
      if (thread_fits) return plan_topk_thread(p, plan);
      break;
    case TopkAlgo::block_row:
    case TopkAlgo::split_row:
      if (stream_fits)
        if (const TopkPlan stream = plan_topk_stream(p, plan); stream.threads > 0) return stream;
      break;
    case TopkAlgo::sort:
      if (p.rows * divide_up(p.n, t::kSortTile) <= INT32_MAX) return plan_topk_sort(p, plan);
      break;
    case TopkAlgo::warp_row:
      if (topk_warp_fits(p)) return plan_topk_warp(p, plan);
      break;
    case TopkAlgo::cluster_row:
      if (topk_cluster_blocks(p) > 0) return plan_topk_cluster(p, plan);
      break;
    case TopkAlgo::part_row:
      if (topk_part_fits(p)) return plan_topk_part(p, plan);
      break;
    case TopkAlgo::count_row:
      if (topk_count_fits(p)) return plan_topk_count(p, plan);
      break;
    case TopkAlgo::radix:
      if (topk_radix_fits(p)) return plan_topk_radix(p, plan);
      break;
    default:
      break;
  }
  if (topk_lanes_win(p) && p.k <= 8 && p.rows < 4 * p.sms) return plan_topk_lanes(p, plan);
  if (topk_count_wins(p)) return plan_topk_count(p, plan);
  if (topk_cluster_wins(p)) return plan_topk_cluster(p, plan);
  if (topk_part_wins(p)) return plan_topk_part(p, plan);
  if (topk_warp_wins(p)) return plan_topk_warp(p, plan);
  if (topk_radix_wins(p) && topk_radix_fits(p)) return plan_topk_radix(p, plan);
  if (topk_lanes_win(p)) return plan_topk_lanes(p, plan);
  if (topk_thread_wins(p)) return plan_topk_thread(p, plan);
  if (stream_fits)
    if (const TopkPlan stream = plan_topk_stream(p, plan); stream.threads > 0) return stream;
  return plan_topk_sort(p, plan);
}

}  // namespace gpuprims
