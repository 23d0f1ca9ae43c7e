// Sum and mean with weights.
#include "aggregate/rows.cuh"

namespace gpuprims {

cudaError_t launch_weighted_sum(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                                cudaStream_t stream) {
  return launch_mode<Mode::weighted_sum>(dtype, plan, args, stream);
}

}  // namespace gpuprims
