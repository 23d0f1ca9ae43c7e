// Greatest and least values; any and all, which are those of "is not 0".
#include "reduce/dispatch.cuh"

namespace gpuprims {

cudaError_t launch_extreme(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  if (args.acc != Dtype::i64)
    return launch_floats<Extreme<double>, Extreme<float>, ReduceFamily::extreme>(args, plan,
                                                                                 stream);
  if (plan.algo == ReduceAlgo::packed_rows)
    return launch_packed_rows<Extreme<int64_t>, AnyInteger>(args, plan, stream);
  if (plan.algo != ReduceAlgo::long_rows)
    return launch_strided<Extreme<int64_t>, AnyInteger, 2>(args, plan, stream);
  switch (args.decode.bytes) {
    case 1:
      return launch_long_rows<Extreme<int32_t>, Integer<1>, 4>(args, plan, stream);
    case 2:
      return launch_long_rows<Extreme<int32_t>, Integer<2>, 4>(args, plan, stream);
    case 4:
      return launch_long_rows<Extreme<int32_t>, Integer<4>>(args, plan, stream);
    default:
      return launch_long_rows<Extreme<int64_t>, Integer<8>>(args, plan, stream);
  }
}

}  // namespace gpuprims
