// Least, greatest, mean, variance and NaN count in one read.
#include "reduce/dispatch.cuh"

namespace gpuprims {

cudaError_t launch_stats(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  return launch_floats<Stats, ReduceFamily::stats>(args, plan, stream);
}

}  // namespace gpuprims
