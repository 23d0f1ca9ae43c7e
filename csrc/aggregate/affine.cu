// Sums without weights, times a factor of the row, plus a bias: what comes after the sum in GCN. Of
// whole vectors alone.
#include "aggregate/rows.cuh"

namespace gpuprims {

cudaError_t launch_affine(Dtype dtype, const AggregatePlan& plan, const AggregateArgs& args,
                          cudaStream_t stream) {
  if (plan.small) return launch_sum(dtype, plan, args, stream);
  if (!takes_vectors(plan.load_bytes, args)) return cudaErrorInvalidValue;
  return launch_mode<Mode::affine>(dtype, plan, args, stream);
}

}  // namespace gpuprims
