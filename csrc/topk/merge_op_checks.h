// Which inputs merge_topk takes, in the words that CPU, CUDA and the fake kernel share
// (torch_gpuprims/topk_merge.py).
#pragma once
#include <vector>

#include "common/stable.h"
#include "topk/slots.h"

namespace gpuprims {

struct MergeShape {
  Dtype dtype = Dtype::f32;
  int64_t rows = 1;
  int64_t m = 0;                // candidates a row
  std::vector<int64_t> output;  // sizes with k in place of m
};

inline MergeShape check_merge_topk(const Tensor& values, const Tensor& indices, int64_t k) {
  check(is_strided(values), "merge_topk: values must be a dense tensor, got a sparse layout");
  check(is_strided(indices), "merge_topk: indices must be a dense tensor, got a sparse layout");
  MergeShape shape;
  shape.dtype = dtype_of("merge_topk", values.scalar_type());
  const int64_t rank = values.dim();
  check(rank >= 1, "merge_topk: values must have at least 1 dimension, got 0");
  const auto index_type = indices.scalar_type();
  check(index_type == ScalarType::Long || index_type == ScalarType::Int,
        "merge_topk: indices must be int64 or int32, got ", scalar_type_name(index_type));
  const auto sizes = values.sizes(), have = indices.sizes();
  bool same = have.size() == sizes.size();
  for (size_t d = 0; same && d < sizes.size(); ++d) same = have[d] == sizes[d];
  check(same, "merge_topk: indices must have the shape of values ", shape_text(sizes), ", got ",
        shape_text(have));
  check(same_device(indices, values), "merge_topk: indices must be on the device of values");
  check(k >= 0, "merge_topk: k must not be negative, got ", k);
  shape.output.assign(sizes.begin(), sizes.end());
  shape.m = shape.output.back();
  shape.output.back() = k;
  for (int64_t d = 0; d + 1 < rank; ++d) shape.rows *= sizes[d];
  check_slots("merge_topk", shape.rows, k);
  return shape;
}

}  // namespace gpuprims
