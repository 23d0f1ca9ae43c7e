// What a plan is made from and of, and all of topk's tuning constants.
#pragma once
#include <cstdint>

#include "common/dtype.h"

namespace gpuprims {

enum class TopkAlgo : int32_t {
  automatic = 0,
  block_row = 1,    // a block a row, one read
  split_row = 2,    // several blocks a row, one read, the last block merges
  sort = 3,         // tiles sorted in shared memory, then merges that keep k: any k, any mask
  thread_row = 4,   // a thread a short row, or 2, 4, 8; rows in shared memory
  radix = 5,        // the best k by radix select where they are a small part, then csrc/sort: any k
  lanes = 6,        // part of a warp a short row in registers: the largest of floats
  count_row = 7,    // few short rows: ranks by counting better elements
  warp_row = 8,     // a warp a row of some thousand elements: the largest of floats
  cluster_row = 9,  // a block a row, or a cluster of them, few rows: the largest of floats
  part_row = 10,    // several blocks a row, no bound from elsewhere: the largest of floats
};
constexpr int kTopkAlgos = 11;

constexpr const char* topk_algo_name(TopkAlgo algo) {
  constexpr const char* names[] = {"automatic",  "block_row",   "split_row", "sort",
                                   "thread_row", "radix",       "lanes",     "count_row",
                                   "warp_row",   "cluster_row", "part_row"};
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
  bool vectors = false;  // rows are whole, aligned vectors of float32/16, the largest are wanted,
                         // nothing is masked or strided
};

struct TopkPlan {
  TopkAlgo algo = TopkAlgo::thread_row;
  int threads = 256;
  int unroll = 8;  // block_row, split_row, part_row: 16-byte loads in flight a thread
  int64_t grid = 0;
  bool wide = false;  // 128-bit (key, index) pairs: 8-byte keys, or rows of 2^32 and more
  // lanes, thread_row
  int lanes = 0;  // lanes a row; in `lanes` of 16 elements each
  // block_row, split_row
  int splits = 1;         // blocks a row; of count_row, too
  int64_t chunk = 0;      // elements a block
  int capacity = 0;       // candidates a block's shared memory holds
  bool sampled = false;   // the chunk is longer than a tile: a sample of that size is read first
  int rank = 0;           // the threshold is the rank-th largest of the sampled group maxima
  int groups = 0;         // number of group maxima
  int sample_blocks = 0;  // of a split row's sample
  int sample_lanes = 0;   // lanes whose best makes one number of the sample
  int maxima = 0;         // such numbers a row
  bool retry = false;     // the row's bound may be too high: a second kernel looks
  bool keeps = false;     // listed vectors stay in shared memory
  int flush = 0;          // candidates a block hands to the merge
  // sort; count_row: elements a block ranks
  int tile = 0;
  // radix
  bool filtered = false;  // only the best k are sorted
  // all
  int64_t smem = 0;
  int64_t workspace = 0;  // bytes
  int64_t traffic = 0;    // bytes that move through device memory
};

namespace topk_tuning {
constexpr int kMaxStreamK = 4096;       // larger k sort
constexpr int kLaneItems = 16;          // elements a lane of `lanes`
constexpr int kBlockBytes = 8 * 1024;   // at least what BlockMemory takes beside that
constexpr int kNarrowBytes = 4 * 1024;  // the same for 64-bit pairs, with what the system takes
constexpr int kSortedItems = 8;         // pairs a thread that a block can sort: limits k
constexpr int kMaxGroups = 128;         // group maxima ranked by counting; more are radix-selected
constexpr int kSortTile = 2048;
constexpr int kLanesFrom = 128;          // elements a row, from which lanes beats thread_row,
constexpr int kLanesRows = 8192;         // and rows below which it does from 33
constexpr int kLanesMaxN = 512;          // and above which warp_row serves many rows
constexpr int kThreadMaxN = 1024;        // elements a row of thread_row,
constexpr int kThreadFewN = 512;         // and where there are few rows
constexpr int kThreadMaxK = 16;          // winners, which a lane keeps in registers
constexpr int kThreadLanes = 8;          // most lanes a row
constexpr int kThreadTile = 20 * 1024;   // bytes of shared memory a warp: 11 are resident
constexpr int kThreadWarps = 12;         // warps a multiprocessor, below which rows are shared out
constexpr int kThreadShare = 256;        // most elements a lane: a byte in its list
constexpr int kThreadElements = 16;      // elements worth a lane
constexpr int kWarpThreads = 128;        // a block of warp_row
constexpr int kWarpLoads = 8;            // in flight a thread
constexpr int kWarpVectors = 1024;       // the longest row
constexpr int kWarpK = 32;               // the most winners
constexpr int kWarpPairs = 64 + 32 * 8;  // candidates that a warp has room for, and a last 0
constexpr int kClusterThreads = 512;     // a block of cluster_row,
constexpr int kClusterFew = 8;           // vectors that a thread keeps,
constexpr int kClusterVectors = 16;      // or the most of which it keeps the bests,
constexpr int kClusterPairs = 2048;      // room for candidates,
constexpr int kClusterBlocks = 8;        // and the most blocks a row
constexpr int64_t kClusterMemory = 200 * 1024;  // that a block may ask for where there are clusters
constexpr int kCountThreads = 256;              // a block of count_row,
constexpr int kCountMaxN = 4096;                // the longest row
// Comparisons up to which count_row wins: against sorts of longer and of shorter rows, and of 1 and
// 2 bytes; against kernels that look for few winners, and for those of 8 bytes or up to 16.
constexpr int64_t kCountLong = 35'000'000, kCountShort = 20'000'000, kCountSmall = 16'000'000;
constexpr int64_t kCountQuick = 4'000'000, kCountWide = 10'000'000;

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

// Bytes of shared memory behind BlockMemory: pairs and their positions, 4 words a thread, positions
// of the best k.
constexpr int64_t stream_memory(int64_t capacity, int64_t k, int threads, int64_t pair) {
  return capacity * (pair + 2) + threads * 16 + round_up(k * 2, 16);
}

}  // namespace gpuprims
