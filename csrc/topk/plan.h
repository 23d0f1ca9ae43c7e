// From a problem's sizes to an algorithm, a grid and a workspace: a pure function, so that it can
// be tested and explained without a GPU. All of topk's tuning constants are here.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "common/dtype.h"
#include "topk/radix_plan.h"

namespace gpuprims {

enum class TopkAlgo : int32_t {
  automatic = 0,
  warp_row = 1,    // a warp a row, keys in registers
  block_row = 2,   // a block a row, one read
  split_row = 3,   // several blocks a row, one read, the last block merges
  sort = 4,        // tiles sorted in shared memory, then merges that keep k: any k, any mask
  thread_row = 5,  // a thread a short row, or 2, 4, 8; rows in shared memory
  radix = 6,       // the best k by radix select where they are a small part, then csrc/sort: any k
};
constexpr int kTopkAlgos = 7;

constexpr const char* topk_algo_name(TopkAlgo algo) {
  constexpr const char* names[] = {"automatic", "warp_row", "block_row",
                                   "split_row", "sort",     "thread_row", "radix"};
  return names[static_cast<int>(algo)];
}

struct TopkProblem {
  Dtype dtype = Dtype::f32;
  int64_t rows = 1;
  int64_t n = 1;
  int64_t k = 1;
  int sms = 132;
  TopkAlgo forced = TopkAlgo::automatic;
  bool masked = false;
  int64_t smem = 227 << 10;  // most shared memory a block may ask for
  int64_t inner = 1;         // as in TopkArgs
  int index_bits = 64;
};

struct TopkPlan {
  TopkAlgo algo = TopkAlgo::warp_row;
  int threads = 256;
  int unroll = 8;  // block_row, split_row: 16-byte loads in flight a thread
  int64_t grid = 0;
  bool wide = false;  // 128-bit (key, index) pairs: 8-byte keys, or rows of 2^32 and more
  // warp_row, thread_row
  int lanes = 0;  // lanes a row; in warp_row of 16 elements each
  // block_row, split_row
  int splits = 1;         // blocks a row
  int64_t chunk = 0;      // elements a block
  int capacity = 0;       // candidates a block's shared memory holds
  bool sampled = false;   // the chunk is longer than a tile: a sample of that size is read first
  int rank = 0;           // the threshold is the rank-th largest of the sampled group maxima
  int groups = 0;         // number of group maxima
  int sample_blocks = 0;  // of a split row's sample
  int sample_lanes = 0;   // lanes whose best makes one number of the sample
  int maxima = 0;         // such numbers a row
  bool retry = false;     // the row's bound may be too high: a second kernel looks
  int flush = 0;          // candidates a block hands to the merge
  // sort
  int tile = 0;
  // radix
  bool filtered = false;  // only the best k are sorted
  // all
  int64_t smem = 0;
  int64_t workspace = 0;  // bytes
  int64_t traffic = 0;    // bytes that move through device memory
};

namespace topk_tuning {
constexpr int kMaxStreamK = 4096;  // larger k sort
constexpr int kWarpItems = 16;     // elements a lane of warp_row
constexpr int kSampleLoads = 4;    // of a block's own sample, a thread
// More than half of a multiprocessor's shared memory: so much keeps blocks of a split row apart,
// which else crowd where the sample's blocks have left.
constexpr int kHalfMemory = 116 * 1024;
constexpr int kBlockBytes = 8 * 1024;  // at least what BlockMemory takes beside that
constexpr int kSortedItems = 8;        // pairs a thread that a block can sort: limits k
constexpr int kMaxGroups = 128;        // group maxima ranked by counting; more are radix-selected
constexpr int kSampleThreads = 256;    // of the kernel that takes a split row's sample,
constexpr int kSampleVectors = 2;      // each thread this many vectors
constexpr int kMaxSampleBlocks = 512;  // a row
constexpr int kManyGroups =
    1024;  // group maxima of a row where the rank is too high for kMaxGroups
constexpr int64_t kMaxChunk = 1 << 30;  // elements a block, so that positions fit 32 bits
constexpr int kMaxSplits = 1024;        // blocks a row
constexpr int kSortTile = 2048;
constexpr int kThreadMaxN = 1024;       // elements a row of thread_row
constexpr int kThreadMaxK = 16;         // winners, which a lane keeps in registers
constexpr int kThreadLanes = 8;         // most lanes a row
constexpr int kThreadTile = 20 * 1024;  // bytes of shared memory a warp: 11 are resident
constexpr int kThreadWarps = 12;        // warps a multiprocessor, below which rows are shared out
constexpr int kThreadShare = 256;       // most elements a lane: a byte in its list
constexpr int kThreadElements = 16;     // elements worth a lane

// Groups of which the want-th best is a useful bound, or 0. Few groups are quick to rank; of more,
// the same rank leaves fewer candidates.
constexpr int groups_for(int64_t want) {
  for (int groups : {32, 64})
    if (want * 3 <= groups * 2) return groups;
  return want * 4 <= kMaxGroups * 3 ? kMaxGroups : 0;
}
}  // namespace topk_tuning

constexpr int topk_vector(Dtype t) { return 16 / dtype_bytes(t); }  // elements a 16-byte load
constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr int64_t divide_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// Rank r of the sample such that, of k winners among n elements of which `sample` are seen, hardly
// ever r are seen (mean + `sigmas` standard deviations and some): then the r-th largest seen lies
// below the k-th largest. r = k needs no luck: k elements above a bound prove it.
inline int64_t topk_sample_rank(int64_t k, int64_t n, int64_t sample, int sigmas) {
  const double mean = static_cast<double>(k) * static_cast<double>(sample) / static_cast<double>(n);
  const auto rank = static_cast<int64_t>(std::ceil(mean + sigmas * std::sqrt(mean) + sigmas + 2));
  return std::min(k, rank);
}

// Bytes of shared memory behind BlockMemory: pairs and their positions, 4 words a thread, positions
// of the best k.
constexpr int64_t stream_memory(int64_t capacity, int64_t k, int threads, int64_t pair) {
  return capacity * (pair + 2) + threads * 16 + round_up(k * 2, 16);
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
  plan.grid = std::min<int64_t>(divide_up(p.rows, plan.threads / plan.lanes), INT32_MAX);
  return plan;
}

// Rows for which thread_row is: short ones, and enough of them that latency does not matter.
inline bool topk_thread_fits(const TopkProblem& p) {
  return p.n <= topk_tuning::kThreadMaxN && p.k <= topk_tuning::kThreadMaxK;
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

inline TopkPlan plan_topk_stream(const TopkProblem& p, TopkPlan plan) {
  namespace t = topk_tuning;
  const int vector = topk_vector(p.dtype);
  const bool rare = plan.wide && dtype_bytes(p.dtype) < 8;  // rows of 2^32 and more have one kernel
  bool alone = false;  // a block shall have a multiprocessor to itself
  if (p.rows > 2LL * p.sms && p.k <= 128 * t::kSortedItems && p.forced != TopkAlgo::split_row &&
      !rare) {
    plan.threads = 128;  // eight blocks a multiprocessor
  } else {
    const int64_t tile = 512LL * 8 * vector;
    // One block a multiprocessor for latency, two for bandwidth.
    alone = (p.rows > 16 || p.n <= 2 * tile * p.sms / p.rows) && !rare;
    plan.threads = 512;
    if (p.forced != TopkAlgo::block_row && p.n > tile)
      plan.splits = static_cast<int>(std::clamp<int64_t>(
          p.sms * (alone ? 1 : 2) / p.rows, 1,
          std::min<int64_t>(divide_up(p.n, alone ? tile / 8 : tile / 2), t::kMaxSplits)));
    if ((divide_up(p.n, plan.splits) <= tile / 2 || p.rows > p.sms) &&
        p.k <= 256 * t::kSortedItems && !rare)
      plan.threads = 256;
  }
  const int64_t tile = int64_t{plan.threads} * 8 * vector;
  if (p.forced == TopkAlgo::split_row && plan.splits == 1) plan.splits = 2;
  plan.splits = std::max<int>(plan.splits, static_cast<int>(divide_up(p.n, t::kMaxChunk)));
  plan.chunk = round_up(divide_up(p.n, plan.splits), vector * 32);
  plan.splits = static_cast<int>(divide_up(p.n, plan.chunk));
  plan.algo = plan.splits > 1 ? TopkAlgo::split_row : TopkAlgo::block_row;
  if (plan.threads == 512 && !alone && plan.splits > 1)
    plan.unroll = 4;  // which only split rows have
  plan.grid = std::min<int64_t>(p.rows, INT32_MAX / plan.splits) * plan.splits;
  // Room for k and a good deal of candidates, and for the sort of k. Not more: what shared memory
  // takes, the L1 cache lacks, and with it loads in flight.
  plan.capacity = std::max(static_cast<int>(p.k) + (plan.threads == 128 ? 1216 : 1600),
                           static_cast<int>(std::bit_ceil<uint64_t>(p.k)));
  if (plan.splits > 1) {
    // One bound a row, from a sample of 1/32 (at most 1/8 of short rows, fewer elements of long
    // ones).
    const int64_t per_block = int64_t{t::kSampleThreads} * t::kSampleVectors * vector;
    const int64_t blocks =
        std::clamp<int64_t>(divide_up(p.n / 32, per_block), 16, t::kMaxSampleBlocks);
    plan.sample_blocks = static_cast<int>(std::clamp<int64_t>(p.n / 8 / per_block, 1, blocks));
    const int64_t sample = plan.sample_blocks * per_block;
    plan.rank = static_cast<int>(t::groups_for(p.k) ? p.k : topk_sample_rank(p.k, p.n, sample, 4));
    plan.groups = t::groups_for(plan.rank) ? t::groups_for(plan.rank) : t::kManyGroups;
    const int threads = plan.sample_blocks * t::kSampleThreads;
    if (plan.groups > threads || plan.rank * 4LL > plan.groups * 3LL) plan.rank = 0;
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
  if (alone && plan.splits > 1)
    plan.smem = std::max(plan.smem, std::min<int64_t>(most, t::kHalfMemory));
  if (plan.splits > 1)
    plan.workspace = round_up(p.rows * 12, 256) + p.rows * plan.splits * plan.flush * pair +
                     p.rows * plan.maxima * pair;
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

inline TopkPlan plan_topk_radix(const TopkProblem& p, TopkPlan plan) {
  const RadixPlan radix =
      plan_radix(p.dtype, p.rows, p.n, p.k, p.inner, p.index_bits, p.sms);
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
// or shared memory: k is a good part of the row, so that a bound lets most of it through; of one
// byte, where ties do; and of at most 256 elements, where a block a row is too much. Longer rows:
// where most vectors have a winner.
inline bool topk_radix_wins(const TopkProblem& p) {
  const int64_t size = dtype_bytes(p.dtype);
  if (p.k > topk_tuning::kMaxStreamK) return true;
  if (p.k <= 8 || p.inner != 1) return false;
  if (p.k * 2 >= p.n && p.n <= 4096) return true;
  if (topk_lanes(p.n, p.k) || topk_thread_fits(p)) return false;
  if (p.n <= block_limit(size == 8)) {
    const int share = size == 1 ? 8192 : size == 8 ? 2 : size == 2 || p.n <= 512 ? 8 : 4;
    return p.n <= 256 || p.k * share >= p.n;
  }
  if (!(size == 1 && p.k * 64 >= p.n) && !(size == 2 && p.k >= 2048 && p.rows <= 16)) return false;
  return plan_radix(p.dtype, p.rows, p.n, p.k, 1, p.index_bits, p.sms).bytes <=
         p.rows * p.n * size / 20 + (16 << 20);
}

inline TopkPlan plan_topk(const TopkProblem& p) {
  namespace t = topk_tuning;
  TopkPlan plan;
  plan.wide = dtype_bytes(p.dtype) == 8 || p.n > UINT32_MAX;
  plan.traffic = p.rows * p.n * dtype_bytes(p.dtype) + p.rows * p.k * (dtype_bytes(p.dtype) + 8);
  if (p.rows == 0 || p.n == 0 || p.k == 0) return plan;  // grid 0: nothing to launch
  const bool warp_fits = topk_lanes(p.n, p.k) > 0;
  const bool stream_fits = p.k <= t::kMaxStreamK;
  const bool thread_fits = topk_thread_fits(p);
  switch (p.forced) {
    case TopkAlgo::thread_row:
      if (thread_fits) return plan_topk_thread(p, plan);
      break;
    case TopkAlgo::warp_row:
      if (warp_fits) return plan_topk_warp(p, plan);
      break;
    case TopkAlgo::block_row:
    case TopkAlgo::split_row:
      if (stream_fits)
        if (const TopkPlan stream = plan_topk_stream(p, plan); stream.threads > 0) return stream;
      break;
    case TopkAlgo::sort:
      if (p.rows * divide_up(p.n, t::kSortTile) <= INT32_MAX) return plan_topk_sort(p, plan);
      break;
    case TopkAlgo::radix:
      if (topk_radix_fits(p)) return plan_topk_radix(p, plan);
      break;
    default:
      break;
  }
  if (topk_radix_wins(p) && topk_radix_fits(p)) return plan_topk_radix(p, plan);
  if (thread_fits && (p.rows >= 4 * p.sms || (!warp_fits && p.n <= 512)))
    return plan_topk_thread(p, plan);
  if (warp_fits) return plan_topk_warp(p, plan);
  if (stream_fits)
    if (const TopkPlan stream = plan_topk_stream(p, plan); stream.threads > 0) return stream;
  return plan_topk_sort(p, plan);
}

}  // namespace gpuprims
