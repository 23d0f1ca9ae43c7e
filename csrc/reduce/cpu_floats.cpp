// Reductions of floating-point numbers on the CPU.
#include "reduce/cpu_run.h"

namespace gpuprims {

void reduce_floats(const ReduceArgs& args, ReduceOp op, ReduceFamily family) {
  run_typed(args, op, family, Typed<Half>{Dtype::f16}, Typed<BFloat16>{Dtype::bf16},
            Typed<float>{Dtype::f32}, Typed<double>{Dtype::f64});
}

}  // namespace gpuprims
