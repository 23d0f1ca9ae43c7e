// Attention on the CPU. Tasks take whole rows and about the same work each; a row's edges are added
// in order and in double, so results do not depend on the number of threads.
#include <cmath>
#include <tuple>

#include "aggregate/cpu_rows.h"
#include "attention/checks.h"
#include "attention/hash.h"
#include "attention/plan.h"

namespace gpuprims::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class F>
void for_dtype(ScalarType t, const F& f) {
  if (t == ScalarType::Float) f(float{});
  if (t == ScalarType::Double) f(double{});
  if (t == ScalarType::Half) f(Half{});
  if (t == ScalarType::BFloat16) f(BFloat16{});
}

// Rows [rows, width] of a tensor that may be absent.
template <class T>
struct Rows {
  const T* data;
  int64_t stride;
  explicit Rows(const Tensor& t) : data(static_cast<const T*>(t.data_ptr())), stride(t.stride(0)) {}
  explicit Rows(const MaybeTensor& t)
      : data(static_cast<const T*>(pointer(t))), stride(t ? t->stride(0) : 0) {}
  const T* row(int64_t i) const { return data + i * stride; }
  double at(int64_t i, int64_t j) const {
    return data ? static_cast<double>(data[i * stride + j]) : 0;
  }
};

template <class T>
T* written(const Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}

void fill_nan(const Tensor& t) {
  for_dtype(t.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    std::fill_n(written<T>(t), t.numel(), static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
  });
}

double leaky(double v, double slope) { return v > 0 ? v : v * slope; }

// Scores and dropout of the edges of a call.
template <class T>
struct Score {
  Rows<T> a_src, a_dst, a_edge;
  int64_t heads;
  double slope, kept_scale;
  const int64_t* seed;  // null: no dropout
  uint64_t threshold;

  Score(const Terms& terms, int64_t heads, double slope, double dropout)
      : a_src(terms.a_src),
        a_dst(terms.a_dst),
        a_edge(terms.a_edge),
        heads(heads),
        slope(slope),
        kept_scale(dropout < 1 ? 1 / (1 - dropout) : 0),
        seed(dropout > 0 ? static_cast<const int64_t*>(terms.seed->data_ptr()) : nullptr),
        threshold(dropout_threshold(dropout)) {}

  double raw(int64_t source, int64_t destination, int64_t id, int64_t h) const {
    return a_src.at(source, h) + a_dst.at(destination, h) + a_edge.at(id, h);
  }
  double factor(int64_t id, int64_t h) const {
    if (!seed) return 1;
    return kept(static_cast<uint64_t>(*seed), static_cast<uint64_t>(id * heads + h), threshold)
               ? kept_scale
               : 0;
  }
};

// An edge whose index or id is out of range counts as NaN.
bool sound(const Csr& csr, int64_t node, int64_t id) {
  return node >= 0 && id >= 0 && id < csr.edges;
}

template <class T>
void attend(const Csr& csr, const Score<T>& score, const Tensor& x_tensor, const Tensor& out,
            const Tensor& lse_tensor, const Tensor& positive) {
  const Rows<T> x(x_tensor);
  const int64_t heads = score.heads, channels = x_tensor.size(2);
  AccOf<T>* const kept = positive.numel() > 0 ? written<AccOf<T>>(positive) : nullptr;
  for_rows(csr, heads * (channels + 8), [&](int64_t first, int64_t last) {
    std::vector<double> weight, sum(channels), kept_sum(channels);
    for (int64_t row = first; row < last; ++row) {
      const int64_t begin = offset(csr, row), degree = offset(csr, row + 1) - begin;
      weight.resize(degree);
      for (int64_t h = 0; h < heads; ++h) {
        double best = -kInfinity, total = 0;
        for (int64_t e = 0; e < degree; ++e) {
          const int64_t node = source_of(csr, begin + e), id = edge_id(csr, begin + e);
          weight[e] = sound(csr, node, id) ? leaky(score.raw(node, row, id, h), score.slope) : kNan;
          if (weight[e] > best) best = weight[e];
        }
        const double base = best > -kInfinity ? best : 0;
        for (double& w : weight) total += w = std::exp(w - base);
        std::fill(sum.begin(), sum.end(), 0.0);
        std::fill(kept_sum.begin(), kept_sum.end(), 0.0);
        double share = 0;
        for (int64_t e = 0; e < degree; ++e) {
          const int64_t node = source_of(csr, begin + e), id = edge_id(csr, begin + e);
          const double w = weight[e] / total * score.factor(id, h);
          const T* const from = node < 0 ? nullptr : x.row(node) + h * channels;
          for (int64_t c = 0; c < channels; ++c)
            sum[c] += w * (from ? static_cast<double>(from[c]) : kNan);
          if (!kept || !sound(csr, node, id) || !(score.raw(node, row, id, h) > 0)) continue;
          share += weight[e] / total;
          for (int64_t c = 0; c < channels; ++c) kept_sum[c] += w * static_cast<double>(from[c]);
        }
        for (int64_t c = 0; kept && c < channels; ++c)
          kept[(row * heads + h) * channels + c] = static_cast<AccOf<T>>(kept_sum[c]);
        if (kept)
          kept[csr.rows * heads * channels + row * heads + h] = static_cast<AccOf<T>>(share);
        for (int64_t c = 0; c < channels; ++c)
          written<T>(out)[(row * heads + h) * channels + c] =
              static_cast<T>(static_cast<AccOf<T>>(sum[c]));
        written<AccOf<T>>(lse_tensor)[row * heads + h] =
            static_cast<AccOf<T>>(degree > 0 ? best + std::log(total) : -kInfinity);
      }
    }
  });
}

// What the two passes of the gradient share.
template <class T>
struct Gradient {
  Score<T> score;
  Rows<T> grad, out, x;
  Rows<AccOf<T>> lse, grad_lse;
  int64_t channels;
  std::vector<double> delta;  // [destinations, heads]

  double dot(const T* a, const T* b) const {
    double sum = 0;
    for (int64_t c = 0; c < channels; ++c)
      sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
    return sum;
  }

  // alpha with dropout, and the gradient in the raw score.
  std::pair<double, double> edge(int64_t source, int64_t destination, int64_t id, int64_t h) const {
    const double raw = score.raw(source, destination, id, h), slope = raw > 0 ? 1 : score.slope;
    const double alpha = std::exp(raw * slope - lse.at(destination, h));
    const double factor = score.factor(id, h);
    const double through =
        factor * dot(grad.row(destination) + h * channels, x.row(source) + h * channels);
    return {alpha * factor, alpha * (through - delta[destination * score.heads + h]) * slope};
  }
};

template <class T>
void by_source(const Csr& csr, const Gradient<T>& g, const Tensor& grad_x, const Tensor& grad_src,
               int64_t wanted) {
  const int64_t heads = g.score.heads, channels = g.channels;
  for_rows(csr, heads * (2 * channels + 8), [&](int64_t first, int64_t last) {
    std::vector<double> sum(channels);
    for (int64_t row = first; row < last; ++row) {
      for (int64_t h = 0; h < heads; ++h) {
        double scalar = 0;
        std::fill(sum.begin(), sum.end(), 0.0);
        for (int64_t at = offset(csr, row); at < offset(csr, row + 1); ++at) {
          const int64_t node = source_of(csr, at), id = edge_id(csr, at);
          const bool good = sound(csr, node, id);
          const auto [w, raw_grad] = good ? g.edge(row, node, id, h) : std::pair(kNan, kNan);
          scalar += raw_grad;
          const T* const from = good ? g.grad.row(node) + h * channels : nullptr;
          for (int64_t c = 0; c < channels; ++c)
            sum[c] += w * (from ? static_cast<double>(from[c]) : 0);
        }
        for (int64_t c = 0; (wanted & kFirst) && c < channels; ++c)
          written<T>(grad_x)[(row * heads + h) * channels + c] =
              static_cast<T>(static_cast<AccOf<T>>(sum[c]));
        if (wanted & kSecond)
          written<T>(grad_src)[row * heads + h] = static_cast<T>(static_cast<AccOf<T>>(scalar));
      }
    }
  });
}

template <class T>
void by_destination(const Csr& csr, const Gradient<T>& g, const Tensor& grad_dst,
                    const Tensor& grad_edge, int64_t wanted) {
  const int64_t heads = g.score.heads;
  for_rows(csr, heads * (g.channels + 8), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int64_t h = 0; h < heads; ++h) {
        double scalar = 0;
        for (int64_t at = offset(csr, row); at < offset(csr, row + 1); ++at) {
          const int64_t node = source_of(csr, at), id = edge_id(csr, at);
          const double raw_grad = sound(csr, node, id) ? g.edge(node, row, id, h).second : kNan;
          scalar += raw_grad;
          if ((wanted & kFourth) && id >= 0 && id < csr.edges)
            written<T>(grad_edge)[id * heads + h] = static_cast<T>(static_cast<AccOf<T>>(raw_grad));
        }
        if (wanted & kThird)
          written<T>(grad_dst)[row * heads + h] = static_cast<T>(static_cast<AccOf<T>>(scalar));
      }
    }
  });
}

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& x_in, const MaybeTensor& a_src_in,
                                           const MaybeTensor& a_dst_in,
                                           const MaybeTensor& a_edge_in, const MaybeTensor& seed,
                                           const Tensor& indptr, const Tensor& indices,
                                           const MaybeTensor& edge_ids, const MaybeTensor& t_indptr,
                                           const MaybeTensor& t_indices,
                                           const MaybeTensor& t_edge_ids, double slope,
                                           double dropout, int64_t promises, bool want_positive) {
  constexpr auto op = "neighbor_attention";
  check_attention(op, x_in, {a_src_in, a_dst_in, a_edge_in, seed},
                  {indptr, indices, edge_ids, t_indptr, t_indices, t_edge_ids}, dropout);
  const Tensor x = dense_heads(x_in);
  const MaybeTensor a_src = dense_terms(a_src_in), a_dst = dense_terms(a_dst_in);
  const MaybeTensor a_edge = dense(a_edge_in);
  const GraphTensors graph(indptr, indices, edge_ids, x.size(0));
  Tensor out = empty(op, x, x.scalar_type(), {graph.csr.rows, x.size(1), x.size(2)});
  Tensor lse = empty(op, x, accumulator_of(x.scalar_type()), {graph.csr.rows, x.size(1)});
  Tensor positive =
      empty(op, x, lse.scalar_type(), {want_positive ? out.numel() + lse.numel() : int64_t(0)});
  if (!good_data(op, graph.csr, promises)) {
    for (const Tensor* t : {&out, &lse, &positive}) fill_nan(*t);
    return {out, lse, positive};
  }
  for_dtype(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    attend<T>(graph.csr, Score<T>({a_src, a_dst, a_edge, seed}, x.size(1), slope, dropout), x, out,
              lse, positive);
  });
  return {out, lse, positive};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad_in, const MaybeTensor& grad_lse_in, const Tensor& out_in,
    const Tensor& lse_in, const Tensor& x_in, const MaybeTensor& a_src_in,
    const MaybeTensor& a_dst_in, const MaybeTensor& a_edge_in, const MaybeTensor& seed,
    const Tensor& indptr, const Tensor& indices, const MaybeTensor& edge_ids,
    const MaybeTensor& t_indptr, const MaybeTensor& t_indices, const MaybeTensor& t_edge_ids,
    double slope, double dropout, int64_t promises, int64_t wanted,
    const MaybeTensor& positive) {  // is not needed here
  constexpr auto op = "neighbor_attention_grad";
  check_attention_grad(
      grad_in, grad_lse_in, out_in, lse_in, x_in, {a_src_in, a_dst_in, a_edge_in, seed},
      {indptr, indices, edge_ids, t_indptr, t_indices, t_edge_ids}, dropout, wanted, positive);
  const Tensor x = dense_heads(x_in), grad = dense_heads(grad_in), out = dense(out_in);
  const Tensor lse = dense(lse_in);
  const MaybeTensor a_src = dense_terms(a_src_in), a_dst = dense_terms(a_dst_in);
  const MaybeTensor a_edge = dense(a_edge_in), grad_lse = dense(grad_lse_in);
  const GraphTensors graph(indptr, indices, edge_ids, x.size(0));
  const int64_t rows = graph.csr.rows, heads = x.size(1), channels = x.size(2);
  const int64_t sources = t_indptr ? t_indptr->size(0) - 1 : 0;
  const auto result = [&](int64_t bit, std::initializer_list<int64_t> shape) {
    return wanted & bit ? empty(op, x, x.scalar_type(), shape)
                        : empty(op, x, x.scalar_type(), {int64_t(0)});
  };
  Tensor grad_x = result(kFirst, {sources, heads, channels});
  Tensor grad_src = result(kSecond, {sources, heads});
  Tensor grad_dst = result(kThird, {rows, heads});
  Tensor grad_edge = result(kFourth, {graph.csr.edges, heads});
  const bool sourced = wanted & (kFirst | kSecond), good = good_data(op, graph.csr, promises);
  const GraphTensors transpose(sourced ? *t_indptr : indptr, sourced ? *t_indices : indices,
                               sourced ? t_edge_ids : edge_ids, sourced ? rows : x.size(0));
  if (!good || !good_data(op, transpose.csr, promises)) {
    for (const Tensor* t : {&grad_x, &grad_src, &grad_dst, &grad_edge}) fill_nan(*t);
    return {grad_x, grad_src, grad_dst, grad_edge};
  }
  fill_nan(grad_edge);  // where ids repeat
  for_dtype(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    Gradient<T> g{Score<T>({a_src, a_dst, a_edge, seed}, heads, slope, dropout),
                  Rows<T>(grad),
                  Rows<T>(out),
                  Rows<T>(x),
                  Rows<AccOf<T>>(lse),
                  Rows<AccOf<T>>(grad_lse),
                  channels,
                  std::vector<double>(rows * heads)};
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t h = 0; h < heads; ++h)
        g.delta[row * heads + h] =
            g.dot(g.grad.row(row) + h * channels, g.out.row(row) + h * channels) -
            g.grad_lse.at(row, h);
    if (sourced) by_source(transpose.csr, g, grad_x, grad_src, wanted);
    if (wanted & (kThird | kFourth)) by_destination(graph.csr, g, grad_dst, grad_edge, wanted);
  });
  return {grad_x, grad_src, grad_dst, grad_edge};
}

}  // namespace
}  // namespace gpuprims::attention

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  using namespace gpuprims;
  m.impl("neighbor_attention", TORCH_BOX(&attention::forward));
  m.impl("neighbor_attention_grad", TORCH_BOX(&attention::backward));
}
