// Rows along the last dimension, whatever the dimension that is sorted.
#pragma once
#include <array>

#include "common/stable.h"

namespace gpuprims {

inline Tensor empty_as(const char* op, const Tensor& like, ScalarType dtype) {
  const auto sizes = like.sizes();
  return empty(op, like, dtype, sizes.data(), static_cast<int64_t>(sizes.size()));
}

// The tensor itself where it is dense, else a copy in memory whose want is told in the op's words.
inline Tensor dense(const char* op, const Tensor& t) {
  if (t.is_contiguous()) return t;
  Tensor copy = empty_as(op, t, t.scalar_type());
  torch::stable::copy_(copy, t);
  return copy;
}

inline Tensor moved_dim(const char* op, const Tensor& t, int64_t from, int64_t to) {
  std::array<StableIValue, 3> stack{torch::stable::detail::from(t),
                                    torch::stable::detail::from(from),
                                    torch::stable::detail::from(to)};
  check_call(torch_call_dispatcher("aten::movedim", "int", stack.data(), TORCH_ABI_VERSION),
             "movedim");
  return dense(op, torch::stable::detail::to<Tensor>(stack[0]));
}

// The input with the sorted dimension last and dense; the input itself where it is that already.
inline Tensor rows_last(const char* op, const Tensor& input, int64_t dim, bool last) {
  return last ? dense(op, input) : moved_dim(op, input, dim, -1);
}

inline Tensor rows_back(const char* op, Tensor t, int64_t dim, bool last) {
  return last ? t : moved_dim(op, t, -1, dim);
}

}  // namespace gpuprims
