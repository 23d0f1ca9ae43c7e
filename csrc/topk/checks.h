// Which inputs topk takes, in the words that CPU, CUDA and the fake kernel share
// (torch_gpuprims/topk.py).
#pragma once
#include <optional>

#include "common/stable.h"

namespace gpuprims {

// The input as [outer, n, inner] around the selected dimension.
struct TopkShape {
  Dtype dtype = Dtype::f32;
  int64_t dim = 0;   // non-negative; 0 for a 0-d input
  int64_t rows = 1;  // outer * inner
  int64_t n = 1;
  int64_t inner = 1;
  int64_t rank = 0;
  int64_t output[kMaxDims];  // sizes with k in place of n
};

inline TopkShape check_topk(TensorRef input, int64_t k, int64_t dim,
                            const std::optional<Tensor>& mask, int64_t index_bits) {
  check(is_strided(input), "topk: input must be a dense tensor, got a sparse layout");
  TopkShape shape;
  shape.dtype = dtype_of("topk", input.scalar_type());
  const auto sizes = input.sizes();
  const auto rank = static_cast<int64_t>(sizes.size());
  check(rank <= kMaxDims, "topk: at most ", kMaxDims, " dimensions are supported, got ", rank);
  shape.rank = rank;
  const int64_t span = rank > 0 ? rank : 1;
  check(dim >= -span && dim < span, "topk: dim must be between ", -span, " and ", span - 1,
        ", got ", dim);
  shape.dim = dim < 0 ? dim + span : dim;
  for (int64_t d = 0; d < rank; ++d) {
    shape.output[d] = d == shape.dim ? k : sizes[d];
    if (d != shape.dim) shape.rows *= sizes[d];
    if (d > shape.dim) shape.inner *= sizes[d];
  }
  if (rank > 0) shape.n = sizes[shape.dim];
  check(k >= 0 && k <= shape.n, "topk: k must be between 0 and ", shape.n,
        " (the size of dimension ", shape.dim, "), got ", k);
  check(index_bits == 64 || index_bits == 32, "topk: index_dtype must be int64 or int32");
  check(index_bits == 64 || shape.n <= INT32_MAX,
        "topk: index_dtype int32 holds no index of a dimension of ", shape.n);
  if (mask) {
    check(mask->scalar_type() == ScalarType::Bool, "topk: mask must be bool, got ",
          scalar_type_name(mask->scalar_type()));
    check(is_strided(*mask), "topk: mask must be a dense tensor, got a sparse layout");
    check(same_device(*mask, input), "topk: mask must be on the device of input");
    const auto have = mask->sizes();
    bool fits = static_cast<int64_t>(have.size()) <= rank;
    for (int64_t i = 1; fits && i <= static_cast<int64_t>(have.size()); ++i)
      fits = have[have.size() - i] == 1 || have[have.size() - i] == sizes[rank - i];
    check(fits, "topk: mask of shape ", shape_text(have), " does not broadcast to input of shape ",
          shape_text(sizes));
  }
  return shape;
}

}  // namespace gpuprims
