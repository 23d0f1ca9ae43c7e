// From a problem's sizes to an algorithm, a grid and a workspace: a pure function, so that it can
// be tested and explained without a GPU. All of topk's tuning constants are here.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/dtype.h"

namespace gpuprims {

enum class TopkAlgo : int32_t {
  automatic = 0,
  warp_row = 1,   // a warp a row, keys in registers
  block_row = 2,  // a block a row, one read
  split_row = 3,  // several blocks a row, one read, the last block merges
  sort = 4,       // tiles sorted in shared memory, then merges that keep k: any k
};

constexpr const char* topk_algo_name(TopkAlgo algo) {
  constexpr const char* names[] = {"automatic", "warp_row", "block_row", "split_row", "sort"};
  return names[static_cast<int>(algo)];
}

struct TopkProblem {
  Dtype dtype = Dtype::f32;
  int64_t rows = 1;
  int64_t n = 1;
  int64_t k = 1;
  int sms = 132;
  TopkAlgo forced = TopkAlgo::automatic;
};

struct TopkPlan {
  TopkAlgo algo = TopkAlgo::warp_row;
  int threads = 256;
  int64_t grid = 0;
  bool wide = false;  // 128-bit (key, index) pairs: 8-byte keys, or rows of 2^32 and more
  // warp_row
  int lanes = 0;  // lanes a row, 16 elements each
  // block_row, split_row
  int splits = 1;     // blocks a row
  int64_t chunk = 0;  // elements a block
  int capacity = 0;   // candidates a block's shared memory holds
  int sample = 0;  // elements a block samples for its threshold (0: the chunk fits the first tile)
  int rank = 0;    // the threshold is the rank-th largest of the sampled group maxima
  int groups = 0;  // number of group maxima
  bool shared_threshold = false;  // one threshold a row, from a kernel of its own
  int flush = 0;                  // candidates a block hands to the merge
  // sort
  int tile = 0;
  // all
  int64_t smem = 0;
  int64_t workspace = 0;  // bytes
  int64_t traffic = 0;    // bytes that move through device memory
};

namespace topk_tuning {
constexpr int kMaxStreamK = 4096;  // larger k sort
constexpr int kWarpItems = 16;     // elements a lane of warp_row
constexpr int kUnroll = 4;         // 16-byte loads in flight a thread
constexpr int kGroups = 32;        // warp-sized threshold up to this k...
constexpr int kGroupsMaxK = 24;
constexpr int kSampleBlocks = 128;  // of 256 threads x 8 vectors: the shared threshold's sample
constexpr int kSampleThreads = 256;
constexpr int kSampleVectors = 8;
constexpr int kSampleGroups = kSampleBlocks * kSampleThreads / 32;
constexpr int64_t kSharedThresholdFrom =
    32768;                              // splits * k above which a row's blocks share a threshold
constexpr int64_t kMaxChunk = 1 << 30;  // elements a block, so that positions fit 32 bits
constexpr int kMaxSplits = 1024;        // blocks a row
constexpr int kSortTile = 2048;
}  // namespace topk_tuning

constexpr int topk_vector(Dtype t) { return 16 / dtype_bytes(t); }  // elements a 16-byte load
constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr int64_t divide_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// Rank r of the sample such that, of k winners among n elements of which `sample` are seen, fewer
// than r are seen but for one case in 1e9 (mean + 6 standard deviations + 8): then the r-th largest
// seen lies below the k-th largest. r = k needs no luck: k elements above a threshold prove it.
inline int64_t topk_sample_rank(int64_t k, int64_t n, int64_t sample) {
  const double mean = static_cast<double>(k) * static_cast<double>(sample) / static_cast<double>(n);
  const auto rank = static_cast<int64_t>(std::ceil(mean + 6 * std::sqrt(mean) + 8));
  return std::min(k, rank);
}

// Lanes a row: k must stay below 3/4 of them, or the lanes' best elements bound nothing.
constexpr int topk_lanes(int64_t n, int64_t k) {
  for (int lanes : {8, 16, 32})
    if (n <= lanes * topk_tuning::kWarpItems && k * 4 <= lanes * 3) return lanes;
  return 0;
}

inline TopkPlan plan_topk_warp(const TopkProblem& p, TopkPlan plan) {
  plan.algo = TopkAlgo::warp_row;
  plan.lanes = topk_lanes(p.n, p.k);
  plan.threads = 128;
  plan.grid = divide_up(p.rows, plan.threads / plan.lanes);
  return plan;
}

inline TopkPlan plan_topk_stream(const TopkProblem& p, TopkPlan plan) {
  namespace t = topk_tuning;
  const int vector = topk_vector(p.dtype);
  const int64_t fill = 2LL * p.sms;  // blocks that fill the card
  plan.threads = p.rows >= 4 * fill && p.n <= 65536 ? 256 : 512;
  if (p.rows * 2 <= p.sms && p.n <= 4 * 1024 * vector * p.sms / p.rows) plan.threads = 1024;
  if (plan.wide && dtype_bytes(p.dtype) < 8) plan.threads = 512;
  const int64_t tile = static_cast<int64_t>(plan.threads) * vector * t::kUnroll;
  plan.splits = 1;
  if (p.forced != TopkAlgo::block_row && p.rows < fill) {
    const int64_t most = divide_up(p.n, plan.threads == 1024 ? tile / 2 : tile * 2);
    const int64_t want =
        plan.threads == 1024 ? divide_up(p.sms, p.rows) : std::max<int64_t>(1, fill / p.rows);
    plan.splits =
        static_cast<int>(std::clamp<int64_t>(want, 1, std::min<int64_t>(most, t::kMaxSplits)));
  }
  if (p.forced == TopkAlgo::split_row && plan.splits == 1) plan.splits = 2;
  plan.splits = std::max<int>(plan.splits, static_cast<int>(divide_up(p.n, t::kMaxChunk)));
  plan.chunk = round_up(divide_up(p.n, plan.splits), vector * 32);
  plan.splits = static_cast<int>(divide_up(p.n, plan.chunk));
  plan.algo = plan.splits > 1 ? TopkAlgo::split_row : TopkAlgo::block_row;
  plan.grid = p.rows * plan.splits;
  plan.capacity = static_cast<int>(std::max<int64_t>(2048, p.k + 2048));
  plan.flush = static_cast<int>(std::max<int64_t>(p.k, 128));
  plan.shared_threshold = plan.splits > 1 && plan.splits * p.k > t::kSharedThresholdFrom;
  if (plan.shared_threshold) {
    plan.sample = t::kSampleBlocks * t::kSampleThreads * t::kSampleVectors * vector;
    plan.groups = t::kSampleGroups;
    plan.rank = static_cast<int>(topk_sample_rank(p.k, p.n, plan.sample));
    plan.flush = plan.capacity;
    if (p.n > INT32_MAX || plan.sample * 4LL > p.n || plan.rank * 2 > plan.groups)
      plan.shared_threshold = false;
  }
  if (!plan.shared_threshold) {
    const int64_t seen = std::min(tile, plan.chunk);
    plan.sample = plan.chunk > tile ? static_cast<int>(tile) : 0;
    const int64_t rank = topk_sample_rank(p.k, plan.chunk, seen);
    // Group maxima: 32 a block for small ranks (one warp sorts them), else one a thread, else one a
    // load.
    plan.groups = rank <= t::kGroupsMaxK     ? t::kGroups
                  : rank * 2 <= plan.threads ? plan.threads
                                             : plan.threads * t::kUnroll;
    plan.rank = rank * 4 <= plan.groups * 3 ? static_cast<int>(rank) : 0;
    plan.capacity = std::max(plan.capacity, plan.groups);
  }
  const int64_t pair = plan.wide ? 16 : 8;
  plan.smem = plan.capacity * pair + (plan.capacity + 1) / 2 * 4;
  if (plan.splits > 1) {
    plan.workspace = round_up(p.rows * plan.splits * plan.flush * pair, 256) +
                     round_up(p.rows * plan.splits * 4, 256) + round_up(p.rows * 8, 256) +
                     (plan.shared_threshold ? p.rows * plan.groups * pair : 0);
  }
  return plan;
}

inline TopkPlan plan_topk_sort(const TopkProblem& p, TopkPlan plan) {
  plan.algo = TopkAlgo::sort;
  plan.tile = topk_tuning::kSortTile;
  plan.threads = 512;
  plan.splits = static_cast<int>(divide_up(p.n, plan.tile));
  plan.grid = p.rows * plan.splits;
  const int64_t pair = plan.wide ? 16 : 8;
  plan.smem = plan.tile * pair;
  plan.workspace = 2 * round_up(p.rows * p.n * pair, 256);
  return plan;
}

inline TopkPlan plan_topk(const TopkProblem& p) {
  namespace t = topk_tuning;
  TopkPlan plan;
  plan.wide = dtype_bytes(p.dtype) == 8 || p.n > UINT32_MAX;
  plan.traffic = p.rows * p.n * dtype_bytes(p.dtype) + p.rows * p.k * (dtype_bytes(p.dtype) + 8);
  if (p.rows == 0 || p.n == 0 || p.k == 0) return plan;  // grid 0: nothing to launch
  const bool warp_fits = topk_lanes(p.n, p.k) > 0;
  const bool stream_fits = p.k <= t::kMaxStreamK;
  switch (p.forced) {
    case TopkAlgo::warp_row:
      if (warp_fits) return plan_topk_warp(p, plan);
      break;
    case TopkAlgo::block_row:
    case TopkAlgo::split_row:
      if (stream_fits) return plan_topk_stream(p, plan);
      break;
    case TopkAlgo::sort:
      return plan_topk_sort(p, plan);
    default:
      break;
  }
  if (warp_fits) return plan_topk_warp(p, plan);
  if (stream_fits) return plan_topk_stream(p, plan);
  return plan_topk_sort(p, plan);
}

}  // namespace gpuprims
