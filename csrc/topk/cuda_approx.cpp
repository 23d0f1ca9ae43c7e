// approx_topk on CUDA: tensors to launches.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "common/cuda_stable.h"
#include "topk/approx.h"
#include "topk/approx_kernels.h"

namespace gpuprims {

TopkKernel topk_cuda;  // cuda.cpp

namespace {

// GPUPRIMS_APPROX_TOPK_ALGO, exact or buckets, leaves no choice.
ApproxMode approx_mode() {
  const char* const name = std::getenv("GPUPRIMS_APPROX_TOPK_ALGO");
  const std::string word = name ? name : "";
  return word == "exact"     ? ApproxMode::exact
         : word == "buckets" ? ApproxMode::buckets
                             : ApproxMode::automatic;
}

TopkResult approx_topk_cuda(const Tensor& input, int64_t k, double recall_target, bool largest) {
  check_recall(recall_target);
  const TopkShape shape = check_topk(input, k, -1, std::nullopt, 64);
  ApproxPlan plan;
  if (shape.rows > 0) plan = plan_approx(shape.dtype, shape.n, k, recall_target, approx_mode());
  if (plan.buckets == 0) return topk_cuda(input, k, -1, largest, std::nullopt, 64);

  const auto device = input.get_device_index();
  const DeviceGuard guard(device);
  const Tensor source = input.is_contiguous() ? input : torch::stable::contiguous(input);
  int64_t sizes[kMaxDims];  // [..., candidates]
  std::copy(shape.output, shape.output + shape.rank, sizes);
  sizes[shape.rank - 1] = plan.candidates();
  const Tensor values = empty("topk", source, source.scalar_type(), sizes, shape.rank);
  const Tensor columns = empty("topk", source, ScalarType::Int, sizes, shape.rank);
  ApproxArgs args;
  args.input = source.const_data_ptr();
  args.values = values.mutable_data_ptr();
  args.columns = static_cast<int32_t*>(columns.mutable_data_ptr());
  args.rows = shape.rows;
  args.n = shape.n;
  args.buckets = plan.buckets;
  args.keep = plan.keep;
  args.dtype = shape.dtype;
  args.largest = largest;
  const cudaStream_t stream = current_stream(device);
  check_cuda("topk", launch_bucket_best(args, stream));
  TopkResult result = topk_cuda(values, k, -1, largest, std::nullopt, 64);
  check_cuda("topk", launch_remap(static_cast<int64_t*>(data_of(result.indices)), args.columns,
                                  args.rows, k, plan.candidates(), stream));
  return result;
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("approx_topk", &gpuprims::boxed_approx_topk<gpuprims::approx_topk_cuda>);
}
