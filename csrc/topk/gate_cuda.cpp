#include "common/cuda_stable.h"
#include "topk/gate_checks.h"
#include "topk/gate_kernels.h"

namespace gpuprims {

std::tuple<Tensor, Tensor> topk_gate_cuda(const Tensor& logits, int64_t k,
                                          const std::optional<Tensor>& bias, int64_t scoring,
                                          bool renormalize, int64_t num_groups, int64_t topk_groups,
                                          double scale, int64_t index_bits) {
  const GateShape shape = check_gate(logits, k, bias, scoring, num_groups, topk_groups, index_bits);
  const auto device = logits.get_device_index();
  const DeviceGuard guard(device);
  const int64_t* sizes = shape.output.data();
  const auto rank = static_cast<int64_t>(shape.output.size());
  Tensor weights =
      empty("topk_gate", logits, shape.dtype == Dtype::f64 ? ScalarType::Double : ScalarType::Float,
            sizes, rank);
  Tensor indices = empty("topk_gate", logits, index_bits == 64 ? ScalarType::Long : ScalarType::Int,
                         sizes, rank);
  const GatePlan plan =
      plan_gate({shape.dtype, shape.rows, shape.n, k, num_groups, topk_groups, bias.has_value()});
  if (plan.grid == 0) return {weights, indices};

  const auto stride = gate_row_stride(logits);
  // Copies, where there are any, live until the launch.
  const Tensor source = stride ? logits : torch::stable::contiguous(logits);
  std::optional<Tensor> added = bias;
  if (bias && bias->strides()[0] != 1) added = torch::stable::contiguous(*bias);
  GateArgs args;
  args.logits = source.const_data_ptr();
  args.bias = added ? added->const_data_ptr() : nullptr;
  args.weights = weights.mutable_data_ptr();
  args.indices = indices.mutable_data_ptr();
  args.rows = shape.rows;
  args.stride = stride.value_or(shape.n);
  args.n = static_cast<int>(shape.n);
  args.k = static_cast<int>(k);
  args.num_groups = static_cast<int>(num_groups);
  args.topk_groups = static_cast<int>(topk_groups);
  args.dtype = shape.dtype;
  args.bias_dtype = shape.bias_dtype;
  args.sigmoid = scoring == 1;
  args.renormalize = renormalize;
  args.wide_index = index_bits == 64;
  args.scale = scale;
  check_cuda("topk_gate", launch_gate(args, plan, current_stream(device)));
  return {weights, indices};
}

}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("topk_gate", TORCH_BOX(&gpuprims::topk_gate_cuda));
}
