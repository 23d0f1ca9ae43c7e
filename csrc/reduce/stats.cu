// Least, greatest, mean, variance and NaN count in one read.
#include "reduce/dispatch.cuh"

namespace gpuprims {

// Two blocks would leave 128 registers a thread, of which 194 are wanted.
template <>
inline constexpr int kRowBlocks<Stats<double>, double, false> = 1;

cudaError_t launch_stats(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  return launch_floats<Stats, ReduceFamily::stats>(args, plan, stream);
}

}  // namespace gpuprims
