// Which inputs _graph_labels takes.
#pragma once
#include "aggregate/checks.h"
#include "aggregate/labels.h"

namespace gpuprims {

inline void check_labels(const Tensor& indptr, const Tensor& indices, int64_t method,
                         int64_t rounds, int64_t spacing) {
  constexpr auto op = "_graph_labels";
  check_vector(op, "indptr", indptr, indices, "indices");
  check_vector(op, "indices", indices, indices, "indices");
  check(indptr.size(0) >= 1, op, ": indptr must have at least 1 element, got 0");
  check(indptr.size(0) <= INT32_MAX, op, ": there must be fewer than 2^31 - 1 rows");
  check(method == 0 || method == 1, op, ": method must be 0 (majority) or 1 (grow), got ", method);
  check(rounds >= 0, op, ": rounds must not be negative, got ", rounds);
  check(spacing >= 1, op, ": spacing must be at least 1, got ", spacing);
}

struct LabelTensors {
  LabelTensors(const Tensor& p, const Tensor& i)
      : indptr(dense(p)),
        indices(dense(i)),
        rows(indptr.size(0) - 1),
        first(empty("_graph_labels", indices, ScalarType::Int, {rows})),
        second(empty("_graph_labels", indices, ScalarType::Int, {rows})) {
    args = {indptr.data_ptr(),
            indices.data_ptr(),
            indptr.scalar_type() == ScalarType::Long,
            indices.scalar_type() == ScalarType::Long,
            rows,
            indices.size(0),
            static_cast<const int32_t*>(first.data_ptr()),
            static_cast<int32_t*>(second.data_ptr())};
  }

  // What the last round wrote is what the next one reads.
  void turn() {
    std::swap(first, second);
    args.from = static_cast<const int32_t*>(first.data_ptr());
    args.to = static_cast<int32_t*>(second.data_ptr());
  }

  Tensor indptr, indices;
  int64_t rows;
  Tensor first, second;
  LabelArgs args;
};

}  // namespace gpuprims
