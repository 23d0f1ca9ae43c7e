// How many buckets approx_topk needs for a recall target: a pure function. Two stages (Chern et
// al., 2022; Samaga et al., arXiv 2506.04165): the best `keep` of each of B buckets of columns j
// mod B, then the best k of those. The winners fall into buckets like a hypergeometric draw, and
// what is lost is what a bucket holds beyond `keep`.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/dtype.h"

namespace gpuprims {

// Stage 1 of the rows of a dense input: the candidates' values, [rows, keep * buckets], and their
// columns, int32. Stage 2 replaces positions among the candidates by those columns, in place.
struct ApproxArgs {
  const void* input = nullptr;
  void* values = nullptr;
  int32_t* columns = nullptr;
  int64_t rows = 0;
  int64_t n = 0;
  int64_t buckets = 0;
  int keep = 0;
  Dtype dtype = Dtype::f32;
  bool largest = true;
};

struct ApproxPlan {
  int64_t buckets = 0;  // 0: the exact path
  int keep = 0;         // of each bucket
  double recall = 1;    // expected
  int64_t candidates() const { return buckets * keep; }
};

enum class ApproxMode : int32_t {
  automatic = 0,
  exact = 1,    // never two stages
  buckets = 2,  // two stages wherever the kernels can, also where topk is as fast
};

namespace approx_tuning {
// Where two stages win: a bound lets through so much that topk is busy with candidates, and not
// with reading, which neither can spare.
constexpr int64_t kWinsK = 256;
constexpr int64_t kWinsFrom = 8192, kWinsTo = 1 << 16;  // elements a row
constexpr int64_t kWinsShare = 64;                      // k is at least n / 64
constexpr int kKeeps[] = {1, 2, 4};                     // that the kernels are made for
constexpr int64_t kBucketUnit = 128;  // buckets come in whole warps of 4-byte loads
constexpr int64_t kLeastShrink = 8;   // candidates are at most n / 8, or stage 2 costs too much
constexpr int64_t kLeastK = 17;
constexpr int64_t kMaxK = 4096;
constexpr int64_t kLeastN = 4096;
constexpr int64_t kDeepest = 128;   // elements a thread reads one after the other, 8 at a time
constexpr int64_t kMaxN = 1 << 18;  // longer rows: exact topk is bound by the read
}  // namespace approx_tuning

// Expected share of the k best of n that survive, for buckets of at most m = ceil(n / buckets):
//   1 - B/k * sum over r > keep of (r - keep) * P(r),  P = Hypergeometric(n, k, m),
// where the sum is E[r] - keep + sum over r < keep of (keep - r) * P(r). A lower bound where n is
// no multiple of the buckets. Exact to 1e-6.
inline double approx_recall(int64_t n, int64_t k, int64_t buckets, int keep) {
  const int64_t m = (n + buckets - 1) / buckets;
  if (m <= keep || k <= keep) return 1;
  if (n - k < m) return 0;  // more winners than this formula is for
  const auto log_choose = [](double a, double b) {
    return std::lgamma(a + 1) - std::lgamma(b + 1) - std::lgamma(a - b + 1);
  };
  const double total = static_cast<double>(n), wins = static_cast<double>(k),
               drawn = static_cast<double>(m);
  double p = std::exp(log_choose(total - wins, drawn) - log_choose(total, drawn));
  double lost = drawn * wins / total - keep;
  for (int r = 0; r < keep; ++r) {
    lost += (keep - r) * p;
    p *= (wins - r) * (drawn - r) / ((r + 1.0) * (total - wins - drawn + r + 1.0));
  }
  return std::clamp(1 - static_cast<double>(buckets) / wins * lost, 0.0, 1.0);
}

// The fewest candidates that reach the target. Dtype, sizes and target alone decide, so that a
// row's result does not depend on the batch or the device.
inline ApproxPlan plan_approx(Dtype dtype, int64_t n, int64_t k, double recall_target,
                              ApproxMode mode) {
  namespace t = approx_tuning;
  ApproxPlan best;
  const int bytes = dtype_bytes(dtype);
  if (mode == ApproxMode::exact || (bytes != 2 && bytes != 4)) return best;  // no kernels
  if (mode == ApproxMode::automatic &&
      (k < t::kWinsK || n < t::kWinsFrom || n > t::kWinsTo || k * t::kWinsShare < n))
    return best;
  if (recall_target >= 1 || k < t::kLeastK || k > t::kMaxK || n < t::kLeastN || n > t::kMaxN)
    return best;
  for (int keep : t::kKeeps) {
    // Recall grows with the buckets: the fewest that reach the target, by bisection.
    int64_t low = std::max<int64_t>(n / t::kDeepest / t::kBucketUnit - 1, 0);
    int64_t high = n / t::kLeastShrink / keep / t::kBucketUnit;
    if (high <= low || high * t::kBucketUnit * keep < k ||
        approx_recall(n, k, high * t::kBucketUnit, keep) < recall_target)
      continue;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2, buckets = middle * t::kBucketUnit;
      if (buckets * keep >= k && approx_recall(n, k, buckets, keep) >= recall_target)
        high = middle;
      else
        low = middle;
    }
    const int64_t buckets = high * t::kBucketUnit;
    if (best.buckets == 0 || buckets * keep < best.candidates())
      best = {buckets, keep, approx_recall(n, k, buckets, keep)};
  }
  return best;
}

}  // namespace gpuprims
