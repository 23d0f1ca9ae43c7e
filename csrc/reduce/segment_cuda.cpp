// segment_reduce and segment_expand: tensors to plan to launches. Nothing here depends on a
// segment's length.
#include "common/cuda_stable.h"
#include "reduce/segment_checks.h"
#include "reduce/segment_kernels.h"

namespace gpuprims {
namespace {

SegmentReduceSpace space_at(void* memory, const SegmentReducePlan& plan) {
  auto* const base = static_cast<char*>(memory);
  SegmentReduceSpace space;
  space.header = reinterpret_cast<SegmentReduceHeader*>(base);
  space.list = reinterpret_cast<CutSegment*>(base + plan.list_at);
  space.done = reinterpret_cast<unsigned*>(base + plan.done_at);
  space.states = base + plan.states_at;
  return space;
}

// GPUPRIMS_CHECK=1 waits for the device and raises.
void raise_if_bad(const char* op, const int* at, int64_t n, cudaStream_t stream) {
  int flag = 0;
  check_cuda(op, cudaMemcpyAsync(&flag, at, sizeof flag, cudaMemcpyDeviceToHost, stream));
  check_cuda(op, cudaStreamSynchronize(stream));
  check_segment_good(op, flag == 0, n);
}

// Four columns at a time where every row begins on their boundary.
int columns_at_once(const SegmentReduceArgs& args) {
  const auto address = reinterpret_cast<uintptr_t>(args.values);
  const auto wide = static_cast<uintptr_t>(4 * dtype_bytes(args.dtype));
  const bool fits = segment_accumulator(args.dtype) == SegmentAccumulator::f32 &&
                    args.features % 4 == 0 && address % wide == 0;
  return fits ? 4 : 1;
}

// What GPUPRIMS_CHECK=1 says of offsets where there is no result to compute.
void look_at_offsets(const char* op, const Tensor& values, const SegmentReduceArgs& reduce,
                     cudaStream_t stream) {
  const Tensor memory = workspace(op, values, 64);
  SegmentExpandArgs args;
  args.indptr = reduce.indptr, args.wide = reduce.wide;
  args.n = reduce.n, args.segments = reduce.segments;
  args.flag = static_cast<int*>(memory.mutable_data_ptr());
  check_cuda(op, launch_segment_check(args, stream));
  raise_if_bad(op, args.flag, args.n, stream);
}

bool must_look(int64_t promises) { return !(promises & kReduceChecked) || raise_on_bad_data(); }

}  // namespace

Tensor segment_reduce_cuda(const Tensor& values_in, const Tensor& indptr_in, int64_t code,
                           int64_t promises) {
  constexpr auto kOp = "segment_reduce";
  check_segment_reduce(values_in, indptr_in, code);
  const int device = values_in.get_device_index();
  const DeviceGuard guard(device);
  const Tensor values = dense_values(values_in), indptr = dense_values(indptr_in);
  SegmentReduceArgs args;
  args.op = static_cast<SegmentOp>(code);
  args.n = values.size(0);
  args.segments = indptr.size(0) - 1;
  args.features = values.dim() == 1 ? 1 : values.size(1);
  args.dtype = dtype_of(kOp, values.scalar_type());
  args.out_dtype = segment_result(args.dtype, args.op);
  args.wide = indptr.scalar_type() == ScalarType::Long;
  args.check = must_look(promises);
  args.empty = segment_empty_bits(args.op, args.out_dtype);
  args.filler = segment_bad_bits(args.out_dtype);
  Tensor out = segment_output(kOp, values, segment_result_type(values.scalar_type(), args.op),
                              args.segments);
  args.values = values.const_data_ptr();
  args.indptr = indptr.const_data_ptr();
  args.out = out.mutable_data_ptr();
  const SegmentReducePlan plan =
      plan_segment_reduce({args.dtype, args.op, args.n, args.segments, args.features,
                           columns_at_once(args), device_info(device).sms, args.check, promises,
                           reinterpret_cast<uintptr_t>(args.values) % 16 == 0});
  const cudaStream_t stream = current_stream(device);
  if (plan.nothing) {
    if (raise_on_bad_data()) look_at_offsets(kOp, values, args, stream);
    return out;
  }
  std::optional<Tensor> memory;
  SegmentReduceSpace space;
  if (plan.header) {
    memory = workspace(kOp, values, plan.workspace);
    space = space_at(memory->mutable_data_ptr(), plan);
    check_cuda(kOp, cudaMemsetAsync(space.header, 0, segment_reduce_tuning::kHeader, stream));
  }
  if (plan.rows) {
    check_cuda(kOp, launch_segment_rows(args, plan, space, false, stream));
    if (plan.long_blocks > 0) check_cuda(kOp, launch_segment_rows(args, plan, space, true, stream));
    for (int level = 0; level < plan.levels; ++level)
      check_cuda(kOp, launch_segment_levels(args, plan, space, level, stream));
  } else {
    check_cuda(kOp, launch_segment_tiles(args, plan, space, stream));
    if (plan.long_blocks > 0) check_cuda(kOp, launch_segment_long(args, plan, space, stream));
  }
  if (raise_on_bad_data()) raise_if_bad(kOp, &space.header->flag, args.n, stream);
  return out;
}

Tensor segment_expand_cuda(const Tensor& values_in, const Tensor& indptr_in, int64_t n,
                           int64_t promises) {
  constexpr auto kOp = "segment_expand";
  check_segment_expand(values_in, indptr_in, n);
  const int device = values_in.get_device_index();
  const DeviceGuard guard(device);
  const Tensor values = dense_values(values_in), indptr = dense_values(indptr_in);
  SegmentExpandArgs args;
  args.n = n;
  args.segments = values.size(0);
  args.features = values.dim() == 1 ? 1 : values.size(1);
  args.bytes = dtype_bytes(dtype_of(kOp, values.scalar_type()));
  args.wide = indptr.scalar_type() == ScalarType::Long;
  args.filler = segment_bad_bits(dtype_of(kOp, values.scalar_type()));
  Tensor out = segment_output(kOp, values, values.scalar_type(), n);
  args.values = values.const_data_ptr();
  args.indptr = indptr.const_data_ptr();
  args.out = out.mutable_data_ptr();
  const cudaStream_t stream = current_stream(device);
  std::optional<Tensor> memory;
  // Without a segment nobody owns a row: the look finds that, if there are rows.
  if (must_look(promises) || args.segments == 0) {
    memory = workspace(kOp, values, 64);
    args.flag = static_cast<int*>(memory->mutable_data_ptr());
    check_cuda(kOp, launch_segment_check(args, stream));
    if (raise_on_bad_data()) raise_if_bad(kOp, args.flag, n, stream);
  }
  if (n > 0 && args.features > 0) check_cuda(kOp, launch_segment_expand(args, stream));
  return out;
}

}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("segment_reduce", TORCH_BOX(&gpuprims::segment_reduce_cuda));
  m.impl("segment_expand", TORCH_BOX(&gpuprims::segment_expand_cuda));
}
