// What the host may ask of the GPU: raw pointers in, cudaError_t out; no PyTorch on either side.
#pragma once
#include <cuda_runtime_api.h>

#include "common/dtype.h"
#include "reorder/layout.h"

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

enum class Move : int { pack, unpack, gather };

struct MoveArgs {
  Packing p;
  Move move = Move::pack;
  const void* from = nullptr;
  void* to = nullptr;
  const void* fill = nullptr;   // an element; null: zero
  int element = 1;              // bytes
  int word = 1;                 // bytes a thread moves at once: 1, 2, 4, 8 or 16
  int64_t words = 1;            // of a slot or row
  uint64_t bad = 0;             // 8 bytes of what bad data gives
  const int* flag = nullptr;    // not 0: everything is bad; null: validated
  const void* index = nullptr;  // gather: [count]
  bool wide_index = false;
  int64_t count = 0;
  int64_t source_rows = 0;
};

cudaError_t launch_move(const MoveArgs& args, cudaStream_t stream);

struct SpmvArgs {
  Packing p;
  Dtype dtype = Dtype::f32;
  const void* values = nullptr;
  const void* indices = nullptr;
  bool wide_indices = false;
  const void* x = nullptr;  // [columns, m]
  int64_t columns = 0;
  int64_t m = 1;
  const void* start = nullptr;  // [rows, m]
  void* out = nullptr;          // [rows, m]
  const int* flag = nullptr;
  bool by_lane = false;     // CSR: rows are short, m is 1, indices are int32
  void* partial = nullptr;  // sums of groups, in the accumulator's type: packed [units, 32, m], CSR
                            // [long units, m]
};

cudaError_t launch_spmv(const SpmvArgs& args, cudaStream_t stream);
cudaError_t launch_spmv_csr(const SpmvArgs& args, const LongRows& rows, int sms,
                            cudaStream_t stream);

}  // namespace gpuprims::reorder
