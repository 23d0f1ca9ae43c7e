// Between the dispatcher's stack and the kernels of one device.
#pragma once
#include <utility>

#include "aggregate/checks.h"

namespace gpuprims {

// The arguments of neighbor_aggregate; those of a transpose are checked and otherwise left alone.
struct AggregateCall {
  Tensor x, indptr, indices;
  MaybeTensor edge_ids, edge_weight, t_indptr, t_indices, t_edge_ids;
  int64_t reduce;
  bool want_arg;
  int64_t promises;
  MaybeTensor plan;
  MaybeTensor scale = {}, bias = {};
};

struct AggregateResult {
  TensorPtr out;
  TensorPtr arg;  // null where none is wanted
};

using AggregateKernel = AggregateResult(const AggregateCall& call);

template <AggregateKernel* kernel>
void boxed_aggregate(StableIValue* stack, uint64_t, uint64_t) {
  const AggregateCall call{
      take_argument<Tensor>(stack, 0),      take_argument<Tensor>(stack, 1),
      take_argument<Tensor>(stack, 2),      take_argument<MaybeTensor>(stack, 3),
      take_argument<MaybeTensor>(stack, 4), take_argument<MaybeTensor>(stack, 5),
      take_argument<MaybeTensor>(stack, 6), take_argument<MaybeTensor>(stack, 7),
      take_argument<int64_t>(stack, 8),     take_argument<bool>(stack, 9),
      take_argument<int64_t>(stack, 10),    take_argument<MaybeTensor>(stack, 11)};
  take_argument<MaybeTensor>(stack, 12);  // of the transpose; a gradient reads it
  auto [out, arg] = kernel(call);
  if (!arg) {
    const int64_t none = 0;
    arg = allocate("neighbor_aggregate", place_of(call.x), call.indptr.scalar_type(), &none, 1);
  }
  give_result(stack, 0, std::move(out));
  give_result(stack, 1, std::move(arg));
}

template <AggregateKernel* kernel>
void boxed_plain_aggregate(StableIValue* stack, uint64_t, uint64_t) {
  const AggregateCall call{take_argument<Tensor>(stack, 0),
                           take_argument<Tensor>(stack, 1),
                           take_argument<Tensor>(stack, 2),
                           take_argument<MaybeTensor>(stack, 3),
                           take_argument<MaybeTensor>(stack, 4),
                           {},
                           {},
                           {},
                           take_argument<int64_t>(stack, 5),
                           false,
                           take_argument<int64_t>(stack, 6),
                           take_argument<MaybeTensor>(stack, 7)};
  give_result(stack, 0, kernel(call).out);
}

template <AggregateKernel* kernel>
Tensor affine(const Tensor& x, const Tensor& indptr, const Tensor& indices,
              const MaybeTensor& edge_ids, const Tensor& scale, const MaybeTensor& bias,
              int64_t promises, const MaybeTensor& plan) {
  check_aggregate(x, indptr, indices, edge_ids, {}, {}, {}, {}, 0);
  check_affine(x, indptr, scale, bias);
  return Tensor(kernel({x,
                        indptr,
                        indices,
                        edge_ids,
                        {},
                        {},
                        {},
                        {},
                        0,
                        false,
                        promises,
                        plan,
                        dense(scale),
                        dense(bias)})
                    .out.release());
}

}  // namespace gpuprims
