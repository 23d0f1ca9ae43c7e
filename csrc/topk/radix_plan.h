// Large k: the k best of a row found by radix select and kept in index order (filter.cu), then
// sorted by csrc/sort; or, where k is a good part of the row, the row sorted as it is. A pure
// function of sizes, as plan.h, which decides when this is for.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/dtype.h"
#include "sort/plan.h"

namespace gpuprims {

namespace radix_tuning {
constexpr int kThreads = 512;
constexpr int kItems = 16;                  // elements a thread of the kernel that writes
constexpr int kTile = kThreads * kItems;    // elements
constexpr int kDigitBits = 11;              // of a key, at a time
constexpr int kBins = 1 << kDigitBits;      // 8 KB of shared memory
constexpr int kBlocksPerSm = 4;             // by threads
constexpr int kFewN = 8192, kFewRows = 16;  // filtered though a block could sort them
constexpr int kShare = 2;                   // rows are filtered where k is at most n / kShare
}  // namespace radix_tuning

// A row's state between the passes.
struct FilterRow {
  uint64_t prefix = 0;  // the k-th best key, without its last `shift` bits
  uint32_t rest = 0;    // how many of the elements with that prefix are among the best
  int32_t shift = 0;
  int32_t found = 0;     // no more passes: all of them are, or the prefix is the whole key
  uint32_t arrived = 0;  // blocks that have finished the pass
};

struct RadixPlan {
  bool filtered = false;
  int bins = 0;        // a row
  int64_t chunk = 0;   // elements a block
  int64_t chunks = 1;  // blocks a row
  int64_t sorted_n = 0;
  int64_t keep = 0;     // of each row, by a sort that can leave out the others; 0: it sorts all
  SortPlan sort;        // of rows of sorted_n
  bool spread = false;  // sorted values and positions go to workspace first, as [rows, sorted_n]
  // Bytes from the start of the workspace: what the filter clears first; its counts; the best k of
  // each row and where they were; sorted values and positions; the sort's own.
  int64_t bins_at = 0, counts_at = 0, values_at = 0, columns_at = 0, sorted_at = 0,
          positions_at = 0, sort_at = 0, bytes = 0;
  int64_t traffic = 0;
};

// The sort of a plan's rows, by descending or ascending keys.
inline SortProblem radix_sort_problem(Dtype dtype, int64_t rows, int64_t n, int index_bits,
                                      int sms) {
  SortProblem p;
  p.dtype = dtype, p.rows = rows, p.n = n, p.index_bits = index_bits, p.sms = sms;
  p.end_bit = dtype_bytes(dtype) * 8;
  return p;
}

// inner: as in TopkArgs; where it is not 1, results are spread out at the end.
inline RadixPlan plan_radix(Dtype dtype, int64_t rows, int64_t n, int64_t k, int64_t inner,
                            int index_bits, int sms) {
  namespace t = radix_tuning;
  const int64_t size = dtype_bytes(dtype), bits = size * 8;
  RadixPlan plan;
  // A block that sorts a long row is slow, but where there are many.
  plan.filtered = k <= n / t::kShare && (n > block_limit(static_cast<int>(size)) ||
                                         (size > 1 && n >= t::kFewN && rows <= t::kFewRows));
  plan.sorted_n = plan.filtered ? k : n;
  plan.sort = plan_sort(radix_sort_problem(dtype, rows, plan.sorted_n, index_bits, sms));
  const bool cut = plan.sorted_n > k;
  if (cut && plan.sort.algo != SortAlgo::sweep) plan.keep = k;
  plan.spread = inner != 1 || (cut && plan.keep == 0);
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t start = at;
    at = sort_round_up(at + bytes, 256);
    return start;
  };
  if (plan.filtered) {
    plan.bins = 1 << std::min<int64_t>(bits, t::kDigitBits);
    const int64_t tiles = sort_divide_up(n, t::kTile);
    const int64_t share = std::clamp<int64_t>(tiles * rows / (t::kBlocksPerSm * sms), 1, tiles);
    plan.chunk = share * t::kTile;
    plan.chunks = sort_divide_up(n, plan.chunk);
    take(rows * static_cast<int64_t>(sizeof(FilterRow)));
    plan.bins_at = take(rows * plan.bins * 4);
    plan.counts_at = take(rows * plan.chunks * 8);
    plan.values_at = take(rows * k * size);
    plan.columns_at = take(rows * k * 4);
    plan.traffic = rows * n * size * ((bits + t::kDigitBits - 1) / t::kDigitBits + 2);
  }
  if (plan.spread) {
    const int64_t wide = plan.keep ? k : plan.sorted_n;
    plan.sorted_at = take(rows * wide * size);
    plan.positions_at = take(rows * wide * index_bits / 8);
  }
  plan.sort_at = at;
  plan.bytes = at + plan.sort.workspace;
  plan.traffic += plan.sort.traffic;
  return plan;
}

}  // namespace gpuprims
