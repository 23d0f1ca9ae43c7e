// Sum and mean without weights.
#include "aggregate/rows.cuh"

namespace gpuprims {

cudaError_t launch_sum(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                       cudaStream_t stream) {
  if (plan.narrow) return launch_narrow(dtype, plan, args, stream);
  if (!takes_vectors(plan.load_bytes, args)) return launch_weighted_sum(dtype, plan, args, stream);
  if (args.reduce == Reduce::mean && !plan.small)
    return launch_mode<Mode::mean>(dtype, plan, args, stream);
  return launch_mode<Mode::sum>(dtype, plan, args, stream);
}

}  // namespace gpuprims
