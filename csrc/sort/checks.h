// Which inputs the sorts take, in the words that CPU, CUDA and the fake kernels share
// (torch_gpuprims/sort.py).
#pragma once
#include <vector>

#include "common/stable.h"

namespace gpuprims {

struct SortShape {
  Dtype dtype = Dtype::f32;
  int64_t dim = 0;   // non-negative; 0 for a 0-d input
  int64_t rows = 1;  // all but the sorted dimension
  int64_t n = 1;
  bool last = true;  // the sorted dimension is the last one
};

inline void check_index_bits(const char* op, int64_t index_bits, int64_t n) {
  check(index_bits == 64 || index_bits == 32, op, ": index_dtype must be int64 or int32");
  check(index_bits == 64 || n <= INT32_MAX, op,
        ": index_dtype int32 holds no index of a dimension of ", n);
}

inline SortShape check_sort(const char* op, const Tensor& input, int64_t dim) {
  check(is_strided(input), op, ": input must be a dense tensor, got a sparse layout");
  SortShape shape;
  shape.dtype = dtype_of(op, input.scalar_type());
  const int64_t rank = input.dim(), span = rank > 0 ? rank : 1;
  check(dim >= -span && dim < span, op, ": dim must be between ", -span, " and ", span - 1,
        ", got ", dim);
  shape.dim = dim < 0 ? dim + span : dim;
  shape.last = rank == 0 || shape.dim == rank - 1;
  const auto sizes = input.sizes();
  for (int64_t d = 0; d < rank; ++d)
    if (d != shape.dim) shape.rows *= sizes[d];
  if (rank > 0) shape.n = sizes[shape.dim];
  return shape;
}

inline SortShape check_sort_in_place(const Tensor& input) {
  SortShape shape = check_sort("sort_keys", input, -1);
  check(input.is_contiguous(), "sort_keys: input must be contiguous");
  return shape;
}

// The bits that count, with -1 resolved.
inline int64_t check_bits(const char* op, Dtype dtype, int64_t begin_bit, int64_t end_bit) {
  const int64_t width = dtype_bytes(dtype) * 8;
  if (end_bit == -1) end_bit = width;
  check(begin_bit >= 0 && begin_bit <= end_bit && end_bit <= width, op,
        ": begin_bit and end_bit must satisfy 0 <= begin_bit <= end_bit <= ", width, ", got ",
        begin_bit, " and ", end_bit);
  return end_bit;
}

inline void check_segments(const Tensor& keys, const Tensor& indptr, int64_t index_bits) {
  constexpr auto op = "segment_sort";
  check(is_strided(keys), op, ": keys must be a dense tensor, got a sparse layout");
  dtype_of(op, keys.scalar_type());
  check(keys.dim() == 1, op, ": keys must have 1 dimension, got ", keys.dim());
  check(is_strided(indptr), op, ": indptr must be a dense tensor, got a sparse layout");
  check(indptr.scalar_type() == ScalarType::Long || indptr.scalar_type() == ScalarType::Int, op,
        ": indptr must be int32 or int64, got ", scalar_type_name(indptr.scalar_type()));
  check(indptr.dim() == 1 && indptr.size(0) >= 1, op,
        ": indptr must have shape [segments + 1], got ", shape_text(indptr.sizes()));
  check(same_device(indptr, keys), op, ": indptr must be on the device of keys");
  check_index_bits(op, index_bits, keys.size(0));
}

}  // namespace gpuprims
