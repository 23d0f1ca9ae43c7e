// The gradient of max and min: a sum over the transpose of the columns that an edge gave.
#include "aggregate/rows.cuh"

namespace gpuprims {

cudaError_t launch_extreme_grad(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                                cudaStream_t stream) {
  return launch_mode<Mode::extreme_grad>(dtype, plan, args, stream);
}

}  // namespace gpuprims
