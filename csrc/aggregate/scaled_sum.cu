// Sums whose rows of x, and results, have factors; means.
#include "aggregate/rows.cuh"

namespace gpuprims {

cudaError_t launch_scaled_sum(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                              cudaStream_t stream) {
  return launch_mode<Mode::scaled_sum>(dtype, plan, args, stream);
}

}  // namespace gpuprims
