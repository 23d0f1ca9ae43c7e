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
  double lo = 1;  // what is in [lo, last] counts; nothing here
  double last = 0;
  double scale = 0;  // bins a unit, a little too many
  double width = 0;  // hi - lo
  double unit = 1;   // of x - lo and the width, where they are tiny or huge
  double count = 0;  // of bins

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
    b.count = static_cast<double>(bins);
    const double wide = hi - lo;
    if (!(hi > lo && wide <= kMost)) return b;
    b.lo = lo;
    b.last = closed ? hi : std::nextafter(hi, lo);
    b.unit = wide < 0x1p-900 ? 0x1p900 : wide > 0x1p900 ? 0x1p-200 : 1;
    b.width = wide * b.unit;
    b.scale = b.count / b.width * (1 + 0x1p-50);
    return b;
  }

  // -1: outside, or NaN.
  GPUPRIMS_HD int64_t of(double x) const {
    if (!(x >= lo && x <= last)) return -1;
    const double from = (x - lo) * unit;
    double bin = std::floor(from * scale);
    if (from * count < bin * width) bin -= 1;
    return static_cast<int64_t>(bin < count ? bin : count - 1);
  }
};

}  // namespace gpuprims
