// From an op and dtypes to what the kernels are told; the same for both devices.
#pragma once
#include <cmath>

#include "reduce/checks.h"

namespace gpuprims {

// False where there are more extents than kernels take: then the input is copied.
inline bool layout_of(const Tensor& input, const ReduceShape& shape, bool in_order,
                      ReduceLayout& layout) {
  return make_layout(input.sizes().data(), input.strides().data(), shape.rank, shape.reduced,
                     in_order, layout);
}

// Kept dimensions first, in their order, then reduced ones in theirs.
inline Tensor kept_first(Tensor input, ReduceShape& shape) {
  for (bool moved = true; moved;) {
    moved = false;
    for (int64_t d = 0; d + 1 < shape.rank; ++d) {
      if (!shape.reduced[d] || shape.reduced[d + 1]) continue;
      input = torch::stable::transpose(input, d, d + 1);
      std::swap(shape.reduced[d], shape.reduced[d + 1]);
      moved = true;
    }
  }
  return input;
}

// The input as kernels see it; `copy` keeps what had too many extents alive.
inline void attach(ReduceArgs& args, const Tensor& input, const ReduceShape& shape,
                   ReduceFamily family, bool in_order, std::optional<Tensor>& copy) {
  ReduceLayout layout;
  if (!layout_of(input, shape, in_order, layout)) {
    copy = torch::stable::contiguous(input);
    if (!layout_of(*copy, shape, in_order, layout)) {  // kept and reduced in turns
      ReduceShape apart = shape;
      copy = torch::stable::contiguous(kept_first(input, apart));
      layout_of(*copy, apart, in_order, layout);
    }
  }
  args.input = (copy ? *copy : input).const_data_ptr();
  set_layout(args, family, layout);
}

// The dtype that an input is converted to before: integers whose floating result may lie beyond 64
// bits (products, and sums of 8 bytes) as PyTorch's to float64; 16-bit floats of which a float64
// result was asked for to float32, which may be added in float64.
constexpr Dtype reduced_as(ReduceOp op, Dtype in, Dtype out) {
  if (!is_floating(out) || !takes_dtype(op)) return in;
  if (is_floating(in)) return out == Dtype::f64 && dtype_bytes(in) == 2 ? Dtype::f32 : in;
  return op == ReduceOp::prod || dtype_bytes(in) == 8 ? Dtype::f64 : in;
}

}  // namespace gpuprims
