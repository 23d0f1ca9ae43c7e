// approx_topk's checks, and its way from the dispatcher's stack to the kernels of one device.
#pragma once
#include <utility>

#include "topk/boxed.h"

namespace gpuprims {

inline void check_recall(double recall_target) {
  check(recall_target > 0 && recall_target <= 1,
        "approx_topk: recall_target must be above 0 and at most 1, got ", recall_target);
}

// Of approx_topk(input, k, recall_target, largest).
using ApproxKernel = TopkResult(const Tensor& input, int64_t k, double recall_target, bool largest);

template <ApproxKernel* kernel>
void boxed_approx_topk(StableIValue* stack, uint64_t, uint64_t) {
  const auto input = take_argument<Tensor>(stack, 0);
  auto [values, indices] = kernel(input, take_argument<int64_t>(stack, 1),
                                  take_argument<double>(stack, 2), take_argument<bool>(stack, 3));
  give_result(stack, 0, std::move(values));
  give_result(stack, 1, std::move(indices));
}

}  // namespace gpuprims
