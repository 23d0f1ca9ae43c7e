// histogram on the CPU: each thread counts a share of the input by itself, and the counts are
// added.
#include <algorithm>
#include <mutex>
#include <vector>

#include "reduce/histogram_bins.h"
#include "reduce/histogram_checks.h"

namespace gpuprims {
namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

template <class T>
void count(const T* x, int64_t n, const HistogramBins& bins, int64_t* counts) {
  // Threads with counts of their own, where those cost less than the input.
  const auto many = static_cast<int64_t>(bins.count);
  const int64_t grain = std::max<int64_t>({1 << 15, 4 * many, n / 64});
  std::mutex mutex;
  torch::stable::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> mine;
    int64_t* to = counts;
    if (end - begin < n) mine.resize(many), to = mine.data();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t bin = bins.of(static_cast<double>(x[i]));
      if (bin >= 0) ++to[bin];
    }
    if (mine.empty()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    for (int64_t bin = 0; bin < many; ++bin) counts[bin] += mine[bin];
  });
}

Tensor histogram_cpu(const Tensor& input_in, const std::optional<Tensor>& range, int64_t bins,
                     double lo, double hi, bool closed) {
  constexpr auto kOp = "histogram";
  check_histogram(input_in, range, bins, lo, hi);
  const Tensor input = input_in.is_contiguous() ? input_in : torch::stable::contiguous(input_in);
  Tensor out = empty(kOp, input, ScalarType::Long, {bins});
  auto* const counts = static_cast<int64_t*>(out.mutable_data_ptr());
  std::fill_n(counts, bins, 0);
  if (range) {
    const Tensor ends = torch::stable::contiguous(*range);
    const auto* const end = static_cast<const double*>(ends.const_data_ptr());
    lo = end[0], hi = end[1];
  }
  const auto cut = HistogramBins::make(lo, hi, bins, closed);
  const void* const x = input.const_data_ptr();
  const int64_t n = input.numel();
  const auto run = [&](auto zero) { count(static_cast<const decltype(zero)*>(x), n, cut, counts); };
  switch (dtype_of(kOp, input.scalar_type())) {
    case Dtype::f32:
      run(float());
      break;
    case Dtype::f64:
      run(double());
      break;
    case Dtype::f16:
      run(Half());
      break;
    case Dtype::bf16:
      run(BFloat16());
      break;
    case Dtype::i8:
      run(int8_t());
      break;
    case Dtype::i16:
      run(int16_t());
      break;
    case Dtype::i32:
      run(int32_t());
      break;
    case Dtype::i64:
      run(int64_t());
      break;
    case Dtype::u16:
      run(uint16_t());
      break;
    case Dtype::u32:
      run(uint32_t());
      break;
    case Dtype::u64:
      run(uint64_t());
      break;
    default:
      run(uint8_t());
  }
  return out;
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("histogram", TORCH_BOX(&gpuprims::histogram_cpu));
}
