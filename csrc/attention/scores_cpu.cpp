// edge_softmax and gatv2_score on the CPU.
#include <cmath>
#include <tuple>

#include "aggregate/cpu_rows.h"
#include "attention/checks.h"

namespace gpuprims::attention {
namespace {

template <class F>
void for_dtype(ScalarType t, const F& f) {
  if (t == ScalarType::Float) f(float{});
  if (t == ScalarType::Double) f(double{});
  if (t == ScalarType::Half) f(Half{});
  if (t == ScalarType::BFloat16) f(BFloat16{});
}

template <class T>
void fill_nan(const Tensor& t) {
  std::fill_n(static_cast<T*>(t.data_ptr()), t.numel(),
              static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
}

template <class T>
T rounded(double v) {
  return static_cast<T>(static_cast<AccOf<T>>(v));
}

// Where an edge's elements begin in [edges, heads], or -1.
int64_t place(const Csr& csr, int64_t at, int64_t heads) {
  const int64_t id = edge_id(csr, at);
  return id >= 0 && id < csr.edges ? id * heads : -1;
}

template <class T>
void softmax_rows(const Csr& csr, const T* scores, const T* alpha, int64_t heads, T* out) {
  const auto value = [&](const T* from, int64_t at, int64_t h) {
    const int64_t to = place(csr, at, heads);
    return to < 0 ? static_cast<double>(kNaN<T>) : static_cast<double>(from[to + h]);
  };
  for_rows(csr, heads * 16, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t begin = offset(csr, row), end = offset(csr, row + 1);
      for (int64_t h = 0; h < heads; ++h) {
        double best = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t at = begin; !alpha && at < end; ++at)
          if (const double v = value(scores, at, h); v > best) best = v;
        const double base = std::isinf(best) && best < 0 ? 0 : best;
        for (int64_t at = begin; at < end; ++at)
          sum += alpha ? value(alpha, at, h) * value(scores, at, h)
                       : std::exp(value(scores, at, h) - base);
        for (int64_t at = begin; at < end; ++at) {
          const int64_t to = place(csr, at, heads);
          if (to < 0) continue;
          const double v = value(scores, at, h);
          out[to + h] =
              rounded<T>(alpha ? value(alpha, at, h) * (v - sum) : std::exp(v - base) / sum);
        }
      }
    }
  });
}

Tensor softmax(const char* op, const Tensor& scores_in, const MaybeTensor& alpha_in,
               const Tensor& indptr, const MaybeTensor& edge_ids, int64_t promises) {
  const Tensor scores = dense(scores_in), offsets = dense(indptr);
  const MaybeTensor alpha = dense(alpha_in), ids = dense(edge_ids);
  const int64_t edges = scores.size(0), heads = scores.size(1);
  Tensor out = empty(op, scores, scores.scalar_type(), {edges, heads});
  // No indices: where edges start makes no difference here, and the ids stand in for the check.
  const Csr csr{offsets.data_ptr(),
                ids ? pointer(ids) : nullptr,
                pointer(ids),
                offsets.scalar_type() == ScalarType::Long,
                offsets.scalar_type() == ScalarType::Long,
                offsets.size(0) - 1,
                edges,
                edges};
  const bool checked = (promises & kChecked) && !raise_on_bad_data();
  const int flag = checked ? 0 : check_data(csr, ids && raise_on_bad_data());
  if (raise_on_bad_data()) check_flag(op, flag & ~kBadIndices, csr);
  for_dtype(scores.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    if (!checked) fill_nan<T>(out);
    if (flag & kBadOffsets) return;
    softmax_rows<T>(csr, static_cast<const T*>(scores.data_ptr()),
                    static_cast<const T*>(pointer(alpha)), heads, static_cast<T*>(out.data_ptr()));
  });
  return out;
}

Tensor edge_softmax(const Tensor& scores, const Tensor& indptr, const MaybeTensor& edge_ids,
                    int64_t promises) {
  check_scores("edge_softmax", "scores", scores, indptr, edge_ids);
  return softmax("edge_softmax", scores, std::nullopt, indptr, edge_ids, promises);
}

Tensor edge_softmax_grad(const Tensor& grad, const Tensor& alpha, const Tensor& indptr,
                         const MaybeTensor& edge_ids, int64_t promises) {
  constexpr auto op = "edge_softmax_grad";
  check_scores(op, "grad", grad, indptr, edge_ids);
  check_like(op, "alpha", alpha, {grad.size(0), grad.size(1)}, kByEdge, grad, "grad");
  return softmax(op, grad, alpha, indptr, edge_ids, promises);
}

// One direction of GATv2's scores: rows of `own`, nodes of `other`.
template <class T>
struct Gatv2 {
  const T *own, *other, *att, *edge, *grad;
  int64_t own_stride, other_stride, heads, channels;
  double slope;

  // In the kernels' precision: leaky_relu's slope depends on the last bit near 0.
  double sum(int64_t row, int64_t node, int64_t id, int64_t column) const {
    using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;
    Acc z = static_cast<Acc>(own[row * own_stride + column]) +
            static_cast<Acc>(other[node * other_stride + column]);
    if (edge) z += static_cast<Acc>(edge[id * heads * channels + column]);
    return z;
  }
};

template <class T>
void score_rows(const Csr& csr, const Gatv2<T>& g, T* scores) {
  for_rows(csr, g.heads * g.channels, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int64_t at = offset(csr, row); at < offset(csr, row + 1); ++at) {
        const int64_t node = source_of(csr, at), id = edge_id(csr, at);
        if (id < 0 || id >= csr.edges) continue;
        for (int64_t h = 0; h < g.heads; ++h) {
          double dot = node < 0 ? static_cast<double>(kNaN<T>) : 0;
          for (int64_t c = h * g.channels; node >= 0 && c < (h + 1) * g.channels; ++c) {
            const double z = g.sum(row, node, id, c);
            dot += static_cast<double>(g.att[c]) * (z > 0 ? z : z * g.slope);
          }
          scores[id * g.heads + h] = rounded<T>(dot);
        }
      }
    }
  });
}

template <class T>
void score_grad_rows(const Csr& csr, const Gatv2<T>& g, T* grad_own, T* grad_att, T* grad_edge) {
  const int64_t width = g.heads * g.channels;
  for_rows(csr, 2 * width, [&](int64_t first, int64_t last) {
    std::vector<double> own(width), att(width);
    for (int64_t row = first; row < last; ++row) {
      std::fill(own.begin(), own.end(), 0.0);
      std::fill(att.begin(), att.end(), 0.0);
      for (int64_t at = offset(csr, row); at < offset(csr, row + 1); ++at) {
        const int64_t node = source_of(csr, at), id = edge_id(csr, at);
        if (node < 0 || id < 0 || id >= csr.edges) continue;
        for (int64_t c = 0; c < width; ++c) {
          const double z = g.sum(row, node, id, c), slope = z > 0 ? 1 : g.slope;
          const double up = static_cast<double>(g.grad[id * g.heads + c / g.channels]);
          const double through = up * static_cast<double>(g.att[c]) * slope;
          own[c] += through;
          att[c] += up * z * slope;
          if (grad_edge) grad_edge[id * width + c] = rounded<T>(through);
        }
      }
      for (int64_t c = 0; c < width; ++c) {
        if (grad_own) grad_own[row * width + c] = rounded<T>(own[c]);
        if (grad_att) grad_att[row * width + c] = rounded<T>(att[c]);
      }
    }
  });
}

template <class T>
Gatv2<T> gatv2_of(const Tensor& own, const Tensor& other, const Tensor& att,
                  const MaybeTensor& edge, const void* grad, double slope) {
  return {static_cast<const T*>(own.data_ptr()),
          static_cast<const T*>(other.data_ptr()),
          static_cast<const T*>(att.data_ptr()),
          static_cast<const T*>(pointer(edge)),
          static_cast<const T*>(grad),
          own.stride(0),
          other.stride(0),
          att.size(0),
          att.size(1),
          slope};
}

Tensor gatv2_score(const Tensor& x_src_in, const Tensor& x_dst_in, const Tensor& att_in,
                   const MaybeTensor& edge_in, const Tensor& indptr, const Tensor& indices,
                   const MaybeTensor& edge_ids, const MaybeTensor& t_indptr,
                   const MaybeTensor& t_indices, const MaybeTensor& t_edge_ids, double slope,
                   int64_t promises) {
  constexpr auto op = "gatv2_score";
  check_gatv2(op, x_src_in, x_dst_in, att_in, edge_in,
              {indptr, indices, edge_ids, t_indptr, t_indices, t_edge_ids});
  const Tensor x_src = dense_heads(x_src_in), x_dst = dense_heads(x_dst_in), att = dense(att_in);
  const MaybeTensor edge = dense(edge_in);
  const GraphTensors graph(indptr, indices, edge_ids, x_src.size(0));
  Tensor scores = empty(op, x_src, x_src.scalar_type(), {graph.csr.edges, x_src.size(1)});
  const bool good = good_data(op, graph.csr, promises);
  for_dtype(x_src.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    fill_nan<T>(scores);
    if (good)
      score_rows<T>(graph.csr, gatv2_of<T>(x_dst, x_src, att, edge, nullptr, slope),
                    static_cast<T*>(scores.data_ptr()));
  });
  return scores;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gatv2_score_grad(
    const Tensor& grad_in, const Tensor& x_src_in, const Tensor& x_dst_in, const Tensor& att_in,
    const MaybeTensor& edge_in, const Tensor& indptr, const Tensor& indices,
    const MaybeTensor& edge_ids, const MaybeTensor& t_indptr, const MaybeTensor& t_indices,
    const MaybeTensor& t_edge_ids, double slope, int64_t promises, int64_t wanted) {
  constexpr auto op = "gatv2_score_grad";
  check_gatv2_grad(grad_in, x_src_in, x_dst_in, att_in, edge_in,
                   {indptr, indices, edge_ids, t_indptr, t_indices, t_edge_ids}, wanted);
  const Tensor grad = dense(grad_in), att = dense(att_in);
  const Tensor x_src = dense_heads(x_src_in), x_dst = dense_heads(x_dst_in);
  const MaybeTensor edge = dense(edge_in);
  const GraphTensors graph(indptr, indices, edge_ids, x_src.size(0));
  const int64_t rows = graph.csr.rows, sources = t_indptr ? t_indptr->size(0) - 1 : 0;
  const auto result = [&](int64_t bit, int64_t count) {
    return wanted & bit ? empty(op, x_src, x_src.scalar_type(), {count, att.size(0), att.size(1)})
                        : empty(op, x_src, x_src.scalar_type(), {int64_t(0)});
  };
  Tensor grad_src = result(kFirst, sources), grad_dst = result(kSecond, rows);
  Tensor grad_att = result(kThird, rows), grad_edge = result(kFourth, graph.csr.edges);
  for_dtype(x_src.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const auto to = [&](int64_t bit, const Tensor& t) {
      return wanted & bit ? static_cast<T*>(t.data_ptr()) : nullptr;
    };
    for (const Tensor* t : {&grad_src, &grad_dst, &grad_att, &grad_edge}) fill_nan<T>(*t);
    if (!good_data(op, graph.csr, promises)) return;
    if (wanted & kFirst) {
      const GraphTensors transpose(*t_indptr, *t_indices, t_edge_ids, rows);
      if (!good_data(op, transpose.csr, promises)) return;
      score_grad_rows<T>(transpose.csr,
                         gatv2_of<T>(x_src, x_dst, att, edge, grad.data_ptr(), slope),
                         to(kFirst, grad_src), nullptr, nullptr);
    }
    if (wanted & (kSecond | kThird | kFourth))
      score_grad_rows<T>(graph.csr, gatv2_of<T>(x_dst, x_src, att, edge, grad.data_ptr(), slope),
                         to(kSecond, grad_dst), to(kThird, grad_att), to(kFourth, grad_edge));
  });
  return {grad_src, grad_dst, grad_att, grad_edge};
}

}  // namespace
}  // namespace gpuprims::attention

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  using namespace gpuprims;
  m.impl("edge_softmax", TORCH_BOX(&attention::edge_softmax));
  m.impl("edge_softmax_grad", TORCH_BOX(&attention::edge_softmax_grad));
  m.impl("gatv2_score", TORCH_BOX(&attention::gatv2_score));
  m.impl("gatv2_score_grad", TORCH_BOX(&attention::gatv2_score_grad));
}
