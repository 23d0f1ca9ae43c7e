// Where the greatest and least elements are.
#include "reduce/dispatch.cuh"

namespace gpuprims {

cudaError_t launch_arg(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  if (args.acc != Dtype::i64)
    return launch_floats<ArgExtreme, ReduceFamily::arg>(args, plan, stream);
  if (plan.algo != ReduceAlgo::long_rows)
    return launch_strided<ArgExtreme<int64_t>, AnyInteger, 2>(args, plan, stream);
  return args.decode.bytes == 4
             ? launch_long_rows<ArgExtreme<int32_t>, Integer<4>>(args, plan, stream)
             : launch_long_rows<ArgExtreme<int64_t>, Integer<8>>(args, plan, stream);
}

}  // namespace gpuprims
