// Attention on the CPU. Tasks take whole rows and about the same work each; a row's edges are added
// in order and in double, so results do not depend on the number of threads.
#include <cmath>

#include "aggregate/cpu_rows.h"
#include "attention/calls.h"
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

  explicit Score(const Inputs& call)
      : a_src(call.a_src),
        a_dst(call.a_dst),
        a_edge(call.a_edge),
        heads(call.heads()),
        slope(call.slope),
        kept_scale(call.dropout < 1 ? 1 / (1 - call.dropout) : 0),
        seed(call.dropout > 0 ? static_cast<const int64_t*>(call.seed->data_ptr()) : nullptr),
        threshold(dropout_threshold(call.dropout)) {}

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
void attend_rows(const ForwardCall& call) {
  const Csr& csr = call.graph.csr;
  const Score<T> score(call);
  const Rows<T> x(call.x), bias(call.bias);
  const int64_t heads = score.heads, channels = call.channels();
  AccOf<T>* const kept = call.positive.numel() > 0 ? written<AccOf<T>>(call.positive) : nullptr;
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
          written<T>(call.out)[(row * heads + h) * channels + c] =
              static_cast<T>(static_cast<AccOf<T>>(sum[c] + bias.at(h, c)));
        written<AccOf<T>>(call.lse)[row * heads + h] =
            static_cast<AccOf<T>>(degree > 0 ? best + std::log(total) : -kInfinity);
      }
    }
  });
}

// What the two passes of the gradient share.
template <class T>
struct Gradient {
  Score<T> score;
  Rows<T> grad, x;
  Rows<AccOf<T>> lse;
  int64_t channels;
  std::vector<double> delta;  // [destinations, heads]

  explicit Gradient(const BackwardCall& call)
      : score(call),
        grad(call.grad),
        x(call.x),
        lse(call.lse),
        channels(call.channels()),
        delta(call.rows() * call.heads()) {
    const Rows<T> out(call.out), bias(call.bias);
    const Rows<AccOf<T>> grad_lse(call.grad_lse);
    for (int64_t row = 0; row < call.rows(); ++row)
      for (int64_t h = 0; h < score.heads; ++h) {
        const T* const from = grad.row(row) + h * channels;
        delta[row * score.heads + h] = dot(from, out.row(row) + h * channels) -
                                       (bias.data ? dot(from, bias.row(h)) : 0) -
                                       grad_lse.at(row, h);
      }
  }

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

struct Cpu {
  struct Guard {
    explicit Guard(int) {}
  };

  static void attend(const char* op, const ForwardCall& call) {
    if (!good_data(op, call.graph.csr, call.promises)) {
      for (const Tensor* t : {&call.out, &call.lse, &call.positive}) fill_nan(*t);
      return;
    }
    for_dtype(call.x.scalar_type(), [&](auto zero) { attend_rows<decltype(zero)>(call); });
  }

  static void attend_grad(const char* op, const BackwardCall& call) {
    const Csr& csr = call.graph.csr;
    if (!good_data(op, csr, call.promises) ||
        (call.transpose && !good_data(op, call.transpose->csr, call.promises))) {
      for (const Tensor* t : {&call.grad_x, &call.grad_src, &call.grad_dst, &call.grad_edge})
        fill_nan(*t);
      return;
    }
    fill_nan(call.grad_edge);  // where ids repeat
    for_dtype(call.x.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const Gradient<T> g(call);
      if (call.transpose)
        by_source(call.transpose->csr, g, call.grad_x, call.grad_src, call.wanted);
      if (call.wanted & (kThird | kFourth))
        by_destination(csr, g, call.grad_dst, call.grad_edge, call.wanted);
    });
  }
};

}  // namespace
}  // namespace gpuprims::attention

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  using namespace gpuprims::attention;
  m.impl("neighbor_attention", TORCH_BOX(&forward<Cpu>));
  m.impl("neighbor_attention_grad", TORCH_BOX(&backward<Cpu>));
}
