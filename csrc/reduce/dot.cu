// Inner products, in the tree of sums.
#include "reduce/long_rows.cuh"

namespace gpuprims {

cudaError_t launch_dot(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  switch (args.dtype) {
    case Dtype::f64:
      return launch_long_rows<Additive<double>, double, 4, true>(args, plan, stream);
    case Dtype::f32:
      return launch_long_rows<Additive<float>, float, 4, true>(args, plan, stream);
    default:
      return launch_long_rows<Additive<float>, Half16, 4, true>(args, plan, stream);
  }
}

}  // namespace gpuprims
