// Which inputs the reordering ops take, in the words that CPU, CUDA and the fakes share
// (torch_gpuprims/reorder_fake.py).
#pragma once
#include <optional>

#include "common/stable.h"
#include "reorder/layout.h"

namespace gpuprims::reorder {

using MaybeTensor = std::optional<Tensor>;

constexpr int64_t kChecked = 1;
constexpr int64_t kShortRows = 2;

inline void check_dense(const char* op, const char* name, const Tensor& t) {
  check(is_strided(t), op, ": ", name, " must be a dense tensor, got a sparse layout");
}

inline void check_rows_of(const char* op, const char* name, const Tensor& t) {
  check_dense(op, name, t);
  check(t.dim() >= 1, op, ": ", name, " must have at least 1 dimension, got 0");
}

inline void check_ints(const char* op, const char* name, const Tensor& t, const Tensor& values,
                       const char* values_name) {
  check(t.dim() == 1, op, ": ", name, " must have 1 dimension, got ", t.dim());
  check(t.scalar_type() == ScalarType::Int || t.scalar_type() == ScalarType::Long, op, ": ", name,
        " must be int32 or int64, got ", scalar_type_name(t.scalar_type()));
  check(same_device(t, values), op, ": ", name, " must be on the device of ", values_name);
}

inline void check_fill(const char* op, const MaybeTensor& fill, const Tensor& values) {
  if (!fill) return;
  check(fill->numel() == 1, op, ": fill must have 1 element, got ", fill->numel());
  check(fill->scalar_type() == values.scalar_type(), op, ": fill must have the dtype of values (",
        scalar_type_name(values.scalar_type()), "), got ", scalar_type_name(fill->scalar_type()));
  check(same_device(*fill, values), op, ": fill must be on the device of values");
}

// Everything about a packing that its metadata says.
inline void check_packing(const char* op, const Tensor& values, const char* name,
                          const Tensor& indptr, const MaybeTensor& slices, const MaybeTensor& order,
                          const MaybeTensor& units, int64_t slots) {
  check_ints(op, "indptr", indptr, values, name);
  check(indptr.size(0) >= 1, op, ": indptr must have at least 1 element, got 0");
  const int64_t rows = indptr.size(0) - 1;
  check(slots >= 0, op, ": slots must not be negative, got ", slots);
  if (slices) {
    check_ints(op, "slices", *slices, values, name);
    check(slices->scalar_type() == ScalarType::Long, op, ": slices must be int64, got int32");
    check(slices->size(0) == strips_of(rows) + 1, op, ": slices must have ", strips_of(rows) + 1,
          " elements, got ", slices->size(0));
  } else {
    check(rows == 0 ? slots == 0 : slots % rows == 0, op,
          ": slots must be a multiple of the number of rows (", rows, "), got ", slots);
  }
  if (order) {
    check_ints(op, "order", *order, values, name);
    check(order->scalar_type() == indptr.scalar_type(), op,
          ": order must have the dtype of indptr (", scalar_type_name(indptr.scalar_type()),
          "), got ", scalar_type_name(order->scalar_type()));
    check(order->size(0) == rows, op, ": order must have ", rows, " elements, got ",
          order->size(0));
  }
  if (!units) return;
  check(units->dim() == 2 && units->size(0) == 2, op, ": units must have shape [2, units], got ",
        shape_text(units->sizes()));
  check(units->scalar_type() == ScalarType::Int, op, ": units must be int32, got ",
        scalar_type_name(units->scalar_type()));
  check(same_device(*units, values), op, ": units must be on the device of ", name);
}

inline void check_out(const char* op, const Tensor& out, const Tensor& values) {
  check_rows_of(op, "out", out);
  check(out.scalar_type() == values.scalar_type(), op, ": out must have the dtype of values (",
        scalar_type_name(values.scalar_type()), "), got ", scalar_type_name(out.scalar_type()));
  check(same_device(out, values), op, ": out must be on the device of values");
  check(out.is_contiguous(), op, ": out must be contiguous");
  bool same = out.dim() == values.dim();
  for (int64_t d = 1; same && d < out.dim(); ++d) same = out.size(d) == values.size(d);
  check(same, op, ": out must have the features of values ", shape_text(values.sizes()), ", got ",
        shape_text(out.sizes()));
}

inline void check_gather(const char* op, const Tensor& values, const Tensor& index,
                         const MaybeTensor& fill) {
  check_rows_of(op, "values", values);
  check_ints(op, "index", index, values, "values");
  check_fill(op, fill, values);
}

inline void check_numbers(const char* op, const Tensor& values) {
  check_dense(op, "values", values);
  const auto t = values.scalar_type();
  check(t == ScalarType::Half || t == ScalarType::BFloat16 || t == ScalarType::Float ||
            t == ScalarType::Double,
        op, ": values must be float16, bfloat16, float32 or float64, got ", scalar_type_name(t));
  check(values.dim() == 1, op, ": values must have 1 dimension, got ", values.dim());
}

// x, or start, beside the values of a matrix.
inline void check_operand(const char* op, const char* name, const Tensor& x, const Tensor& values) {
  check_dense(op, name, x);
  check(x.scalar_type() == values.scalar_type(), op, ": ", name, " must have the dtype of values (",
        scalar_type_name(values.scalar_type()), "), got ", scalar_type_name(x.scalar_type()));
  check(x.dim() == 1 || x.dim() == 2, op, ": ", name, " must have 1 or 2 dimensions, got ",
        x.dim());
  check(same_device(x, values), op, ": ", name, " must be on the device of values");
  check(x.size(0) <= INT32_MAX, op, ": ", name, " must have at most 2147483647 rows, got ",
        x.size(0));
}

inline void check_entries(const char* op, const Tensor& indices, const Tensor& values) {
  check_ints(op, "indices", indices, values, "values");
  check(indices.size(0) == values.size(0), op, ": indices must have ", values.size(0),
        " elements (as values has), got ", indices.size(0));
}

inline void check_spmv(const Tensor& values, const Tensor& indices, const Tensor& indptr,
                       const MaybeTensor& slices, const MaybeTensor& order,
                       const MaybeTensor& units, const Tensor& x, const MaybeTensor& start) {
  constexpr auto op = "spmv";
  check_numbers(op, values);
  check_entries(op, indices, values);
  check_packing(op, values, "values", indptr, slices, order, units, values.size(0));
  check_operand(op, "x", x, values);
  if (!start) return;
  check_operand(op, "start", *start, values);
  const int64_t rows = indptr.size(0) - 1;
  const bool fits = start->dim() == x.dim() && start->size(0) == rows &&
                    (x.dim() == 1 || start->size(1) == x.size(1));
  check(fits, op, ": start must have the shape of the result, got ", shape_text(start->sizes()));
}

inline void check_spmv_csr(const Tensor& indptr, const Tensor& indices, const Tensor& values,
                           const Tensor& x) {
  constexpr auto op = "spmv_csr";
  check_numbers(op, values);
  check_ints(op, "indptr", indptr, values, "values");
  check(indptr.size(0) >= 1, op, ": indptr must have at least 1 element, got 0");
  check_entries(op, indices, values);
  check_operand(op, "x", x, values);
}

// The words for data that a look at it found to be bad.
inline void check_good(const char* op, bool good) {
  check(good, op,
        ": indptr must start at 0, not decrease and end at the number of entries, and slices, "
        "order and slots fit it");
}

}  // namespace gpuprims::reorder
