// Max and min of weighted rows, with the edge that each column took.
#include "aggregate/rows.cuh"

namespace gpuprims {

cudaError_t launch_weighted_extreme(Dtype dtype, const AggregatePlan& plan,
                                    const AggregateArgs& args, cudaStream_t stream) {
  const auto code = launch_mode<Mode::weighted_extreme>(dtype, plan, args, stream);
  return code == cudaSuccess ? launch_name_edges(args, stream) : code;
}

}  // namespace gpuprims
