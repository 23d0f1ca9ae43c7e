// Rows along the last dimension, whatever the dimension that is sorted.
#pragma once
#include <array>

#include "common/stable.h"

namespace gpuprims {

inline Tensor moved_dim(const Tensor& t, int64_t from, int64_t to) {
  std::array<StableIValue, 3> stack{torch::stable::detail::from(t),
                                    torch::stable::detail::from(from),
                                    torch::stable::detail::from(to)};
  check_call(torch_call_dispatcher("aten::movedim", "int", stack.data(), TORCH_ABI_VERSION),
             "movedim");
  return torch::stable::contiguous(torch::stable::detail::to<Tensor>(stack[0]));
}

// The input with the sorted dimension last and dense; the input itself where it is that already.
inline Tensor rows_last(const Tensor& input, int64_t dim, bool last) {
  return last ? torch::stable::contiguous(input) : moved_dim(input, dim, -1);
}

inline Tensor rows_back(Tensor t, int64_t dim, bool last) {
  return last ? t : moved_dim(t, -1, dim);
}

inline Tensor empty_as(const char* op, const Tensor& like, ScalarType dtype) {
  const auto sizes = like.sizes();
  return empty(op, like, dtype, sizes.data(), static_cast<int64_t>(sizes.size()));
}

}  // namespace gpuprims
