// Which inputs reduce, stats and dot take, in the words that CPU, CUDA and the fake kernels share
// (torch_gpuprims/reduce_fake.py).
#pragma once
#include <optional>
#include <vector>

#include "common/stable.h"
#include "reduce/args.h"

namespace gpuprims {

using MaybeDims = std::optional<std::vector<int64_t>>;

struct ReduceShape {
  Dtype dtype = Dtype::f32, out_dtype = Dtype::f32;
  ReduceOp op = ReduceOp::sum;
  int64_t rank = 0;
  bool reduced[kMaxDims] = {};
  int64_t out_rank = 0;
  int64_t output[kMaxDims];
};

inline ScalarType scalar_type_of(Dtype t) {
  switch (t) {
    case Dtype::u8:
      return ScalarType::Byte;
    case Dtype::i8:
      return ScalarType::Char;
    case Dtype::u16:
      return ScalarType::UInt16;
    case Dtype::i16:
      return ScalarType::Short;
    case Dtype::u32:
      return ScalarType::UInt32;
    case Dtype::i32:
      return ScalarType::Int;
    case Dtype::u64:
      return ScalarType::UInt64;
    case Dtype::i64:
      return ScalarType::Long;
    case Dtype::f16:
      return ScalarType::Half;
    case Dtype::bf16:
      return ScalarType::BFloat16;
    case Dtype::f32:
      return ScalarType::Float;
    case Dtype::f64:
      return ScalarType::Double;
    default:
      return ScalarType::Bool;
  }
}

constexpr bool takes_dtype(ReduceOp op) {
  return op == ReduceOp::sum || op == ReduceOp::mean || op == ReduceOp::prod ||
         op == ReduceOp::norm1 || op == ReduceOp::norm2;
}

constexpr bool floats_alone(ReduceOp op) { return op >= ReduceOp::norm1; }

// What the result's dtype is; `given` is the code of the dtype argument, or -1.
inline Dtype result_dtype(ReduceOp op, Dtype in, int64_t given) {
  const char* const name = reduce_op_name(op);
  check(!floats_alone(op) || is_floating(in), "reduce: ", name, " is not defined for ",
        dtype_name(in));
  if (given < 0) {
    check(op != ReduceOp::mean || is_floating(in), "reduce: mean is not defined for ",
          dtype_name(in), " without a floating dtype");
    if (is_arg(op)) return Dtype::i64;
    if (op == ReduceOp::any || op == ReduceOp::all) return Dtype::boolean;
    const bool adds = op == ReduceOp::sum || op == ReduceOp::prod;
    return is_floating(in) || !adds ? in : in == Dtype::u64 ? in : Dtype::i64;
  }
  check(takes_dtype(op), "reduce: ", name, " takes no dtype");
  check(given <= static_cast<int64_t>(Dtype::boolean), "reduce: no dtype has the code ", given);
  const auto out = static_cast<Dtype>(given);
  const bool ok =
      is_floating(out) || (!is_floating(in) && op != ReduceOp::mean && out != Dtype::boolean);
  check(ok, "reduce: ", name, " of ", dtype_name(in), " cannot have dtype ", dtype_name(out));
  return out;
}

inline void check_dims(const char* op, const Tensor& input, const MaybeDims& dims, bool keepdim,
                       ReduceShape& shape) {
  check(is_strided(input), op, ": input must be a dense tensor, got a sparse layout");
  shape.dtype = dtype_of(op, input.scalar_type());
  const auto sizes = input.sizes();
  const int64_t rank = shape.rank = input.dim(), span = rank > 0 ? rank : 1;
  check(rank <= kMaxDims, op, ": at most ", kMaxDims, " dimensions are supported, got ", rank);
  const bool all = !dims || dims->empty();
  for (int64_t d = 0; d < rank; ++d) shape.reduced[d] = all;
  bool seen[kMaxDims] = {};
  for (size_t i = 0; !all && i < dims->size(); ++i) {
    const int64_t dim = (*dims)[i];
    check(dim >= -span && dim < span, op, ": dim must be between ", -span, " and ", span - 1,
          ", got ", dim);
    const int64_t d = dim < 0 ? dim + span : dim;
    check(!seen[d], op, ": dim ", d, " appears twice");
    seen[d] = true;
    if (rank > 0) shape.reduced[d] = true;
  }
  for (int64_t d = 0; d < rank; ++d) {
    if (!shape.reduced[d])
      shape.output[shape.out_rank++] = sizes[d];
    else if (keepdim)
      shape.output[shape.out_rank++] = 1;
  }
}

inline bool is_empty(const Tensor& input, const ReduceShape& shape) {
  for (int64_t d = 0; d < shape.rank; ++d)
    if (shape.reduced[d] && input.sizes()[d] == 0) return true;
  return false;
}

inline ReduceShape check_reduce(const Tensor& input, int64_t op, const MaybeDims& dims,
                                bool keepdim, int64_t dtype) {
  ReduceShape shape;
  check(op >= 0 && op < kReduceOps, "reduce: op must be a code between 0 and ", kReduceOps - 1,
        ", got ", op);
  shape.op = static_cast<ReduceOp>(op);
  check_dims("reduce", input, dims, keepdim, shape);
  const char* const name = reduce_op_name(shape.op);
  check(!is_arg(shape.op) || !dims || dims->size() <= 1, "reduce: ", name,
        " takes one dim or None, got ", dims ? dims->size() : 0, " dims");
  shape.out_dtype = result_dtype(shape.op, shape.dtype, dtype);
  const bool no_identity = shape.op == ReduceOp::max || shape.op == ReduceOp::min ||
                           is_arg(shape.op) || shape.op == ReduceOp::norm_inf;
  check(!no_identity || !is_empty(input, shape), "reduce: ", name,
        " of no elements is not defined: a reduced dimension has size 0");
  return shape;
}

inline ReduceShape check_stats(const Tensor& input, const MaybeDims& dims, bool keepdim,
                               bool indices) {
  ReduceShape shape;
  check_dims("stats", input, dims, keepdim, shape);
  check(is_floating(shape.dtype), "stats: input must be floating, got ", dtype_name(shape.dtype));
  check(!indices || !dims || dims->size() <= 1, "stats: indices take one dim or None, got ",
        dims ? dims->size() : 0, " dims");
  check(!is_empty(input, shape),
        "stats: min of no elements is not defined: a reduced dimension has size 0");
  shape.out_dtype = shape.dtype;
  return shape;
}

inline Dtype check_dot(const Tensor& input, const Tensor& other) {
  for (const auto* t : {&input, &other})
    check(is_strided(*t), "dot: ", t == &input ? "input" : "other",
          " must be a dense tensor, got a sparse layout");
  const Dtype dtype = dtype_of("dot", input.scalar_type());
  check(is_floating(dtype), "dot: input must be floating, got ", dtype_name(dtype));
  check(other.scalar_type() == input.scalar_type(), "dot: other must have the dtype of input (",
        dtype_name(dtype), "), got ", scalar_type_name(other.scalar_type()));
  check(input.dim() == 1 && other.dim() == 1 && input.size(0) == other.size(0),
        "dot: input and other must be vectors of one length, got shapes ",
        shape_text(input.sizes()), " and ", shape_text(other.sizes()));
  check(same_device(input, other), "dot: other must be on the device of input");
  return dtype;
}

}  // namespace gpuprims
