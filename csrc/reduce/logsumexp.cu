// Logarithms of sums of exponentials.
#include "reduce/dispatch.cuh"

namespace gpuprims {

cudaError_t launch_logsumexp(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  return launch_floats<LogSumExp<double>, LogSumExp<float>, ReduceFamily::logsumexp>(args, plan,
                                                                                     stream);
}

}  // namespace gpuprims
