// Where the greatest and least elements are.
#include "reduce/dispatch.cuh"

namespace gpuprims {

cudaError_t launch_arg(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  if (args.acc != Dtype::i64)
    return launch_floats<ArgExtreme<double>, ArgExtreme<float>, ReduceFamily::arg>(args, plan,
                                                                                   stream);
  if (plan.algo == ReduceAlgo::packed_rows)
    return launch_packed_rows<ArgExtreme<int64_t>, AnyInteger>(args, plan, stream);
  if (plan.algo != ReduceAlgo::long_rows)
    return launch_strided<ArgExtreme<int64_t>, AnyInteger, 2>(args, plan, stream);
  switch (args.decode.bytes) {
    case 1:
      return launch_long_rows<ArgExtreme<int32_t>, Integer<1>, 4>(args, plan, stream);
    case 2:
      return launch_long_rows<ArgExtreme<int32_t>, Integer<2>, 4>(args, plan, stream);
    case 4:
      return launch_long_rows<ArgExtreme<int32_t>, Integer<4>>(args, plan, stream);
    default:
      return launch_long_rows<ArgExtreme<int64_t>, Integer<8>>(args, plan, stream);
  }
}

}  // namespace gpuprims
