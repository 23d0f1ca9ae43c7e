// neighbor_attention and its gradient between the dispatcher and the kernels of one device: what is
// checked, made dense and allocated alike on each. A Device has a Guard of its index, attend and
// attend_grad.
#pragma once
#include <tuple>

#include "attention/checks.h"

namespace gpuprims::attention {

struct Inputs {
  Tensor x;  // [sources, heads, channels]
  MaybeTensor a_src, a_dst, a_edge, seed, bias;
  GraphTensors graph;
  double slope, dropout;
  int64_t promises;

  int64_t rows() const { return graph.csr.rows; }
  int64_t heads() const { return x.size(1); }
  int64_t channels() const { return x.size(2); }
};

struct ForwardCall : Inputs {
  Tensor out, lse;
  Tensor positive;  // no elements where it is not wanted
};

struct BackwardCall : Inputs {
  Tensor grad, out, lse;
  MaybeTensor grad_lse, positive;
  std::optional<GraphTensors> transpose;  // where a gradient by source is wanted
  int64_t wanted;
  Tensor grad_x, grad_src, grad_dst, grad_edge;  // those unwanted without elements
};

template <class Device>
std::tuple<Tensor, Tensor, Tensor> forward(
    const Tensor& x, const MaybeTensor& a_src, const MaybeTensor& a_dst, const MaybeTensor& a_edge,
    const MaybeTensor& seed, const Tensor& indptr, const Tensor& indices,
    const MaybeTensor& edge_ids, const MaybeTensor& t_indptr, const MaybeTensor& t_indices,
    const MaybeTensor& t_edge_ids, double slope, double dropout, int64_t promises,
    bool want_positive, const MaybeTensor& bias) {
  constexpr auto op = "neighbor_attention";
  check_attention(op, x, {a_src, a_dst, a_edge, seed},
                  {indptr, indices, edge_ids, t_indptr, t_indices, t_edge_ids}, dropout, bias);
  const typename Device::Guard guard(x.get_device_index());
  const int64_t rows = indptr.size(0) - 1, heads = x.size(1), channels = x.size(2);
  const ScalarType wide = accumulator_of(x.scalar_type());
  const ForwardCall call{
      {dense_heads(x), dense_terms(a_src), dense_terms(a_dst), dense(a_edge), seed, dense(bias),
       GraphTensors(indptr, indices, edge_ids, x.size(0)), slope, dropout, promises},
      empty(op, x, x.scalar_type(), {rows, heads, channels}),
      empty(op, x, wide, {rows, heads}),
      empty(op, x, wide, {want_positive ? rows * heads * (channels + 1) : int64_t(0)})};
  Device::attend(op, call);
  return {call.out, call.lse, call.positive};
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad, const MaybeTensor& grad_lse, const Tensor& out, const Tensor& lse,
    const Tensor& x, const MaybeTensor& a_src, const MaybeTensor& a_dst, const MaybeTensor& a_edge,
    const MaybeTensor& seed, const Tensor& indptr, const Tensor& indices,
    const MaybeTensor& edge_ids, const MaybeTensor& t_indptr, const MaybeTensor& t_indices,
    const MaybeTensor& t_edge_ids, double slope, double dropout, int64_t promises, int64_t wanted,
    const MaybeTensor& positive, const MaybeTensor& bias) {
  constexpr auto op = "neighbor_attention_grad";
  check_attention_grad(grad, grad_lse, out, lse, x, {a_src, a_dst, a_edge, seed},
                       {indptr, indices, edge_ids, t_indptr, t_indices, t_edge_ids}, dropout,
                       wanted, positive, bias);
  const typename Device::Guard guard(x.get_device_index());
  const int64_t rows = indptr.size(0) - 1, heads = x.size(1), channels = x.size(2);
  const int64_t sources = t_indptr ? t_indptr->size(0) - 1 : 0;
  const auto result = [&](int64_t bit, std::initializer_list<int64_t> shape) {
    return wanted & bit ? empty(op, x, x.scalar_type(), shape)
                        : empty(op, x, x.scalar_type(), {int64_t(0)});
  };
  BackwardCall call{
      {dense_heads(x), dense_terms(a_src), dense_terms(a_dst), dense(a_edge), seed, dense(bias),
       GraphTensors(indptr, indices, edge_ids, x.size(0)), slope, dropout, promises},
      dense_heads(grad),
      dense(out),
      dense(lse),
      dense(grad_lse),
      dense(positive),
      {},
      wanted,
      result(kFirst, {sources, heads, channels}),
      result(kSecond, {sources, heads}),
      result(kThird, {rows, heads}),
      result(kFourth, {indices.size(0), heads})};
  if (wanted & (kFirst | kSecond)) call.transpose.emplace(*t_indptr, *t_indices, t_edge_ids, rows);
  Device::attend_grad(op, call);
  return {call.grad_x, call.grad_src, call.grad_dst, call.grad_edge};
}

}  // namespace gpuprims::attention
