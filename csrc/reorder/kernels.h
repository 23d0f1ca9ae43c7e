// What the host may ask of the GPU: raw pointers in, cudaError_t out; no PyTorch on either side.
#pragma once
#include <cuda_runtime_api.h>

#include "reorder/args.h"

namespace gpuprims::reorder {

// CSR: a group of a row of more than kGroup entries.
struct LongUnit {
  int64_t row;
  int64_t group;
};

struct LongRows {
  int* flag = nullptr;
  int* count = nullptr;  // units in the list
  LongUnit* list = nullptr;
  int64_t capacity = 0;
};

inline int64_t long_capacity(int64_t entries) { return entries / (kGroup / 2) + 1; }

// Raises *rows.flag (cleared first) where the packing does not fit itself and, with_rows, indptr;
// where rows.list is there, lists the long rows (their count is the int behind the flag).
cudaError_t launch_check(const Packing& p, bool with_rows, const LongRows& rows,
                         cudaStream_t stream);

cudaError_t launch_move(const MoveArgs& args, cudaStream_t stream);

cudaError_t launch_spmv(const SpmvArgs& args, int sms, cudaStream_t stream);
cudaError_t launch_spmv_csr(const SpmvArgs& args, const LongRows& rows, int sms,
                            cudaStream_t stream);

}  // namespace gpuprims::reorder
