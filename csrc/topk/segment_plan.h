// From sizes to lists, grids and workspace of segment_topk: a pure function, as plan.h. Lengths are
// on the device, so the plan makes room for any: kernels find their work in lists.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "topk/plan_types.h"

namespace gpuprims {

namespace segment_tuning {
constexpr int kPassSlots = 4096;  // slots filled in one pass over the segments; larger k take more
constexpr int kBoundK = 24;       // the k-th best of 32 lanes is a useful bound up to here
constexpr int kLongest = 512;     // elements a warp keeps in registers
constexpr int kMediumThreads = 128, kItemThreads = 512;
constexpr int64_t kMedium = 8192;        // segments up to this are worth a block of 128, not of 512
constexpr int64_t kChunk = 1 << 15;      // least elements a chunk of a long segment,
constexpr int64_t kMostChunk = 1 << 18;  // and most, where k does not ask for more
constexpr int kFanPairs = 1 << 16;       // pairs a block merges in one round
constexpr int kHeader = 64;              // bytes of SegmentHeader
}  // namespace segment_tuning

constexpr int64_t kNoLongSegments = 2, kShortSegments = 4;  // bits of `promises`
constexpr int64_t kLongSegment = 65536, kShortSegment = 128;

struct SegmentProblem {
  Dtype dtype = Dtype::f32;
  int64_t n = 0;
  int64_t segments = 0;
  int64_t k = 0;
  int sms = 132;
  int smem = 227 << 10;   // most that a block may ask for
  bool must_look = true;  // offsets or counts that nobody has looked at
  int64_t promises = 0;
};

struct SegmentPlan {
  bool wide = false;     // 128-bit (key, index) pairs
  bool prepare = false;  // offsets are looked at, lists are made
  int width = 0;         // slots a pass
  int64_t passes = 0;    // 0: nothing to launch
  // a warp for each segment of at most `small` elements, several at once where they have 32 or
  // fewer
  int small = 0;
  int group = 1;  // consecutive segments a warp
  int64_t small_blocks = 0;
  // list `medium`: blocks of 128
  int64_t medium_limit = 0;  // longest
  int64_t medium = 0;        // room in the list; 0: there can be none
  int medium_blocks = 0;
  int medium_capacity = 0;  // pairs in shared memory
  // lists `big` and `chunks`: blocks of 512
  int64_t big = 0;
  int64_t chunk = 0;   // segments of twice as many elements are cut
  int64_t chunks = 0;  // room in the list
  int item_blocks = 0;
  int capacity = 0;
  // the best pairs of chunks meet in rounds, `fan` lists at a time
  int fan = 0;
  int rounds = 0;
  // workspace, in bytes from its start
  int64_t reset = 0;  // header and bounds: zeroed
  int64_t chunks_at = 0, big_at = 0, medium_at = 0, pairs_at = 0, ceilings_at = 0;
  int64_t workspace = 0;
  int64_t traffic = 0;  // bytes, at least
};

inline SegmentPlan plan_segment_topk(const SegmentProblem& p) {
  namespace t = segment_tuning;
  SegmentPlan plan;
  const int bytes = dtype_bytes(p.dtype);
  plan.wide = bytes == 8 || p.n > UINT32_MAX;
  plan.traffic = p.n * bytes + p.segments * (8 + p.k * (bytes + 8));
  if (p.segments == 0 || p.k == 0) return plan;
  plan.width = static_cast<int>(std::min<int64_t>(p.k, t::kPassSlots));
  plan.passes = divide_up(std::min(p.k, std::max<int64_t>(p.n, 1)), t::kPassSlots);
  // Without a bound ranks are counted among all: n^2 / 32 steps. The list of what is longer must
  // stay below 1/32 of the input.
  plan.small = p.k < t::kBoundK ? t::kLongest : bytes == 1 ? 320 : 160;
  plan.group = static_cast<int>(std::clamp<int64_t>(divide_up(p.segments, p.sms * 32LL), 1, 32));
  plan.small_blocks = std::min<int64_t>(divide_up(divide_up(p.segments, plan.group), 4), INT32_MAX);
  const bool lists = p.n > plan.small && !(p.promises & kShortSegments);
  plan.prepare = p.must_look || lists;
  if (!plan.prepare) return plan;
  plan.reset = t::kHeader;
  plan.workspace = plan.reset;
  if (!lists) return plan;

  const bool rare = bytes == 1 || (plan.wide && bytes < 8);  // blocks of 512 alone: fewer kernels
  const bool blocks_of_128 = plan.width <= 8 * t::kMediumThreads && !rare;  // 8 pairs a thread
  const int pair = plan.wide ? 16 : 8;
  plan.medium_limit = blocks_of_128 ? t::kMedium : plan.small;
  if (blocks_of_128) plan.medium = p.n / (plan.small + 1);
  plan.big = p.n / (plan.medium_limit + 1);
  plan.chunk = std::clamp<int64_t>(p.n / (p.sms * 8LL), t::kChunk, t::kMostChunk);
  // Room for the pairs of all chunks is at most 1/48 of the input.
  plan.chunk = round_up(std::max(plan.chunk, int64_t{48} * pair * plan.width / bytes), 1024);
  const bool cuts = p.n >= 2 * plan.chunk && !(p.promises & kNoLongSegments);
  plan.chunks = cuts ? p.n / plan.chunk : 0;
  const int power = static_cast<int>(std::bit_ceil(static_cast<unsigned>(plan.width)));
  plan.medium_capacity = static_cast<int>(round_up(std::max(plan.width + 1024, power), 8));
  // Two blocks a multiprocessor; one where a block may ask for 99 KB alone.
  const int most = !plan.wide ? 7680 : p.smem >= 128 << 10 ? 5120 : 4352;
  plan.capacity = std::max(plan.width <= 1024 ? 4096 : most, power);
  plan.medium_blocks = static_cast<int>(std::min<int64_t>(plan.medium, p.sms * 12LL));
  plan.item_blocks = static_cast<int>(std::min<int64_t>(plan.big + plan.chunks, p.sms * 2LL));
  if (plan.chunks > 0) {
    plan.fan = std::max(2, t::kFanPairs / plan.width);
    for (int64_t lists_left = plan.chunks; lists_left > 1 || plan.rounds == 0; ++plan.rounds)
      lists_left = divide_up(lists_left, plan.fan);
  }
  plan.reset += round_up(plan.chunks * 8, 64);
  plan.chunks_at = plan.reset;
  plan.big_at = plan.chunks_at + plan.chunks * 16;
  plan.medium_at = plan.big_at + plan.big * 8;
  plan.pairs_at = round_up(plan.medium_at + plan.medium * 8, 256);
  plan.ceilings_at = plan.pairs_at + plan.chunks * plan.width * pair;
  plan.workspace = plan.ceilings_at + (plan.passes > 1 ? p.segments * pair : 0);
  return plan;
}

}  // namespace gpuprims
