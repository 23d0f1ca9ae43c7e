// Between the dispatcher's stack and the kernels of one device.
#pragma once
#include <array>
#include <utility>

#include "reduce/setup.h"

namespace gpuprims {

constexpr int64_t kAllDims = INT64_MIN;  // of _reduce

using ReduceKernel = TensorPtr(const Tensor& input, int64_t op, const MaybeDims& dims, bool keepdim,
                               int64_t dtype, double correction);
using StatsResult = std::array<TensorPtr, 7>;
using StatsKernel = StatsResult(const Tensor& input, const MaybeDims& dims, bool keepdim,
                                double correction, bool indices);
using DotKernel = TensorPtr(const Tensor& input, const Tensor& other);

template <ReduceKernel* kernel>
void boxed_reduce(StableIValue* stack, uint64_t, uint64_t) {
  const auto input = take_argument<Tensor>(stack, 0);
  const auto dims = take_argument<MaybeDims>(stack, 2);
  give_result(stack, 0,
              kernel(input, take_argument<int64_t>(stack, 1), dims, take_argument<bool>(stack, 3),
                     take_argument<int64_t>(stack, 4), take_argument<double>(stack, 5)));
}

template <ReduceKernel* kernel>
void boxed_plain_reduce(StableIValue* stack, uint64_t, uint64_t) {
  const auto input = take_argument<Tensor>(stack, 0);
  const auto dim = take_argument<int64_t>(stack, 2);
  MaybeDims dims;
  if (dim != kAllDims) dims.emplace(1, dim);
  give_result(stack, 0, kernel(input, take_argument<int64_t>(stack, 1), dims, false, -1, 1.0));
}

template <StatsKernel* kernel>
void boxed_stats(StableIValue* stack, uint64_t, uint64_t) {
  const auto input = take_argument<Tensor>(stack, 0);
  const auto dims = take_argument<MaybeDims>(stack, 1);
  StatsResult result = kernel(input, dims, take_argument<bool>(stack, 2),
                              take_argument<double>(stack, 3), take_argument<bool>(stack, 4));
  for (int i = 0; i < 7; ++i) give_result(stack, i, std::move(result[i]));
}

template <DotKernel* kernel>
void boxed_dot(StableIValue* stack, uint64_t, uint64_t) {
  const auto input = take_argument<Tensor>(stack, 0), other = take_argument<Tensor>(stack, 1);
  give_result(stack, 0, kernel(input, other));
}

// The outputs of stats; without indices the last two are empty.
inline StatsResult allocate_stats(const Tensor& input, const ReduceShape& shape, bool indices) {
  const Place place = place_of(input);
  const int64_t none = 0;
  StatsResult result;
  for (int i = 0; i < 7; ++i) {
    const auto type = i < 4 ? input.scalar_type() : ScalarType::Long;
    const bool given = i < 5 || indices;
    result[i] =
        allocate("stats", place, type, given ? shape.output : &none, given ? shape.out_rank : 1);
  }
  return result;
}

}  // namespace gpuprims
