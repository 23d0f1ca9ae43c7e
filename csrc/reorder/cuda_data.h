// Looks at data on the GPU.
#pragma once
#include "common/cuda_stable.h"
#include "reorder/kernels.h"
#include "reorder/tensors.h"

namespace gpuprims::reorder {

// Raises rows.flag on the device where the packing is bad; GPUPRIMS_CHECK=1 waits for it and raises
// here.
inline void look_at(const char* op, const Packing& p, bool with_rows, const LongRows& rows,
                    cudaStream_t stream) {
  check_cuda(op, launch_check(p, with_rows, rows, stream));
  if (!raise_on_bad_data()) return;
  int raised = 0;
  check_cuda(op,
             cudaMemcpyAsync(&raised, rows.flag, sizeof raised, cudaMemcpyDeviceToHost, stream));
  check_cuda(op, cudaStreamSynchronize(stream));
  check_good(op, raised == 0);
}

// Zeros, where rows may repeat in an order that nobody validated.
inline void clear(const char* op, Tensor& out, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(out.numel() * element_bytes(out.scalar_type()));
  check_cuda(op, cudaMemsetAsync(out.mutable_data_ptr(), 0, bytes, stream));
}

}  // namespace gpuprims::reorder
