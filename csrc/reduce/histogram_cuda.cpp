// histogram: tensors to plan to launches.
#include "common/cuda_stable.h"
#include "reduce/histogram_checks.h"
#include "reduce/histogram_kernels.h"

namespace gpuprims {

Tensor histogram_cuda(const Tensor& input_in, const std::optional<Tensor>& range_in, int64_t bins,
                      double lo, double hi, bool closed) {
  constexpr auto kOp = "histogram";
  check_histogram(input_in, range_in, bins, lo, hi);
  const int device = input_in.get_device_index();
  const DeviceGuard guard(device);
  const Tensor input = input_in.is_contiguous() ? input_in : torch::stable::contiguous(input_in);
  std::optional<Tensor> range;
  if (range_in) range = torch::stable::contiguous(*range_in);
  Tensor out = empty(kOp, input, ScalarType::Long, {bins});
  HistogramArgs args;
  args.input = input.const_data_ptr();
  if (range) args.range = static_cast<const double*>(range->const_data_ptr());
  args.counts = static_cast<unsigned long long*>(out.mutable_data_ptr());
  args.n = input.numel();
  args.dtype = dtype_of(kOp, input.scalar_type());
  args.lo = lo, args.hi = hi, args.bins = bins, args.closed = closed;
  const DeviceInfo& info = device_info(device);
  const HistogramPlan plan = plan_histogram(args.dtype, args.n, bins, info.sms, info.smem);
  check_cuda(kOp, launch_histogram(args, plan, current_stream(device)));
  return out;
}

}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("histogram", TORCH_BOX(&gpuprims::histogram_cuda));
}
