// What the kernels of both devices are told.
#pragma once
#include "reduce/plan.h"

namespace gpuprims {

// From an element's bits to the value that is reduced.
struct Decode {
  bool bf16 = false;       // of two 16-bit formats
  bool is_signed = false;  // integers
  bool nonzero = false;    // integers: 1 where (bits & keep) is not 0
  int bytes = 4;           // of an integer
  uint64_t keep = ~uint64_t{0};
  uint64_t flip = 0;  // mirrors the order, for the least element; unsigned order to signed
};

enum class Ending : int32_t { none, divide, root, divide_root };

struct ReduceArgs {
  const void* input = nullptr;
  const void* other = nullptr;  // dot
  ReduceLayout layout;
  Decode decode;
  bool product = false;  // of Additive
  int transform = 0;
  bool indices = false;  // of Stats
  Ending ending = Ending::none;
  double divisor = 1;
  Dtype dtype = Dtype::f32;      // of the input
  Dtype acc = Dtype::f32;        // f32, f64, or i64: elements are looked at as integers
  Dtype out_dtype = Dtype::f32;  // of results; Stats: of min and max
  void* out[7] = {};
  void* partials = nullptr;     // [columns, parts], or [parts, columns] where strided
  uint32_t* tickets = nullptr;  // zeros, and zeros again afterwards
};

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

inline ReduceArgs args_for(ReduceOp op, Dtype dtype, Dtype out_dtype, double correction) {
  ReduceArgs args;
  const bool as_integer = !is_floating(dtype) || op == ReduceOp::any || op == ReduceOp::all;
  args.dtype = dtype;
  args.out_dtype = out_dtype;
  const bool wide = dtype == Dtype::f64 || (dtype == Dtype::f32 && out_dtype == Dtype::f64);
  args.acc = as_integer ? Dtype::i64 : wide ? Dtype::f64 : Dtype::f32;
  args.decode = decode_for(op, dtype, as_integer);
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

inline ReduceProblem problem_for(const ReduceArgs& args, ReduceFamily family, int sms) {
  ReduceProblem p;
  p.dtype = args.dtype;
  p.family = family;
  p.layout = args.layout;
  p.sms = sms;
  p.aligned = reinterpret_cast<uintptr_t>(args.input) % 16 == 0;
  set_lanes(p, args.acc, args.indices);
  return p;
}

// Values of 4-byte integers have 32 bits in rows of them: the mirror of an unsigned order is there.
inline void fit_decode(ReduceArgs& args, const ReducePlan& plan, ReduceFamily family) {
  if (plan.algo == ReduceAlgo::long_rows && args.dtype == Dtype::u32 && !args.decode.nonzero &&
      family != ReduceFamily::additive)
    args.decode.flip ^= uint64_t{1} << 31;
}

}  // namespace gpuprims
