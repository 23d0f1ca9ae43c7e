// The bin of a value, on host and device alike, and so the same counts on both. Everything is
// float64: of float32 and of integers up to 2^53 nothing is lost, and bounds that are exact in
// float64 cut where they say.
#pragma once
#include <cstdint>

#include "common/radix_keys.h"

namespace gpuprims {

struct HistogramBins {
  double lo = 0;
  double hi = 0;
  double scale = 0;  // bins a unit
  int64_t bins = 0;
  bool closed = true;

  // A range that is not finite, or no range, counts nothing; where lo is hi it is one unit wider on
  // either side, as torch.histc has it.
  GPUPRIMS_HD static HistogramBins make(double lo, double hi, int64_t bins, bool closed) {
    if (lo == hi) lo -= 1, hi += 1;
    const bool sound = hi > lo && hi - lo <= 1.7976931348623157e308;
    return {lo, hi, sound ? static_cast<double>(bins) / (hi - lo) : 0, bins, closed};
  }

  // -1: outside, or NaN.
  GPUPRIMS_HD int64_t of(double x) const {
    if (!(x >= lo && (closed ? x <= hi : x < hi)) || scale == 0) return -1;
    const auto bin = static_cast<int64_t>((x - lo) * scale);
    return bin < bins ? bin : bins - 1;
  }
};

}  // namespace gpuprims
