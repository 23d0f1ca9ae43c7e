// Reductions of integers on the CPU, bool as uint8.
#include "reduce/cpu_run.h"

namespace gpuprims {

void reduce_integers(const ReduceArgs& args, ReduceOp op, ReduceFamily family) {
  run_typed(args, op, family, Typed<int8_t>{Dtype::i8}, Typed<uint8_t>{Dtype::u8},
            Typed<uint8_t>{Dtype::boolean}, Typed<int16_t>{Dtype::i16}, Typed<uint16_t>{Dtype::u16},
            Typed<int32_t>{Dtype::i32}, Typed<uint32_t>{Dtype::u32}, Typed<int64_t>{Dtype::i64},
            Typed<uint64_t>{Dtype::u64});
}

}  // namespace gpuprims
