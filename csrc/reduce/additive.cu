// Sums, means, products and norms.
#include "reduce/dispatch.cuh"

namespace gpuprims {

cudaError_t launch_additive(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  if (args.acc != Dtype::i64) {
    if (args.dtype == Dtype::f32 && args.acc == Dtype::f64)
      return launch_floating<Additive<double>, float, ReduceFamily::additive, Dtype::f32>(
          args, plan, stream);
    return launch_floats<Additive<double>, Additive<float>, ReduceFamily::additive>(args, plan,
                                                                                    stream);
  }
  using Op = Additive<int64_t>;
  if (plan.algo == ReduceAlgo::packed_rows)
    return launch_packed_rows<Op, AnyInteger>(args, plan, stream);
  if (plan.algo != ReduceAlgo::long_rows)
    return launch_strided<Op, AnyInteger, 2>(args, plan, stream);
  switch (args.decode.bytes) {
    case 1:
      return launch_long_rows<Op, Integer<1>, 4>(args, plan, stream);
    case 2:
      return launch_long_rows<Op, Integer<2>, 4>(args, plan, stream);
    case 4:
      return launch_long_rows<Op, Integer<4>>(args, plan, stream);
    default:
      return launch_long_rows<Op, Integer<8>>(args, plan, stream);
  }
}

}  // namespace gpuprims
