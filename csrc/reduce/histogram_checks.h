// Which inputs histogram takes, in the words that CPU, CUDA and the fake kernel share
// (torch_gpuprims/histogram.py).
#pragma once
#include <optional>

#include "common/stable.h"

namespace gpuprims {

constexpr int64_t kMostBins = int64_t{1} << 31;

inline void check_histogram(const Tensor& input, const std::optional<Tensor>& range, int64_t bins,
                            double lo, double hi) {
  check(is_strided(input), "histogram: input must be a dense tensor, got a sparse layout");
  dtype_of("histogram", input.scalar_type());
  check(bins >= 1 && bins <= kMostBins, "histogram: bins must be from 1 to 2147483648, got ", bins);
  if (range) {
    check(range->scalar_type() == ScalarType::Double, "histogram: range must be float64, got ",
          scalar_type_name(range->scalar_type()));
    check(range->dim() == 1 && range->size(0) == 2, "histogram: range must have the shape [2]");
    check(same_device(*range, input), "histogram: range must be on the device of input");
  } else {
    check(lo <= hi, "histogram: max must not be below min");
  }
}

}  // namespace gpuprims
