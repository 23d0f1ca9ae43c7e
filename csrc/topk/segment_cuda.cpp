// segment_topk: tensors to plan to launches. Nothing here depends on a segment's length.
#include "common/cuda_stable.h"
#include "topk/segment_checks.h"
#include "topk/segment_kernels.h"

namespace gpuprims {
namespace {

constexpr auto kOp = "segment_topk";

SegmentSpace space_at(void* memory, const SegmentPlan& plan) {
  SegmentSpace space;
  auto* const base = static_cast<char*>(memory);
  space.header = reinterpret_cast<SegmentHeader*>(base);
  space.bounds = reinterpret_cast<unsigned long long*>(base + segment_tuning::kHeader);
  space.chunks = reinterpret_cast<SegmentChunk*>(base + plan.chunks_at);
  space.big = reinterpret_cast<int64_t*>(base + plan.big_at);
  space.medium = reinterpret_cast<int64_t*>(base + plan.medium_at);
  space.pairs = base + plan.pairs_at;
  if (plan.passes > 1) space.ceilings = base + plan.ceilings_at;
  return space;
}

// GPUPRIMS_CHECK=1 waits for the device and raises.
void raise_if_bad(const SegmentSpace& space, int64_t n, cudaStream_t stream) {
  int flag = 0;
  check_cuda(kOp, cudaMemcpyAsync(&flag, &space.header->flag, sizeof flag, cudaMemcpyDeviceToHost,
                                  stream));
  check_cuda(kOp, cudaStreamSynchronize(stream));
  check_segment_flag(flag, n);
}

}  // namespace

std::tuple<Tensor, Tensor> segment_topk_cuda(const Tensor& values_in, const Tensor& indptr_in,
                                             int64_t k, const std::optional<Tensor>& counts_in,
                                             bool largest, int64_t index_bits, int64_t promises) {
  const Dtype dtype = check_segment_topk(values_in, indptr_in, k, counts_in, index_bits);
  const int device = values_in.get_device_index();
  const DeviceGuard guard(device);
  const Tensor values = dense_1d(values_in), indptr = dense_1d(indptr_in);
  std::optional<Tensor> counts;
  if (counts_in) counts = dense_1d(*counts_in);

  SegmentArgs args;
  args.n = values.size(0);
  args.segments = indptr.size(0) - 1;
  args.k = k;
  args.dtype = dtype;
  args.bytes = dtype_bytes(dtype);
  args.largest = largest;
  args.wide_offsets = indptr.scalar_type() == ScalarType::Long;
  args.wide_index = index_bits == 64;
  args.missing = missing_bits(dtype, largest);
  args.bad = bad_bits(dtype);
  Tensor out_values = empty(kOp, values, values.scalar_type(), {args.segments, k});
  Tensor out_indices =
      empty(kOp, values, args.wide_index ? ScalarType::Long : ScalarType::Int, {args.segments, k});
  args.values = values.const_data_ptr();
  args.indptr = indptr.const_data_ptr();
  if (counts) {
    args.counts = counts->const_data_ptr();
    args.wide_counts = counts->scalar_type() == ScalarType::Long;
  }
  args.out_values = out_values.mutable_data_ptr();
  args.out_indices = out_indices.mutable_data_ptr();

  const bool raise = raise_on_bad_data();
  const bool must_look = raise || counts || !(promises & kSegmentsChecked);
  if (must_look && !(promises & kSegmentsChecked)) promises = 0;  // nothing else can be known
  const DeviceInfo& info = device_info(device);
  const SegmentPlan plan = plan_segment_topk(
      {dtype, args.n, args.segments, k, info.sms, info.smem, must_look, promises});
  const cudaStream_t stream = current_stream(device);
  std::optional<Tensor> memory;
  SegmentSpace space;
  if (plan.passes == 0) {
    if (raise) {  // nothing is to be selected, but offsets may be bad: as for one of a segment
      const SegmentPlan looks =
          plan_segment_topk({dtype, args.n, std::max<int64_t>(args.segments, 1), 1, info.sms,
                             info.smem, true, promises});
      memory = workspace(kOp, values, looks.workspace);
      space = space_at(memory->mutable_data_ptr(), looks);
      check_cuda(kOp, launch_segment_prepare(args, looks, space, stream));
      raise_if_bad(space, args.n, stream);
    }
    return {out_values, out_indices};
  }
  if (plan.prepare) {
    memory = workspace(kOp, values, plan.workspace);
    space = space_at(memory->mutable_data_ptr(), plan);
    check_cuda(kOp, launch_segment_prepare(args, plan, space, stream));
    if (raise) raise_if_bad(space, args.n, stream);
  }
  for (int64_t pass = 0; pass < plan.passes; ++pass) {
    args.first = pass * plan.width;
    if (pass > 0)  // the lists stay
      check_cuda(kOp, cudaMemsetAsync(reinterpret_cast<char*>(space.header) + kSegmentCounters, 0,
                                      plan.reset - kSegmentCounters, stream));
    if (plan.big + plan.medium + plan.chunks > 0)
      check_cuda(kOp, launch_segment_items(args, plan, space, stream));
    if (pass == 0) check_cuda(kOp, launch_segment_small(args, plan, space, stream));
    if (plan.chunks > 0) check_cuda(kOp, launch_segment_merge(args, plan, space, stream));
    if (plan.big + plan.medium + plan.chunks == 0) break;  // the small ones need one pass
  }
  return {out_values, out_indices};
}

}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("segment_topk", TORCH_BOX(&gpuprims::segment_topk_cuda));
}
