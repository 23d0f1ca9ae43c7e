// topk_gate on the CPU: rows are spread over threads; a row's selection is a list of k kept in
// order.
#include <bit>
#include <cmath>
#include <limits>

#include "common/radix_keys.h"
#include "topk/gate_checks.h"

namespace gpuprims {
namespace {

constexpr int64_t kGrain = 1 << 15;  // logits that are worth a thread

struct GateOptions {
  int64_t n = 0, k = 0, num_groups = 1, topk_groups = 1;
  bool sigmoid = false, renormalize = true;
  double scale = 1;
};

// The selection's order: NaN above all, -0.0 equal to +0.0.
template <class Real>
auto order_key(Real value) {
  using Key = KeyOf<sizeof(Real)>;
  constexpr Key kSign = Key(1) << (sizeof(Key) * 8 - 1);
  constexpr auto kInfinity = std::bit_cast<Key>(std::numeric_limits<Real>::infinity());
  constexpr KeyCodec<Key> codec{static_cast<Key>(~Key(0)), kSign, kInfinity, kSign, 0};
  return codec.encode(std::bit_cast<Key>(value));
}

// In either tail the digits of exp are kept: 1 / (1 + exp(-x)) would be 0 below -88.
template <class Real>
Real sigmoid(Real x) {
  const Real e = std::exp(-std::abs(x));
  return (x < 0 ? e : Real(1)) / (Real(1) + e);
}

// The best few of a row in order: an element enters where it beats the last, so of equal keys the
// first stays.
template <class Key>
struct Best {
  std::vector<Key> keys;
  std::vector<int32_t> at;
  int64_t size = 0, count = 0;

  void start(int64_t k) {
    size = k, count = 0;
    if (static_cast<int64_t>(keys.size()) < k) keys.resize(k), at.resize(k);
  }
  void offer(Key key, int64_t index) {
    if (count == size && !(key > keys[count - 1])) return;
    int64_t slot = count < size ? count++ : count - 1;
    for (; slot > 0 && keys[slot - 1] < key; --slot)
      keys[slot] = keys[slot - 1], at[slot] = at[slot - 1];
    keys[slot] = key, at[slot] = static_cast<int32_t>(index);
  }
};

template <class Real>
class Router {
 public:
  using Key = KeyOf<sizeof(Real)>;

  Router(const GateOptions& options, const Real* bias)
      : o_(options), bias_(bias), x_(options.n), score_(bias ? options.n : 0) {}

  Real* logits() { return x_.data(); }

  // Selects by the biased scores; without bias by the logits, whose order is the same and finer.
  void select() {
    const int64_t n = o_.n, size = n / o_.num_groups;
    if (bias_ || (!o_.sigmoid && !o_.renormalize)) score_all();
    const Real* const choice = bias_ ? score_.data() : x_.data();
    if (o_.topk_groups < o_.num_groups) {
      groups_.start(o_.topk_groups);
      for (int64_t g = 0; g < o_.num_groups; ++g)
        groups_.offer(group_key(choice + g * size, size), g);
      std::sort(groups_.at.begin(), groups_.at.begin() + o_.topk_groups);
      best_.start(o_.k);
      for (int64_t i = 0; i < o_.topk_groups; ++i)
        offer(choice, groups_.at[i] * size, groups_.at[i] * size + size);
    } else {
      best_.start(o_.k);
      offer(choice, 0, n);
    }
  }

  template <class Index>
  void write(Real* weights, Index* indices) {
    Real total = o_.sigmoid ? Real(1) : total_, chosen = 0;
    if (!o_.sigmoid && !bias_ && o_.renormalize) top_ = x_[best_.at[0]];
    for (int64_t i = 0; i < o_.k; ++i) {
      const Real x = x_[best_.at[i]];
      weights[i] = o_.sigmoid ? sigmoid(x) : std::exp(x - top_);
      indices[i] = static_cast<Index>(best_.at[i]);
      chosen += weights[i];
    }
    if (o_.renormalize) total = chosen;
    for (int64_t i = 0; i < o_.k; ++i)
      weights[i] = total == 0 ? Real(0) : weights[i] / total * static_cast<Real>(o_.scale);
  }

 private:
  // The biased scores, and what a softmax needs of the whole row.
  void score_all() {
    if (!o_.sigmoid) {
      Key top = 0;
      for (const Real x : x_)
        if (order_key(x) > top) top = order_key(x), top_ = x;
      double total = 0;
      for (const Real x : x_) total += std::exp(x - top_);
      total_ = static_cast<Real>(total);
    }
    for (size_t i = 0; i < score_.size(); ++i)
      score_[i] = (o_.sigmoid ? sigmoid(x_[i]) : std::exp(x_[i] - top_) / total_) + bias_[i];
  }

  Key group_key(const Real* choice, int64_t size) {
    pair_.start(o_.sigmoid ? std::min<int64_t>(2, size) : 1);
    for (int64_t i = 0; i < size; ++i) pair_.offer(order_key(choice[i]), i);
    if (!o_.sigmoid) return pair_.keys[0];
    Real sum = 0;
    for (int64_t i = 0; i < pair_.count; ++i) {
      const Real value = choice[pair_.at[i]];
      sum += bias_ ? value : sigmoid(value);
    }
    return order_key(sum);
  }

  void offer(const Real* choice, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) best_.offer(order_key(choice[i]), i);
  }

  const GateOptions o_;
  const Real* const bias_;
  std::vector<Real> x_, score_;
  Real top_ = 0, total_ = 1;
  Best<Key> best_, groups_, pair_;
};

float bits_to_float(uint32_t bits) { return std::bit_cast<float>(bits); }

float half_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x400u)  // subnormal: magnitude * 2^-24
    return bits_to_float(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
  return bits_to_float(sign | ((magnitude << 13) + (112u << 23)));
}

template <class Real>
void widen(const void* source, Dtype dtype, int64_t step, int64_t n, Real* out) {
  const auto each = [&](auto* from, auto convert) {
    for (int64_t i = 0; i < n; ++i) out[i] = convert(from[i * step]);
  };
  if (dtype == Dtype::f64)
    each(static_cast<const double*>(source), [](double v) { return static_cast<Real>(v); });
  else if (dtype == Dtype::f32)
    each(static_cast<const float*>(source), [](float v) { return v; });
  else if (dtype == Dtype::bf16)
    each(static_cast<const uint16_t*>(source),
         [](uint16_t v) { return bits_to_float(static_cast<uint32_t>(v) << 16); });
  else
    each(static_cast<const uint16_t*>(source), half_to_float);
}

template <class Real, class Index>
void route(const GateOptions& o, const GateShape& shape, const char* logits, int64_t stride,
           const Real* bias, Real* weights, Index* indices) {
  const int64_t row_bytes = stride * dtype_bytes(shape.dtype);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, o.n));
  torch::stable::parallel_for(0, shape.rows, grain, [&](int64_t begin, int64_t end) {
    Router<Real> router(o, bias);
    for (int64_t row = begin; row < end; ++row) {
      widen(logits + row * row_bytes, shape.dtype, 1, o.n, router.logits());
      router.select();
      router.write(weights + row * o.k, indices + row * o.k);
    }
  });
}

template <class Real>
void route(const GateOptions& o, const GateShape& shape, const Tensor& logits, int64_t stride,
           const std::optional<Tensor>& bias, Tensor& weights, Tensor& indices) {
  std::vector<Real> added(bias ? o.n : 0);
  if (bias) widen(bias->const_data_ptr(), shape.bias_dtype, bias->strides()[0], o.n, added.data());
  const auto* const source = static_cast<const char*>(logits.const_data_ptr());
  const Real* const row_bias = bias ? added.data() : nullptr;
  auto* const out = static_cast<Real*>(weights.mutable_data_ptr());
  if (indices.scalar_type() == ScalarType::Long)
    route(o, shape, source, stride, row_bias, out,
          static_cast<int64_t*>(indices.mutable_data_ptr()));
  else
    route(o, shape, source, stride, row_bias, out,
          static_cast<int32_t*>(indices.mutable_data_ptr()));
}

std::tuple<Tensor, Tensor> topk_gate_cpu(const Tensor& logits, int64_t k,
                                         const std::optional<Tensor>& bias, int64_t scoring,
                                         bool renormalize, int64_t num_groups, int64_t topk_groups,
                                         double scale, int64_t index_bits) {
  const GateShape shape = check_gate(logits, k, bias, scoring, num_groups, topk_groups, index_bits);
  const int64_t* sizes = shape.output.data();
  const auto rank = static_cast<int64_t>(shape.output.size());
  const bool wide = shape.dtype == Dtype::f64;
  Tensor weights =
      empty("topk_gate", logits, wide ? ScalarType::Double : ScalarType::Float, sizes, rank);
  Tensor indices = empty("topk_gate", logits, index_bits == 64 ? ScalarType::Long : ScalarType::Int,
                         sizes, rank);
  if (k == 0 || shape.rows == 0) return {std::move(weights), std::move(indices)};
  auto stride = gate_row_stride(logits);
  const Tensor source = stride ? logits : torch::stable::contiguous(logits);
  const GateOptions o{shape.n, k, num_groups, topk_groups, scoring == 1, renormalize, scale};
  if (wide)
    route<double>(o, shape, source, stride.value_or(shape.n), bias, weights, indices);
  else
    route<float>(o, shape, source, stride.value_or(shape.n), bias, weights, indices);
  return {std::move(weights), std::move(indices)};
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("topk_gate", TORCH_BOX(&gpuprims::topk_gate_cpu));
}
