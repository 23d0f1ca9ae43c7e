// Statistics of float32 with the positions of the least and the greatest element.
#include "reduce/dispatch.cuh"

namespace gpuprims {

cudaError_t launch_placed_stats(const ReduceArgs& args, const ReducePlan& plan,
                                cudaStream_t stream) {
  return launch_floating<PlacedStats<float>, float, ReduceFamily::stats, Dtype::f32>(args, plan,
                                                                                     stream);
}

}  // namespace gpuprims
