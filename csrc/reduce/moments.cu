// Variances and standard deviations.
#include "reduce/dispatch.cuh"

namespace gpuprims {

cudaError_t launch_moments(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  return launch_floats<Moments<double>, Moments<float>, ReduceFamily::moments>(args, plan, stream);
}

}  // namespace gpuprims
