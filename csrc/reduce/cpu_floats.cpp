// Reductions of floating-point numbers on the CPU.
#include "reduce/cpu_run.h"

namespace gpuprims {

void reduce_floats(const ReduceArgs& args, ReduceOp op, ReduceFamily family) {
  switch (args.dtype) {
    case Dtype::f16:
      return run_op<Half>(args, op, family);
    case Dtype::bf16:
      return run_op<BFloat16>(args, op, family);
    case Dtype::f32:
      return run_op<float>(args, op, family);
    default:
      return run_op<double>(args, op, family);
  }
}

}  // namespace gpuprims
