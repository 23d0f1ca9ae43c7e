// Plans for rows that are streamed: block_row and split_row.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>

#include "topk/plan_types.h"

namespace gpuprims {

namespace topk_tuning {
constexpr int kSampleLoads = 4;      // of a block's own sample, a thread
constexpr int kProofVectors = 1024;  // a row's first, whose best prove a bound; of a buffer's size
// More than half of a multiprocessor's shared memory: so much keeps blocks of a split row apart,
// which else crowd where the sample's blocks have left.
constexpr int kHalfMemory = 116 * 1024;
constexpr int kSampleThreads = 256;  // of the kernel that takes a split row's sample,
constexpr int kSampleVectors = 2;    // each thread this many vectors
constexpr int kSampleBlocks = 64;    // at least, of one row
// Elements in all from which the sample's runs are of 4 vectors, not 2: random reads of 32 bytes
// take time then, and below it sorted rows would pay for longer runs.
constexpr int64_t kLongSample = 1 << 25;
constexpr int kKeptBytes = 64;         // a thread, for the vectors that a block lists
constexpr int kMaxSampleBlocks = 512;  // a row
constexpr int kManyGroups =
    1024;  // group maxima of a row where the rank is too high for kMaxGroups
constexpr int64_t kMaxChunk = 1 << 30;  // elements a block, so that positions fit 32 bits
constexpr int kMaxSplits = 1024;        // blocks a row
}  // namespace topk_tuning

// Rank r of the sample such that, of k winners among n elements of which `sample` are seen, hardly
// ever r are seen (mean + `sigmas` standard deviations and some): then the r-th largest seen lies
// below the k-th largest. r = k needs no luck: k elements above a bound prove it.
inline int64_t topk_sample_rank(int64_t k, int64_t n, int64_t sample, int sigmas) {
  const double mean = static_cast<double>(k) * static_cast<double>(sample) / static_cast<double>(n);
  const auto rank = static_cast<int64_t>(std::ceil(mean + sigmas * std::sqrt(mean) + sigmas + 2));
  return std::min(k, rank);
}

inline TopkPlan plan_topk_stream(const TopkProblem& p, TopkPlan plan) {
  namespace t = topk_tuning;
  const int vector = topk_vector(p.dtype);
  const int size = dtype_bytes(p.dtype);
  const bool rare = plan.wide && size < 8;  // rows of 2^32 and more have one kernel,
  const bool floats = p.dtype == Dtype::f32 || p.dtype == Dtype::f16 || p.dtype == Dtype::bf16;
  // what is no such float one or two: few blocks with many loads each
  bool alone = false;  // a block shall have a multiprocessor to itself
  if (p.rows > 2LL * p.sms && p.k <= 128 * t::kSortedItems && p.forced != TopkAlgo::split_row &&
      !rare && (floats || size >= 4)) {
    plan.threads = 128;  // eight blocks a multiprocessor
  } else {
    const int64_t tile = int64_t{512} * plan.unroll * vector;
    // One block a multiprocessor for latency, two for bandwidth.
    alone = (!floats || p.rows > 16 || p.n <= 2 * tile * p.sms / p.rows) && !rare;
    plan.threads = 512;
    if (p.forced != TopkAlgo::block_row && p.n > tile)
      plan.splits = static_cast<int>(std::clamp<int64_t>(
          p.sms * (alone ? 1 : 2) / p.rows, 1,
          std::min<int64_t>(divide_up(p.n, alone ? tile / 8 : tile / 2), t::kMaxSplits)));
    if ((divide_up(p.n, plan.splits) <= tile / 2 || p.rows > p.sms) &&
        p.k <= 256 * t::kSortedItems && floats && !rare)
      plan.threads = 256;
  }
  const int64_t tile = int64_t{plan.threads} * plan.unroll * vector;
  if (p.forced == TopkAlgo::split_row && plan.splits == 1) plan.splits = 2;
  plan.splits = std::max<int>(plan.splits, static_cast<int>(divide_up(p.n, t::kMaxChunk)));
  plan.chunk = round_up(divide_up(p.n, plan.splits), vector * 32);
  plan.splits = static_cast<int>(divide_up(p.n, plan.chunk));
  plan.algo = plan.splits > 1 ? TopkAlgo::split_row : TopkAlgo::block_row;
  if (plan.threads == 512 && !alone && plan.splits > 1)
    plan.unroll = 4;  // which only split rows have
  plan.grid = std::min<int64_t>(p.rows, INT32_MAX / plan.splits) * plan.splits;
  // Room for k and a good deal of candidates, and for the sort of k.
  plan.capacity = std::max(static_cast<int>(p.k) + (plan.threads == 128 ? 1216 : 1600),
                           static_cast<int>(std::bit_ceil<uint64_t>(p.k)));
  if (plan.splits > 1) {
    // One bound a row, from a sample of 1/32 (up to 1/8 of short rows, fewer elements of long
    // ones), and as many groups as can be counted: fewer candidates for the last block.
    const int64_t per_block = int64_t{t::kSampleThreads} * t::kSampleVectors * vector;
    const int64_t blocks = std::clamp<int64_t>(
        divide_up(p.n / 32, per_block), p.rows == 1 ? t::kSampleBlocks : 16, t::kMaxSampleBlocks);
    plan.sample_blocks = static_cast<int>(std::clamp<int64_t>(p.n / 8 / per_block, 1, blocks));
    int threads = 0;
    for (;; plan.sample_blocks *= 2) {
      const int64_t sample = plan.sample_blocks * per_block;
      plan.rank =
          static_cast<int>(t::groups_for(p.k) ? p.k : topk_sample_rank(p.k, p.n, sample, 4));
      plan.groups = t::groups_for(plan.rank) ? t::kMaxGroups : t::kManyGroups;
      threads = plan.sample_blocks * t::kSampleThreads;
      if (plan.groups <= threads && plan.rank * 4LL <= plan.groups * 3LL) break;
      // Too many winners for so small a sample: up to half of the row, or no bound.
      if (4 * sample > p.n || 2 * plan.sample_blocks > t::kMaxSampleBlocks) {
        plan.rank = 0;
        break;
      }
    }
    plan.sample_lanes = 1;
    while (plan.sample_lanes < t::kSampleThreads && plan.groups * plan.sample_lanes * 2 <= threads)
      plan.sample_lanes *= 2;
    plan.maxima = threads / plan.sample_lanes;
    // Room for what the row's last block merges, and for sorted rows, whose winners are all in one
    // block and whose sample says less.
    plan.capacity = std::max(plan.capacity, plan.wide ? 4096 : 6144);
    plan.flush = static_cast<int>(std::max<int64_t>(p.k, 1024));
    plan.retry = plan.rank < p.k || p.masked;
  } else {
    plan.sampled = plan.chunk > tile;
    const int loads = plan.sampled ? t::kSampleLoads : plan.unroll;
    const int64_t seen = std::min<int64_t>(int64_t{plan.threads} * loads * vector, plan.chunk);
    const int64_t rank = topk_sample_rank(p.k, plan.chunk, seen, 3);
    const bool by_warps = plan.threads == 128 && !plan.wide && !plan.sampled && !p.masked;
    const int few = t::groups_for(rank) && by_warps ? t::kMaxGroups : t::groups_for(rank);
    plan.groups = few ? few : rank * 2 <= plan.threads ? plan.threads : plan.threads * loads;
    plan.rank = rank * 4 <= plan.groups * 3LL ? static_cast<int>(rank) : 0;
  }
  plan.capacity = static_cast<int>(round_up(std::max(plan.capacity, plan.groups), 8));
  const int64_t pair = plan.wide ? 16 : 8;
  plan.smem = stream_memory(plan.capacity, p.k, plan.threads, pair);
  const int64_t most = p.smem - t::kBlockBytes;
  if (plan.smem > most) plan.threads = 0;  // too little shared memory for such k
  // Listed vectors stay in shared memory where that keeps no block off the multiprocessor.
  const int64_t kept = int64_t{t::kKeptBytes} * plan.threads;
  const int resident = plan.threads == 128 ? 8 : plan.threads == 256 ? 2 : 1;
  plan.keeps =
      plan.unroll == 8 &&
      resident * (plan.smem + kept + (plan.wide ? t::kBlockBytes : t::kNarrowBytes)) <= p.smem;
  if (plan.keeps) plan.smem += kept;
  if (alone && plan.splits > 1)
    plan.smem = std::max(plan.smem, std::min<int64_t>(most, t::kHalfMemory));
  if (plan.splits > 1)
    plan.workspace = round_up(p.rows * 12, 256) + p.rows * plan.splits * plan.flush * pair +
                     p.rows * plan.maxima * pair;
  return plan;
}

}  // namespace gpuprims
