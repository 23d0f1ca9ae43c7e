// Tensors -> plan -> launches.
#include <tuple>

#include "attention/walk.h"

namespace gpuprims::attention {
namespace {

Scores scores_of(const MaybeTensor& a_edge, const MaybeTensor& seed, double slope, double dropout) {
  Scores scores{};
  scores.a_edge = pointer(a_edge);
  scores.seed = dropout > 0 ? static_cast<const int64_t*>(pointer(seed)) : nullptr;
  scores.threshold = dropout_threshold(dropout);
  scores.kept_scale = dropout < 1 ? 1 / (1 - dropout) : 0;
  scores.slope = slope;
  scores.by_id = scores.a_edge || scores.seed;
  return scores;
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
  const DeviceGuard guard(x_in.get_device_index());
  const Tensor x = dense_heads(x_in);
  const MaybeTensor a_src = dense_terms(a_src_in), a_dst = dense_terms(a_dst_in);
  const MaybeTensor a_edge = dense(a_edge_in);
  const GraphTensors graph(indptr, indices, edge_ids, x.size(0));
  const int64_t rows = graph.csr.rows, heads = x.size(1), channels = x.size(2);
  Tensor out = empty(op, x, x.scalar_type(), {rows, heads, channels});
  Tensor lse = empty(op, x, accumulator_of(x.scalar_type()), {rows, heads});
  Tensor positive =
      empty(op, x, lse.scalar_type(), {want_positive ? rows * heads * (channels + 1) : int64_t(0)});
  if (rows == 0 || heads == 0) return {out, lse, positive};
  Walk walk(op, x, graph.csr, aligned(x), heads, channels,
            attended_partial(heads, channels, want_positive), promises, true);
  ForwardArgs args{};
  args.csr = graph.csr;
  args.heads = heads, args.channels = channels;
  args.x = x.data_ptr(), args.x_stride = x.stride(0);
  args.a_src = pointer(a_src), args.a_src_stride = row_stride(a_src);
  args.a_dst = pointer(a_dst), args.a_dst_stride = row_stride(a_dst);
  args.scores = scores_of(a_edge, seed, slope, dropout);
  args.out = out.data_ptr();
  args.lse = lse.data_ptr();
  if (want_positive) {
    const int64_t bytes = rows * heads * channels * dtype_bytes(dtype_of(op, lse.scalar_type()));
    args.positive = positive.data_ptr();
    args.share = static_cast<char*>(args.positive) + bytes;
  }
  args.hubs = walk.hubs;
  check_cuda(op, launch_forward(walk.dtype, walk.plan, args, walk.stream));
  return {out, lse, positive};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad_in, const MaybeTensor& grad_lse_in, const Tensor& out_in,
    const Tensor& lse_in, const Tensor& x_in, const MaybeTensor& a_src_in,
    const MaybeTensor& a_dst_in, const MaybeTensor& a_edge_in, const MaybeTensor& seed,
    const Tensor& indptr, const Tensor& indices, const MaybeTensor& edge_ids,
    const MaybeTensor& t_indptr, const MaybeTensor& t_indices, const MaybeTensor& t_edge_ids,
    double slope, double dropout, int64_t promises, int64_t wanted,
    const MaybeTensor& positive_in) {
  constexpr auto op = "neighbor_attention_grad";
  check_attention_grad(
      grad_in, grad_lse_in, out_in, lse_in, x_in, {a_src_in, a_dst_in, a_edge_in, seed},
      {indptr, indices, edge_ids, t_indptr, t_indices, t_edge_ids}, dropout, wanted, positive_in);
  const DeviceGuard guard(x_in.get_device_index());
  const Tensor x = dense_heads(x_in), grad = dense_heads(grad_in), out = dense(out_in);
  const Tensor lse = dense(lse_in);
  const MaybeTensor a_src = dense_terms(a_src_in), a_dst = dense_terms(a_dst_in);
  const MaybeTensor a_edge = dense(a_edge_in), grad_lse = dense(grad_lse_in);
  const MaybeTensor positive = dense(positive_in);
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
  if (heads == 0) return {grad_x, grad_src, grad_dst, grad_edge};
  const Dtype dtype = dtype_of(op, x.scalar_type());
  const bool vector = aligned(x) && aligned(grad);
  const Tensor stats = empty(op, x, lse.scalar_type(), {rows, heads, int64_t(4)});
  StatsArgs s{rows,
              heads,
              channels,
              grad.data_ptr(),
              grad.stride(0),
              out.data_ptr(),
              lse.data_ptr(),
              pointer(grad_lse),
              pointer(a_dst),
              row_stride(a_dst),
              aligned(grad) && aligned(out),
              stats.data_ptr(),
              pointer(positive),
              positive && (wanted & kThird) ? grad_dst.data_ptr() : nullptr,
              slope};
  const cudaStream_t stream = current_stream(x.get_device_index());
  if (rows > 0) check_cuda(op, launch_stats(dtype, s, stream));
  BackwardArgs args{};
  args.heads = heads, args.channels = channels;
  args.a_src = pointer(a_src), args.a_src_stride = row_stride(a_src);
  args.stats = stats.data_ptr();
  args.scores = scores_of(a_edge, seed, slope, dropout);
  const bool by_source = (wanted & (kFirst | kSecond)) && sources > 0;
  if (positive) wanted &= ~static_cast<int64_t>(kThird);  // done
  const bool by_destination = (wanted & (kThird | kFourth)) && rows > 0;
  // By source, the gradient in each edge's score is left for the sum over destinations.
  std::optional<Tensor> grad_score;
  if (by_source && by_destination && (wanted & kThird))
    grad_score = empty(op, x, lse.scalar_type(), {graph.csr.edges, heads});
  args.grad_score = grad_score ? grad_score->data_ptr() : nullptr;
  args.grad_edge = by_destination && (wanted & kFourth) ? grad_edge.data_ptr() : nullptr;
  args.scores.by_id |= args.grad_score || args.grad_edge;
  const auto walk_over = [&](const Csr& csr, int64_t bits) {
    Walk walk(op, x, csr, vector, heads, channels, heads * channels + heads, bits, true);
    args.csr = csr;
    args.hubs = walk.hubs;
    if (args.grad_edge) walk.fill(op, grad_edge);
    if (grad_score) walk.fill(op, *grad_score);
    check_cuda(op, launch_backward(dtype, walk.plan, args, stream));
  };
  if (by_source) {
    const GraphTensors transpose(*t_indptr, *t_indices, t_edge_ids, rows);
    args.by_source = true;
    args.own = x.data_ptr(), args.own_stride = x.stride(0);
    args.other = grad.data_ptr(), args.other_stride = grad.stride(0);
    args.grad_other_sum = wanted & kFirst ? grad_x.data_ptr() : nullptr;
    args.grad_row = wanted & kSecond ? grad_src.data_ptr() : nullptr;
    walk_over(transpose.csr, (promises & kChecked) | (promises >> 1 & kNoLongRows));
  }
  if (by_destination && !by_source) {
    args.by_source = false;
    args.own = grad.data_ptr(), args.own_stride = grad.stride(0);
    args.other = x.data_ptr(), args.other_stride = x.stride(0);
    args.grad_row = wanted & kThird ? grad_dst.data_ptr() : nullptr;
    walk_over(graph.csr, promises);
  }
  if (grad_score) {
    Walk walk(op, x, graph.csr, false, heads, 1, 0, promises);
    walk.fill(op, grad_dst);
    SoftmaxArgs sums{};
    sums.csr = graph.csr;
    sums.heads = heads;
    sums.scores = grad_score->data_ptr();
    sums.sum = grad_dst.data_ptr();
    sums.sum_dtype = dtype;
    sums.hubs = walk.hubs;
    check_cuda(op,
               launch_softmax(dtype == Dtype::f64 ? dtype : Dtype::f32, walk.plan, sums, stream));
  }
  return {grad_x, grad_src, grad_dst, grad_edge};
}

}  // namespace
}  // namespace gpuprims::attention

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  using namespace gpuprims;
  m.impl("neighbor_attention", TORCH_BOX(&attention::forward));
  m.impl("neighbor_attention_grad", TORCH_BOX(&attention::backward));
}
