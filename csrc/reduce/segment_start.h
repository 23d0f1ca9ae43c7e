// Picks the kernel of an accumulator and an op: f(op).
#pragma once
#include <cuda_runtime_api.h>

#include "reduce/segment_kernels.h"

namespace gpuprims::segmented {

template <class A, class F>
cudaError_t with_float_op(const SegmentReduceArgs& args, F f) {
  if (args.op == SegmentOp::logsumexp) return f(make_segment_op<LogSumExp<A>>(args.op, args.dtype));
  if (std::is_same_v<A, float> && (args.op == SegmentOp::sum || args.op == SegmentOp::mean))
    return f(make_segment_op<Sum<float>>(args.op, args.dtype));
  return f(make_segment_op<AnyOp<A>>(args.op, args.dtype));
}

template <class F>
cudaError_t with_segment_op(const SegmentReduceArgs& args, F f) {
  switch (segment_accumulator(args.dtype)) {
    case SegmentAccumulator::f32:
      return with_float_op<float>(args, f);
    case SegmentAccumulator::f64:
      return with_float_op<double>(args, f);
    default:
      return f(make_segment_op<AnyOp<int64_t>>(args.op, args.dtype));
  }
}

}  // namespace gpuprims::segmented
