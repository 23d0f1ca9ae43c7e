// Max and min, with the edge that each column took.
#include "aggregate/rows.cuh"

namespace gpuprims {

cudaError_t launch_extreme(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                           cudaStream_t stream) {
  if (!takes_vectors(plan.load_bytes, args))
    return launch_weighted_extreme(dtype, plan, args, stream);
  const auto code = launch_mode<Mode::extreme>(dtype, plan, args, stream);
  return code == cudaSuccess ? launch_name_edges(args, stream) : code;
}

}  // namespace gpuprims
