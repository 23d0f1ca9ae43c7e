// merge_topk: one kernel for up to 4,096 candidates a row; for more argsort by index, then
// topk, whose ties go to the lowest position, which is the lowest index.
#include <array>

#include "common/cuda_stable.h"
#include "topk/merge_op_checks.h"
#include "topk/merge_op_kernels.h"

namespace gpuprims {
namespace {

constexpr auto kOp = "merge_topk";
using torch::stable::detail::from;
using torch::stable::detail::to;

// For each row, the order of its indices; equal ones keep their positions.
Tensor index_order(const Tensor& indices) {
  std::array<StableIValue, 6> stack{from(indices),     from(int64_t{-1}), from(false),
                                    from(int64_t{64}), from(int64_t{0}),  from(int64_t{-1})};
  check_call(torch_call_dispatcher("gpuprims::argsort", "", stack.data(), TORCH_ABI_VERSION),
             "gpuprims::argsort");
  return to<Tensor>(stack[0]);
}

// Of gpuprims::topk, the indices.
Tensor topk_places(const Tensor& values, int64_t k, bool largest, const Tensor& mask) {
  std::array<StableIValue, 7> stack{from(values),     from(k),    from(int64_t{-1}),
                                    from(largest),    from(true), from(std::optional<Tensor>(mask)),
                                    from(int64_t{64})};
  check_call(torch_call_dispatcher("gpuprims::topk", "", stack.data(), TORCH_ABI_VERSION),
             "gpuprims::topk");
  const Tensor best = to<Tensor>(stack[0]);
  return to<Tensor>(stack[1]);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> merge_topk_cuda(const Tensor& values_in,
                                                   const Tensor& indices_in, int64_t k,
                                                   bool largest) {
  const MergeShape shape = check_merge_topk(values_in, indices_in, k);
  const int device = values_in.get_device_index();
  const DeviceGuard guard(device);
  const auto dense = [](const Tensor& t) {
    return t.is_contiguous() ? t : torch::stable::contiguous(t);
  };
  const Tensor values = dense(values_in), indices = dense(indices_in);
  const int64_t* const sizes = shape.output.data();
  const auto rank = static_cast<int64_t>(shape.output.size());
  Tensor out_values = empty(kOp, values, values.scalar_type(), sizes, rank);
  Tensor out_indices = empty(kOp, values, indices.scalar_type(), sizes, rank);
  Tensor positions = empty(kOp, values, ScalarType::Long, sizes, rank);
  if (shape.rows == 0 || k == 0) return {out_values, out_indices, positions};
  MergeArgs args;
  args.values = values.const_data_ptr();
  args.indices = indices.const_data_ptr();
  args.out_values = out_values.mutable_data_ptr();
  args.out_indices = out_indices.mutable_data_ptr();
  args.out_positions = static_cast<int64_t*>(positions.mutable_data_ptr());
  args.rows = shape.rows;
  args.m = shape.m;
  args.k = k;
  args.dtype = shape.dtype;
  args.bytes = dtype_bytes(shape.dtype);
  args.largest = largest;
  args.wide_index = indices.scalar_type() == ScalarType::Long;
  args.missing = missing_bits(shape.dtype, largest);
  const cudaStream_t stream = current_stream(device);
  if (shape.m <= kMostMerged) {
    check_cuda(kOp, launch_merge_rows(args, device_info(device).sms, stream));
    return {out_values, out_indices, positions};
  }
  const Tensor order = index_order(indices);
  Tensor sorted = empty(kOp, values, values.scalar_type(), {shape.rows, shape.m});
  Tensor kept = empty(kOp, values, ScalarType::Bool, {shape.rows, shape.m});
  const auto* const places = static_cast<const int64_t*>(order.const_data_ptr());
  check_cuda(kOp, launch_merge_gather(args, places, sorted.mutable_data_ptr(),
                                      static_cast<bool*>(kept.mutable_data_ptr()), stream));
  const int64_t found = std::min(k, shape.m);
  const Tensor chosen = topk_places(sorted, found, largest, kept);
  check_cuda(kOp,
             launch_merge_write(args, places, static_cast<const int64_t*>(chosen.const_data_ptr()),
                                found, stream));
  return {out_values, out_indices, positions};
}

}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("merge_topk", TORCH_BOX(&gpuprims::merge_topk_cuda));
}
