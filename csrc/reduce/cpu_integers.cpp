// Reductions of integers on the CPU.
#include "reduce/cpu_run.h"

namespace gpuprims {

void reduce_integers(const ReduceArgs& args, ReduceOp op, ReduceFamily family) {
  switch (args.dtype) {
    case Dtype::i8:
      return run_op<int8_t>(args, op, family);
    case Dtype::u16:
      return run_op<uint16_t>(args, op, family);
    case Dtype::i16:
      return run_op<int16_t>(args, op, family);
    case Dtype::u32:
      return run_op<uint32_t>(args, op, family);
    case Dtype::i32:
      return run_op<int32_t>(args, op, family);
    case Dtype::u64:
      return run_op<uint64_t>(args, op, family);
    case Dtype::i64:
      return run_op<int64_t>(args, op, family);
    default:
      return run_op<uint8_t>(args, op, family);
  }
}

}  // namespace gpuprims
