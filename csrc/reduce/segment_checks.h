// Which inputs segment_reduce and segment_expand take, in the words that CPU, CUDA and the fake
// kernels share (torch_gpuprims/reduce_segment.py).
#pragma once
#include "common/bad_data.h"
#include "common/stable.h"
#include "reduce/segment_plan.h"

namespace gpuprims {

inline void check_segment_indptr(const char* op, const Tensor& indptr, const Tensor& values) {
  check(indptr.dim() == 1, op, ": indptr must have 1 dimension, got ", indptr.dim());
  const ScalarType t = indptr.scalar_type();
  check(t == ScalarType::Int || t == ScalarType::Long, op, ": indptr must be int32 or int64, got ",
        scalar_type_name(t));
  check(same_device(indptr, values), op, ": indptr must be on the device of values");
  check(indptr.size(0) >= 1, op, ": indptr must have at least 1 element, got 0");
}

inline void check_segment_values(const char* op, const Tensor& values) {
  check(is_strided(values), op, ": values must be a dense tensor, got a sparse layout");
  dtype_of(op, values.scalar_type());
  check(values.dim() == 1 || values.dim() == 2, op, ": values must have 1 or 2 dimensions, got ",
        values.dim());
}

inline void check_segment_reduce(const Tensor& values, const Tensor& indptr, int64_t code) {
  constexpr auto op = "segment_reduce";
  check_segment_values(op, values);
  check_segment_indptr(op, indptr, values);
  check(code >= 0 && code < kSegmentOps, op, ": op must be a code from 0 to 5, got ", code);
  const auto kind = static_cast<SegmentOp>(code);
  const bool needs_float = kind == SegmentOp::mean || kind == SegmentOp::logsumexp;
  check(!needs_float || is_floating(dtype_of(op, values.scalar_type())), op, ": ",
        segment_op_name(kind), " needs a floating dtype, got ",
        scalar_type_name(values.scalar_type()));
}

inline void check_segment_expand(const Tensor& values, const Tensor& indptr, int64_t n) {
  constexpr auto op = "segment_expand";
  check_segment_values(op, values);
  check_segment_indptr(op, indptr, values);
  check(values.size(0) == indptr.size(0) - 1, op, ": values must have ", indptr.size(0) - 1,
        " rows (the number of segments), got ", values.size(0));
  check(n >= 0, op, ": n must not be negative, got ", n);
}

// The words for offsets that the look at the data found to be bad.
inline void check_segment_good(const char* op, bool good, int64_t n) {
  check(good, op, ": indptr must start at 0, not decrease and end at the number of rows (", n, ")");
}

inline ScalarType segment_result_type(ScalarType t, SegmentOp op) {
  return segment_result(dtype_of("segment_reduce", t), op) == Dtype::i64 ? ScalarType::Long : t;
}

inline Tensor dense_values(const Tensor& t) {
  return t.is_contiguous() ? t : torch::stable::contiguous(t);
}

// [segments] or [segments, features], uninitialised.
inline Tensor segment_output(const char* op, const Tensor& values, ScalarType dtype, int64_t rows) {
  if (values.dim() == 1) return empty(op, values, dtype, {rows});
  return empty(op, values, dtype, {rows, values.size(1)});
}

}  // namespace gpuprims
