// Which inputs topk_gate takes, in the words that CPU, CUDA and the fake kernel share
// (torch_gpuprims/topk_gate.py).
#pragma once
#include <optional>
#include <vector>

#include "common/stable.h"
#include "topk/gate_plan.h"

namespace gpuprims {

struct GateShape {
  Dtype dtype = Dtype::f32;
  Dtype bias_dtype = Dtype::f32;
  int64_t rows = 1;
  int64_t n = 1;
  std::vector<int64_t> output;  // sizes with k in place of n
};

inline GateShape check_gate(const Tensor& logits, int64_t k, const std::optional<Tensor>& bias,
                            int64_t scoring, int64_t num_groups, int64_t topk_groups,
                            int64_t index_bits) {
  namespace t = gate_tuning;
  check(is_strided(logits), "topk_gate: logits must be a dense tensor, got a sparse layout");
  const ScalarType type = logits.scalar_type();
  check(type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Half ||
            type == ScalarType::Double,
        "topk_gate: logits must be float32, bfloat16, float16 or float64, got ",
        scalar_type_name(type));
  const int64_t rank = logits.dim();
  check(rank > 0, "topk_gate: logits must have at least 1 dimension, got 0");
  check(scoring == 0 || scoring == 1, "topk_gate: scoring must be 0 (softmax) or 1 (sigmoid), got ",
        scoring);
  const auto sizes = logits.sizes();
  const int64_t n = sizes[rank - 1];
  check(n <= t::kMaxExperts, "topk_gate: at most ", t::kMaxExperts, " experts are supported, got ",
        n);
  check(num_groups >= 1 && n % num_groups == 0, "topk_gate: num_groups must divide the ", n,
        " experts, got ", num_groups);
  check(topk_groups >= 1 && topk_groups <= num_groups,
        "topk_gate: topk_groups must be between 1 and ", num_groups, " (num_groups), got ",
        topk_groups);
  const int64_t kept = n / num_groups * topk_groups;
  check(k >= 0 && k <= kept, "topk_gate: k must be between 0 and ", kept,
        " (the experts of the kept groups), got ", k);
  check(k <= t::kMaxK, "topk_gate: k must be at most ", t::kMaxK, ", got ", k);
  GateShape shape;
  shape.dtype = dtype_of("topk_gate", type);
  shape.n = n;
  if (bias) {
    check(is_strided(*bias), "topk_gate: bias must be a dense tensor, got a sparse layout");
    const ScalarType have = bias->scalar_type();
    check(have == ScalarType::Float || have == type, "topk_gate: bias must be float32",
          type == ScalarType::Float ? "" : " or ",
          type == ScalarType::Float ? "" : scalar_type_name(type), ", got ",
          scalar_type_name(have));
    check(bias->dim() == 1 && bias->sizes()[0] == n, "topk_gate: bias must have shape [", n,
          "], got ", shape_text(bias->sizes()));
    check(same_device(*bias, logits), "topk_gate: bias must be on the device of logits");
    shape.bias_dtype = dtype_of("topk_gate", have);
  }
  check(index_bits == 64 || index_bits == 32, "topk_gate: index_dtype must be int64 or int32");
  shape.output.assign(sizes.begin(), sizes.end());
  shape.output.back() = k;
  for (int64_t d = 0; d + 1 < rank; ++d) shape.rows *= sizes[d];
  return shape;
}

// The stride of the rows of a tensor seen as [rows, n] with a row's elements together, if it can be
// seen so without a copy.
inline std::optional<int64_t> gate_row_stride(const Tensor& t) {
  const auto sizes = t.sizes();
  const auto strides = t.strides();
  const int64_t last = t.dim() - 1;
  if (sizes[last] > 1 && strides[last] != 1) return std::nullopt;
  int64_t stride = 0, span = -1;
  for (int64_t d = last - 1; d >= 0; --d) {
    if (sizes[d] == 1) continue;
    if (span < 0)
      stride = strides[d];
    else if (strides[d] != span)
      return std::nullopt;
    span = strides[d] * sizes[d];
  }
  return stride;
}

}  // namespace gpuprims
