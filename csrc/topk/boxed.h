// Between the dispatcher's stack and the kernels of one device.
#pragma once
#include <optional>
#include <utility>

#include "topk/checks.h"

namespace gpuprims {

struct TopkResult {
  TensorPtr values, indices;
};

using TopkKernel = TopkResult(TensorRef input, int64_t k, int64_t dim, bool largest,
                              const std::optional<Tensor>& mask, int64_t index_bits);

inline TopkResult allocate_topk(TensorRef input, const TopkShape& shape, int64_t index_bits) {
  const Place place = place_of(input);
  const auto index_type = index_bits == 64 ? ScalarType::Long : ScalarType::Int;
  return {allocate("topk", place, input.scalar_type(), shape.output, shape.rank),
          allocate("topk", place, index_type, shape.output, shape.rank)};
}

// The boxed kernels of schema.cpp's ops. `sorted` asks for nothing more: the result always is.
template <TopkKernel* kernel>
void boxed_topk(StableIValue* stack, uint64_t, uint64_t) {
  const auto input = take_tensor(stack, 0);
  const auto mask = take_argument<std::optional<Tensor>>(stack, 5);
  auto [values, indices] = kernel(TensorRef(input.get()), take_argument<int64_t>(stack, 1),
                                  take_argument<int64_t>(stack, 2), take_argument<bool>(stack, 3),
                                  mask, take_argument<int64_t>(stack, 6));
  give_result(stack, 0, std::move(values));
  give_result(stack, 1, std::move(indices));
}

template <TopkKernel* kernel>
void boxed_plain_topk(StableIValue* stack, uint64_t, uint64_t) {
  const auto input = take_tensor(stack, 0);
  auto [values, indices] =
      kernel(TensorRef(input.get()), take_argument<int64_t>(stack, 1), -1, true, std::nullopt, 64);
  give_result(stack, 0, std::move(values));
  give_result(stack, 1, std::move(indices));
}

}  // namespace gpuprims
