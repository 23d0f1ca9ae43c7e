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

// The input as kernels see it; `copy` keeps what had too many extents alive.
inline void attach(ReduceArgs& args, const Tensor& input, const ReduceShape& shape,
                   ReduceFamily family, bool in_order, std::optional<Tensor>& copy) {
  ReduceLayout layout;
  if (!layout_of(input, shape, in_order, layout)) {
    copy = torch::stable::contiguous(input);
    check(layout_of(*copy, shape, in_order, layout), "reduce: at most ", kMaxExtents,
          " groups of dimensions are supported");
  }
  args.input = (copy ? *copy : input).const_data_ptr();
  set_layout(args, family, layout);
}

}  // namespace gpuprims
