// Least, greatest, mean, variance and NaN count in one read; positions where they are asked for.
#include "reduce/dispatch.cuh"

namespace gpuprims {

cudaError_t launch_stats(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  if (args.indices && args.dtype == Dtype::f32 && args.acc == Dtype::f32)
    return launch_placed_stats(args, plan, stream);
  return launch_floats<Stats<double>, Stats<float>, ReduceFamily::stats>(args, plan, stream);
}

}  // namespace gpuprims
