// The sorts on the CPU: radix sort of (key, index) records or of keys; rows are spread over
// threads, and one long row is sorted by all of them.
#include <optional>

#include "common/bad_data.h"
#include "sort/checks.h"
#include "sort/cpu_rows.h"
#include "sort/layout.h"

namespace gpuprims {
namespace {

using cpu_sort::Problem;

ScalarType index_type(int64_t bits) { return bits == 64 ? ScalarType::Long : ScalarType::Int; }

struct Result {
  std::optional<Tensor> values, indices;
};

// All of sort, argsort and sort_keys.
Result sort_dim(const char* op, const Tensor& input, const SortShape& shape, bool descending,
                bool want_values, bool want_indices, int64_t index_bits, BitRange bits) {
  const Tensor source = rows_last(op, input, shape.dim, shape.last);
  Problem p;
  p.op = op;
  p.dtype = shape.dtype;
  p.descending = descending;
  p.bits = bits;
  p.input = source.const_data_ptr();
  p.wide_indices = index_bits == 64;
  Result result;
  if (want_values) {
    result.values = empty_as(op, source, input.scalar_type());
    p.values = result.values->mutable_data_ptr();
    cpu_sort::advise(p.values, result.values->numel() * dtype_bytes(p.dtype));
  }
  if (want_indices) {
    result.indices = empty_as(op, source, index_type(index_bits));
    p.indices = result.indices->mutable_data_ptr();
    cpu_sort::advise(p.indices, result.indices->numel() * index_bits / 8);
  }
  const int64_t n = shape.n;
  if (shape.rows > 0 && n > 0)
    cpu_sort::sort_any(p, shape.rows, n, [n](int64_t row) { return row * n; });
  if (want_values) result.values = rows_back(op, *result.values, shape.dim, shape.last);
  if (want_indices) result.indices = rows_back(op, *result.indices, shape.dim, shape.last);
  return result;
}

std::tuple<Tensor, Tensor> sort_cpu(const Tensor& input, int64_t dim, bool descending,
                                    int64_t index_bits) {
  const SortShape shape = check_sort("sort", input, dim);
  check_index_bits("sort", index_bits, shape.n);
  Result r = sort_dim("sort", input, shape, descending, true, true, index_bits,
                      {0, dtype_bytes(shape.dtype) * 8});
  return {*r.values, *r.indices};
}

Tensor argsort_cpu(const Tensor& input, int64_t dim, bool descending, int64_t index_bits,
                   int64_t begin_bit, int64_t end_bit) {
  const SortShape shape = check_sort("argsort", input, dim);
  check_index_bits("argsort", index_bits, shape.n);
  end_bit = check_bits("argsort", shape.dtype, begin_bit, end_bit);
  return *sort_dim("argsort", input, shape, descending, false, true, index_bits,
                   {static_cast<int>(begin_bit), static_cast<int>(end_bit)})
              .indices;
}

Tensor sort_keys_cpu(const Tensor& input, int64_t dim, bool descending) {
  const SortShape shape = check_sort("sort_keys", input, dim);
  return *sort_dim("sort_keys", input, shape, descending, true, false, 64,
                   {0, dtype_bytes(shape.dtype) * 8})
              .values;
}

void sort_keys_in_place_cpu(const Tensor& input, bool descending) {
  const SortShape shape = check_sort_in_place(input);
  const Result sorted = sort_dim("sort_keys", input, shape, descending, true, false, 64,
                                 {0, dtype_bytes(shape.dtype) * 8});
  std::memcpy(input.mutable_data_ptr(), sorted.values->const_data_ptr(),
              input.numel() * dtype_bytes(shape.dtype));
}

// Offsets that are wrong leave values as 0 or NaN bits and indices -1, as the kernels for CUDA do.
void fill_bad(const Problem& p, int64_t n) {
  std::memset(p.values, is_floating(p.dtype) ? 0xff : 0, n * dtype_bytes(p.dtype));
  std::memset(p.indices, 0xff, n * (p.wide_indices ? 8 : 4));
}

std::tuple<Tensor, Tensor> segment_sort_cpu(const Tensor& keys, const Tensor& indptr,
                                            bool descending, int64_t index_bits) {
  constexpr auto op = "segment_sort";
  check_segments(keys, indptr, index_bits);
  const Tensor source = dense(op, keys), at = dense(op, indptr);
  Tensor values = empty_as(op, source, keys.scalar_type());
  Tensor indices = empty_as(op, source, index_type(index_bits));
  Problem p;
  p.op = op;
  p.dtype = dtype_of(op, keys.scalar_type());
  p.descending = descending;
  p.bits = {0, dtype_bytes(p.dtype) * 8};
  p.input = source.const_data_ptr();
  p.values = values.mutable_data_ptr();
  p.indices = indices.mutable_data_ptr();
  p.wide_indices = index_bits == 64;
  p.index_base = -1;  // positions in keys, not in the segment
  const int64_t segments = at.size(0) - 1, n = keys.size(0);
  const bool wide = at.scalar_type() == ScalarType::Long;
  const void* const offsets = at.const_data_ptr();
  const auto start = [=](int64_t s) -> int64_t {
    return wide ? static_cast<const int64_t*>(offsets)[s] : static_cast<const int32_t*>(offsets)[s];
  };
  bool good = start(0) == 0 && start(segments) == n;
  int64_t longest = 0;
  for (int64_t s = 0; s < segments; ++s) {
    good &= start(s) <= start(s + 1);
    longest = std::max(longest, start(s + 1) - start(s));
  }
  check(good || !raise_on_bad_data(), op, ": indptr must rise from 0 to the number of keys (", n,
        ")");
  if (!good)
    fill_bad(p, n);
  else if (n > 0)
    cpu_sort::sort_any(p, segments, longest, start);
  return {std::move(values), std::move(indices)};
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("sort", TORCH_BOX(&gpuprims::sort_cpu));
  m.impl("argsort", TORCH_BOX(&gpuprims::argsort_cpu));
  m.impl("sort_keys", TORCH_BOX(&gpuprims::sort_keys_cpu));
  m.impl("_sort_keys_", TORCH_BOX(&gpuprims::sort_keys_in_place_cpu));
  m.impl("segment_sort", TORCH_BOX(&gpuprims::segment_sort_cpu));
}
