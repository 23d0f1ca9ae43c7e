// The bin of a value, on host and device alike, and so the same counts on both: the last bin b with
// b * (hi - lo) <= (x - lo) * bins in float64, in which nothing of float32 and of integers up to
// 2^53 is lost. A product with bins / (hi - lo), rounded up, finds it or the next one, without a
// division.
#pragma once
#include <cmath>
#include <cstdint>

#include "common/radix_keys.h"

namespace gpuprims {

struct HistogramBins {
  double lo = 0;
  double hi = 0;
  double scale = 0;  // bins a unit, a little too many
  int64_t bins = 0;
  bool closed = true;
  double width = 1;  // hi - lo
  double unit = 1;   // of x - lo and the width, where they are tiny or huge

  // A range that is not finite, or no range, counts nothing; where lo is hi it is one unit wider on
  // either side, as torch.histc has it, or as much as makes another number.
  GPUPRIMS_HD static HistogramBins make(double lo, double hi, int64_t bins, bool closed) {
    constexpr double kMost = 1.7976931348623157e308;
    if (lo == hi) {
      const double least = std::fabs(lo) * 0x1p-52, by = least > 1 ? least : 1;
      if (lo - by >= -kMost) lo -= by;
      if (hi + by <= kMost) hi += by;
    }
    HistogramBins b;
    b.lo = lo, b.hi = hi, b.bins = bins, b.closed = closed;
    const bool sound = hi > lo && hi - lo <= kMost;
    if (!sound) return b;
    const double count = static_cast<double>(bins), wide = hi - lo;
    b.unit = wide < 0x1p-900 ? 0x1p900 : wide > 0x1p900 ? 0x1p-200 : 1;
    b.width = wide * b.unit;
    b.scale = count / b.width * (1 + 0x1p-50);
    return b;
  }

  // -1: outside, or NaN.
  GPUPRIMS_HD int64_t of(double x) const {
    if (!(x >= lo && (closed ? x <= hi : x < hi)) || scale == 0) return -1;
    double from = x - lo;
    if (unit != 1) from *= unit;
    auto bin = static_cast<int64_t>(from * scale);
    if (from * static_cast<double>(bins) < static_cast<double>(bin) * width) --bin;
    return bin < bins ? bin : bins - 1;
  }
};

}  // namespace gpuprims
