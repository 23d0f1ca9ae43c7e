// Which inputs the attention ops take, in the words that CPU, CUDA and the fakes share
// (torch_gpuprims/attention_fake.py).
#pragma once
#include "aggregate/checks.h"

namespace gpuprims::attention {

// Which gradients are wanted: bits in the order of the results.
constexpr int64_t kFirst = 1, kSecond = 2, kThird = 4, kFourth = 8;

inline void check_floats(const char* op, const char* name, const Tensor& t) {
  check(is_strided(t), op, ": ", name, " must be a dense tensor, got a sparse layout");
  const auto type = t.scalar_type();
  check(type == ScalarType::Half || type == ScalarType::BFloat16 || type == ScalarType::Float ||
            type == ScalarType::Double,
        op, ": ", name, " must be float16, bfloat16, float32 or float64, got ",
        scalar_type_name(type));
}

inline void check_heads(const char* op, const char* name, const Tensor& x) {
  check_floats(op, name, x);
  check(x.dim() == 3, op, ": ", name, " must have 3 dimensions [rows, heads, channels], got ",
        x.dim());
  check(x.size(0) < UINT32_MAX, op, ": ", name, " must have fewer than 4294967295 rows, got ",
        x.size(0));
  check(x.size(1) * x.size(2) < (int64_t(1) << 28), op, ": ", name,
        " must have fewer than 268435456 elements a row, got ", x.size(1) * x.size(2));
}

// A tensor of exactly this shape, with the dtype and on the device of x.
inline void check_like(const char* op, const char* name, const Tensor& t,
                       std::initializer_list<int64_t> shape, const char* what, const Tensor& x,
                       const char* x_name) {
  check(is_strided(t), op, ": ", name, " must be a dense tensor, got a sparse layout");
  const Shape wanted(shape.begin(), shape.size());
  bool same = t.dim() == static_cast<int64_t>(shape.size());
  for (size_t i = 0; same && i < shape.size(); ++i) same = t.size(i) == wanted[i];
  check(same, op, ": ", name, " must have shape ", shape_text(wanted), " ", what, ", got ",
        shape_text(t.sizes()));
  check(t.scalar_type() == x.scalar_type(), op, ": ", name, " must have the dtype of ", x_name,
        " (", scalar_type_name(x.scalar_type()), "), got ", scalar_type_name(t.scalar_type()));
  check(same_device(t, x), op, ": ", name, " must be on the device of ", x_name);
}

constexpr auto kBySource = "(sources, heads)";
constexpr auto kByDestination = "(destinations, heads)";
constexpr auto kByEdge = "(edges, heads)";

struct Terms {
  const MaybeTensor &a_src, &a_dst, &a_edge, &seed;
};

struct GraphInput {
  const Tensor &indptr, &indices;
  const MaybeTensor &edge_ids, &t_indptr, &t_indices, &t_edge_ids;
  int64_t rows() const { return indptr.size(0) - 1; }
  int64_t edges() const { return indices.size(0); }
};

inline void check_graph_of(const char* op, const char* x_name, const Tensor& x,
                           const GraphInput& g) {
  check_graph(op, x_name, x, g.indptr, g.indices, g.edge_ids, g.t_indptr, g.t_indices,
              g.t_edge_ids);
}

inline ScalarType accumulator_of(ScalarType t) {
  return t == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline void check_attention(const char* op, const Tensor& x, const Terms& terms,
                            const GraphInput& g, double dropout, const MaybeTensor& bias) {
  check_heads(op, "x", x);
  check_graph_of(op, "x", x, g);
  const int64_t heads = x.size(1);
  check(terms.a_src || terms.a_dst || terms.a_edge, op,
        ": one of a_src, a_dst and a_edge must be given");
  if (terms.a_src) check_like(op, "a_src", *terms.a_src, {x.size(0), heads}, kBySource, x, "x");
  if (terms.a_dst) check_like(op, "a_dst", *terms.a_dst, {g.rows(), heads}, kByDestination, x, "x");
  if (terms.a_edge) check_like(op, "a_edge", *terms.a_edge, {g.edges(), heads}, kByEdge, x, "x");
  check(!bias || x.scalar_type() == accumulator_of(x.scalar_type()), op,
        ": bias must be None where x is ", scalar_type_name(x.scalar_type()));
  if (bias) check_like(op, "bias", *bias, {heads, x.size(2)}, "(heads, channels)", x, "x");
  check(dropout >= 0 && dropout <= 1, op, ": dropout must be between 0 and 1, got ", dropout);
  check(dropout == 0 || terms.seed, op, ": dropout needs a seed");
  if (!terms.seed) return;
  check(terms.seed->scalar_type() == ScalarType::Long && terms.seed->numel() == 1, op,
        ": seed must be int64 with 1 element, got ", scalar_type_name(terms.seed->scalar_type()),
        " with ", terms.seed->numel());
  check(same_device(*terms.seed, x), op, ": seed must be on the device of x");
}

inline void check_lse(const char* op, const char* name, const Tensor& lse, const Tensor& x,
                      const GraphInput& g) {
  check(lse.dim() == 2 && lse.size(0) == g.rows() && lse.size(1) == x.size(1), op, ": ", name,
        " must have shape ", shape_text({{g.rows(), x.size(1)}}), " (destinations, heads), got ",
        shape_text(lse.sizes()));
  check(lse.scalar_type() == accumulator_of(x.scalar_type()), op, ": ", name, " must be ",
        scalar_type_name(accumulator_of(x.scalar_type())), ", got ",
        scalar_type_name(lse.scalar_type()));
  check(same_device(lse, x), op, ": ", name, " must be on the device of x");
}

inline void check_attention_grad(const Tensor& grad, const MaybeTensor& grad_lse, const Tensor& out,
                                 const Tensor& lse, const Tensor& x, const Terms& terms,
                                 const GraphInput& g, double dropout, int64_t wanted,
                                 const MaybeTensor& positive, const MaybeTensor& bias) {
  constexpr auto op = "neighbor_attention_grad";
  check_attention(op, x, terms, g, dropout, bias);
  check(g.edges() < UINT32_MAX, op, ": the graph must have fewer than ", UINT32_MAX, " edges, got ",
        g.edges());  // kernels keep an edge's id in 32 bits
  const auto what = "(destinations, heads, channels)";
  check_like(op, "grad", grad, {g.rows(), x.size(1), x.size(2)}, what, x, "x");
  check_like(op, "out", out, {g.rows(), x.size(1), x.size(2)}, what, x, "x");
  check_lse(op, "lse", lse, x, g);
  if (grad_lse) check_lse(op, "grad_lse", *grad_lse, x, g);
  if (positive) {
    const int64_t size = g.rows() * x.size(1) * (x.size(2) + 1);
    check(positive->dim() == 1 && positive->size(0) == size, op, ": positive must have shape ",
          shape_text({{size}}), " (what the forward pass gave), got ",
          shape_text(positive->sizes()));
    check(positive->scalar_type() == lse.scalar_type(), op,
          ": positive must have the dtype of lse");
    check(same_device(*positive, x), op, ": positive must be on the device of x");
  }
  check(g.t_indptr || !(wanted & (kFirst | kSecond)), op,
        ": a gradient needs the transposed graph: give t_indptr, t_indices and t_edge_ids");
}

inline void check_scores(const char* op, const char* name, const Tensor& scores,
                         const Tensor& indptr, const MaybeTensor& edge_ids) {
  check_floats(op, name, scores);
  check(scores.dim() == 2, op, ": ", name, " must have 2 dimensions [edges, heads], got ",
        scores.dim());
  check_vector(op, "indptr", indptr, scores, name);
  check(indptr.size(0) >= 1, op, ": indptr must have at least 1 element, got 0");
  const int64_t edges = scores.size(0);
  check(edges <= INT32_MAX || indptr.scalar_type() == ScalarType::Long, op,
        ": indptr must be int64 for ", edges, " edges, got int32");
  if (edge_ids) check_ids(op, "edge_ids", *edge_ids, indptr, edges, scores, name);
}

inline void check_gatv2(const char* op, const Tensor& x_src, const Tensor& x_dst, const Tensor& att,
                        const MaybeTensor& edge, const GraphInput& g) {
  check_heads(op, "x_src", x_src);
  check_graph_of(op, "x_src", x_src, g);
  const int64_t heads = x_src.size(1), channels = x_src.size(2);
  check_like(op, "x_dst", x_dst, {g.rows(), heads, channels}, "(destinations, heads, channels)",
             x_src, "x_src");
  check_like(op, "att", att, {heads, channels}, "(heads, channels)", x_src, "x_src");
  if (edge)
    check_like(op, "edge", *edge, {g.edges(), heads, channels}, "(edges, heads, channels)", x_src,
               "x_src");
}

inline void check_gatv2_grad(const Tensor& grad, const Tensor& x_src, const Tensor& x_dst,
                             const Tensor& att, const MaybeTensor& edge, const GraphInput& g,
                             int64_t wanted) {
  constexpr auto op = "gatv2_score_grad";
  check_gatv2(op, x_src, x_dst, att, edge, g);
  check_like(op, "grad", grad, {g.edges(), x_src.size(1)}, kByEdge, x_src, "x_src");
  check(g.t_indptr || !(wanted & kFirst), op,
        ": a gradient needs the transposed graph: give t_indptr, t_indices and t_edge_ids");
}

// Kernels multiply a row's number with 32 bits of bytes between rows.
inline bool near_rows(const Tensor& t) {
  return t.size(0) <= 1 || (t.stride(0) >= 0 && t.stride(0) < (int64_t(1) << 28));
}

// Rows may lie apart; within a row, channels and then heads must be dense.
inline Tensor dense_heads(const Tensor& x) {
  const bool packed =
      (x.size(2) <= 1 || x.stride(2) == 1) && (x.size(1) <= 1 || x.stride(1) == x.size(2));
  return packed && near_rows(x) ? x : torch::stable::contiguous(x);
}

inline MaybeTensor dense_terms(const MaybeTensor& t) {
  if (!t) return t;
  const Tensor dense = dense_rows(*t);
  return near_rows(dense) ? dense : torch::stable::contiguous(dense);
}

inline int64_t row_stride(const MaybeTensor& t) { return t ? t->stride(0) : 0; }

}  // namespace gpuprims::attention
