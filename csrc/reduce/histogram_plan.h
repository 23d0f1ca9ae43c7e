// From sizes to a grid: a pure function.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/dtype.h"

namespace gpuprims {

struct HistogramPlan {
  int copies = 0;  // of the counts in a block's shared memory; 0: counted in global memory
  int64_t blocks = 0;
  size_t smem = 0;
};

namespace histogram_tuning {
constexpr int kThreads = 512;
constexpr int kBlocksPerSm = 4;
constexpr int64_t kSmem = 48 << 10;  // of a block, so that four fit
constexpr int64_t kMostSmem =
    200 << 10;                      // where there are many bins, of one block a multiprocessor
constexpr int kMostCopies = 8;      // warps that count into different copies do not collide
constexpr int64_t kEach = 1 << 14;  // bytes of input that are worth a block
}  // namespace histogram_tuning

inline HistogramPlan plan_histogram(Dtype dtype, int64_t n, int64_t bins, int sms, int smem) {
  namespace t = histogram_tuning;
  HistogramPlan plan;
  const int64_t bytes = bins * 4, most = std::min<int64_t>(t::kMostSmem, smem);
  int64_t per_sm = t::kBlocksPerSm;
  if (bytes <= t::kSmem) {
    plan.copies = static_cast<int>(std::clamp<int64_t>(t::kSmem / bytes / 2, 1, t::kMostCopies));
  } else if (bytes <= most && n >= 8 * bins) {
    plan.copies = 1;
    per_sm = std::max<int64_t>(most / bytes, 1);
  }
  plan.smem = static_cast<size_t>(plan.copies * bytes);
  const int64_t wanted = (n * dtype_bytes(dtype) + t::kEach - 1) / t::kEach;
  // A block's counts are 32 bits.
  const int64_t least = n / (int64_t{1} << 31) + 1;
  plan.blocks = std::max(std::clamp<int64_t>(wanted, 1, sms * per_sm), least);
  return plan;
}

}  // namespace gpuprims
