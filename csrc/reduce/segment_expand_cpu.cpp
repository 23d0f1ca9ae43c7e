// segment_expand on the CPU: rows are dealt to threads.
#include "reduce/segment_offsets.h"

namespace gpuprims {
namespace {

constexpr int64_t kTask = 1 << 18;  // bytes that are worth a task

Tensor segment_expand_cpu(const Tensor& values_in, const Tensor& indptr_in, int64_t n,
                          int64_t promises) {
  constexpr auto kOp = "segment_expand";
  check_segment_expand(values_in, indptr_in, n);
  const Tensor values = dense_values(values_in), indptr = dense_values(indptr_in);
  const Dtype dtype = dtype_of(kOp, values.scalar_type());
  Tensor out = segment_output(kOp, values, values.scalar_type(), n);
  const SegmentOffsets csr{indptr.const_data_ptr(), indptr.scalar_type() == ScalarType::Long,
                           values.size(0), n};
  const bool good = good_offsets(kOp, csr, csr.segments == 0 ? 0 : promises);
  if (out.numel() == 0) return out;
  const int bytes = dtype_bytes(dtype);
  auto* const to = static_cast<char*>(out.mutable_data_ptr());
  if (!good) {
    fill_segments(to, bytes, out.numel(), segment_bad_bits(dtype));
    return out;
  }
  const int64_t row_bytes = (values.dim() == 1 ? 1 : values.size(1)) * bytes;
  const auto* const from = static_cast<const char*>(values.const_data_ptr());
  // Rows are dealt out, so that one long segment is everybody's.
  const int64_t grain = std::max<int64_t>(kTask / row_bytes, 1);
  torch::stable::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
    int64_t low = 0, high = csr.segments - 1;
    while (low < high) {
      const int64_t middle = high - (high - low) / 2;
      if (csr[middle] <= begin)
        low = middle;
      else
        high = middle - 1;
    }
    for (int64_t s = low, row = begin; row < end; ++s) {
      const int64_t last = std::min(end, csr[s + 1]);
      for (; row < last; ++row) {
        char* const at = to + row * row_bytes;
        if (row_bytes == 4)
          std::memcpy(at, from + s * 4, 4);
        else
          std::memcpy(at, from + s * row_bytes, row_bytes);
      }
    }
  });
  return out;
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("segment_expand", TORCH_BOX(&gpuprims::segment_expand_cpu));
}
