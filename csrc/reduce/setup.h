// From an op and dtypes to what the kernels are told; the same for both devices.
#pragma once
#include <cmath>

#include "reduce/checks.h"

namespace gpuprims {

inline Decode decode_for(ReduceOp op, Dtype dtype, bool as_integer) {
  const bool least = op == ReduceOp::min || op == ReduceOp::argmin || op == ReduceOp::all;
  Decode d;
  d.bf16 = dtype == Dtype::bf16;
  d.bytes = dtype_bytes(dtype);
  if (as_integer) {
    d.is_signed = is_signed_integer(dtype);
    d.nonzero = op == ReduceOp::any || op == ReduceOp::all;
    if (d.nonzero) {
      d.is_signed = false;
      if (is_floating(dtype)) d.keep = ~(uint64_t{1} << (8 * d.bytes - 1));
    }
    const bool ordered = family_of(op) != ReduceFamily::additive;
    if (ordered && !d.nonzero && dtype == Dtype::u64) d.flip = uint64_t{1} << 63;
    if (least) d.flip = ~d.flip;
    return d;
  }
  const uint64_t sign = dtype == Dtype::f64 ? uint64_t{1} << 63 : uint64_t{1} << 31;
  if (op == ReduceOp::norm_inf) d.keep = ~sign;
  if (least) d.flip = sign;
  return d;
}

inline ReduceArgs args_for(const ReduceShape& shape, double correction) {
  ReduceArgs args;
  const ReduceOp op = shape.op;
  const bool as_integer =
      !is_floating(shape.dtype) || op == ReduceOp::any || op == ReduceOp::all;
  args.dtype = shape.dtype;
  args.out_dtype = shape.out_dtype;
  const bool wide =
      shape.dtype == Dtype::f64 || (shape.dtype == Dtype::f32 && shape.out_dtype == Dtype::f64);
  args.acc = as_integer ? Dtype::i64 : wide ? Dtype::f64 : Dtype::f32;
  args.decode = decode_for(op, shape.dtype, as_integer);
  args.product = op == ReduceOp::prod;
  args.transform = op == ReduceOp::norm1 ? 1 : op == ReduceOp::norm2 ? 2 : 0;
  if (op == ReduceOp::mean || op == ReduceOp::var) args.ending = Ending::divide;
  if (op == ReduceOp::norm2) args.ending = Ending::root;
  if (op == ReduceOp::std) args.ending = Ending::divide_root;
  args.divisor = correction;  // until set_layout
  return args;
}

inline void set_layout(ReduceArgs& args, ReduceFamily family, const ReduceLayout& layout) {
  args.layout = layout;
  const auto n = static_cast<double>(layout.n);
  const bool spread = family == ReduceFamily::moments || family == ReduceFamily::stats;
  args.divisor = spread ? std::max(0.0, n - args.divisor) : n;
}

// False where there are more extents than kernels take: then the input is copied.
inline bool layout_of(const Tensor& input, const ReduceShape& shape, bool in_order,
                      ReduceLayout& layout) {
  return make_layout(input.sizes().data(), input.strides().data(), shape.rank, shape.reduced,
                     in_order, layout);
}

// The input as kernels see it; `copy` keeps what had too many extents alive.
inline void attach(ReduceArgs& args, const Tensor& input, const ReduceShape& shape, ReduceFamily family,
            bool in_order, std::optional<Tensor>& copy) {
  ReduceLayout layout;
  if (!layout_of(input, shape, in_order, layout)) {
    copy = torch::stable::contiguous(input);
    check(layout_of(*copy, shape, in_order, layout), "reduce: at most ", kMaxExtents,
          " groups of dimensions are supported");
  }
  args.input = (copy ? *copy : input).const_data_ptr();
  set_layout(args, family, layout);
}

inline ReduceProblem problem_for(const ReduceArgs& args, ReduceFamily family, int sms) {
  ReduceProblem p;
  p.dtype = args.dtype;
  p.family = family;
  p.layout = args.layout;
  p.sms = sms;
  set_lanes(p, args.acc);
  return p;
}

}  // namespace gpuprims
