// From a plan to the instance of a kernel.
#pragma once
#include "reduce/long_rows.cuh"
#include "reduce/packed_rows.cuh"
#include "reduce/strided.cuh"

namespace gpuprims {

template <class Op, class Raw, ReduceFamily family, Dtype dtype>
cudaError_t launch_floating(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  constexpr Dtype kAcc = sizeof(typename Op::Value) == 8 ? Dtype::f64 : Dtype::f32;
  switch (plan.algo) {
    case ReduceAlgo::packed_rows:
      if constexpr (kAcc == Dtype::f32) return launch_packed_rows<Op, Raw>(args, plan, stream);
      return cudaErrorInvalidValue;  // no plan has them
    case ReduceAlgo::long_rows:
      return launch_long_rows<Op, Raw>(args, plan, stream);
    default:
      return launch_strided<Op, Raw, strided_columns(family, dtype, kAcc)>(args, plan, stream);
  }
}

// float32, float64 and both 16-bit formats, accumulated in their own width or in float32.
template <class Wide, class Op, ReduceFamily family>
cudaError_t launch_floats(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  switch (args.dtype) {
    case Dtype::f64:
      return launch_floating<Wide, double, family, Dtype::f64>(args, plan, stream);
    case Dtype::f32:
      return launch_floating<Op, float, family, Dtype::f32>(args, plan, stream);
    default:
      return launch_floating<Op, Half16, family, Dtype::f16>(args, plan, stream);
  }
}

}  // namespace gpuprims
