// What a kernel is told, on either device: raw pointers, no PyTorch.
#pragma once
#include "common/dtype.h"
#include "reorder/layout.h"

namespace gpuprims::reorder {

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
  bool ahead = false;       // packed: loads_ahead, and wanted
  void* partial = nullptr;  // sums of groups, in the accumulator's type: packed [units, 32, m], CSR
                            // [long units, m]
};

// Packed: whether a warp can walk over strips and load ahead.
inline bool loads_ahead(const SpmvArgs& args) {
  return args.m == 1 && args.p.slices && !args.p.units && !args.wide_indices &&
         strips_of(args.p.rows) < int64_t{1} << 30;
}

}  // namespace gpuprims::reorder
