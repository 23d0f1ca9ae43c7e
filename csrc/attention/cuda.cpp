// Tensors -> plan -> launches.
#include <tuple>

#include "attention/checks.h"
#include "attention/kernels.h"
#include "common/cuda_stable.h"

namespace gpuprims::attention {
namespace {

// Whether features may be read 16 bytes at a time, whatever the row.
bool aligned(const Tensor& x) {
  const int64_t bytes = dtype_bytes(dtype_of("neighbor_attention", x.scalar_type()));
  const uint64_t all = reinterpret_cast<uint64_t>(x.data_ptr()) |
                       static_cast<uint64_t>(x.size(0) > 1 ? x.stride(0) * bytes : 0) |
                       static_cast<uint64_t>(x.size(2) * bytes);
  return all % 16 == 0;
}

// One walk over the rows of a graph: its plan, and the workspace that lives as long as it.
class Walk {
 public:
  Walk(const char* op, const Tensor& like, const Csr& csr, bool vector, int64_t heads,
       int64_t channels, int64_t partial, int64_t promises)
      : stream(current_stream(like.get_device_index())),
        dtype(dtype_of(op, like.scalar_type())),
        checked_((promises & kChecked) && !raise_on_bad_data()) {
    const bool no_hubs = (promises & kNoHubs) || channels == 0;
    plan = plan_rows(dtype, vector, csr.rows, csr.edges, heads, channels, partial, checked_,
                     no_hubs, device_info(like.get_device_index()).sms);
    if (plan.space_bytes == 0) return;
    space_ = workspace(op, like, plan.space_bytes);
    char* const base = static_cast<char*>(space_->data_ptr());
    hubs = {reinterpret_cast<int*>(base), reinterpret_cast<unsigned long long*>(base + 8),
            reinterpret_cast<Chunk*>(base + plan.chunks_at), plan.capacity, base + plan.partial_at};
    const bool raise = raise_on_bad_data();
    check_cuda(op, launch_prepare(csr, hubs, raise, stream));
    if (!raise) return;
    int flag = 0;
    check_cuda(op, cudaMemcpyAsync(&flag, hubs.flag, sizeof flag, cudaMemcpyDeviceToHost, stream));
    check_cuda(op, cudaStreamSynchronize(stream));
    check_flag(op, flag, csr);
  }

  // Elements that a bad offset or a repeated id leaves unwritten are NaN: all bits set, in any
  // type.
  void fill(const char* op, const Tensor& out) const {
    if (checked_ || out.numel() == 0) return;
    const int64_t bytes = out.numel() * dtype_bytes(dtype_of(op, out.scalar_type()));
    check_cuda(op, cudaMemsetAsync(out.data_ptr(), 0xff, bytes, stream));
  }

  Plan plan;
  Hubs hubs;
  cudaStream_t stream;
  Dtype dtype;

 private:
  bool checked_;
  std::optional<Tensor> space_;
};

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

std::tuple<Tensor, Tensor> forward(const Tensor& x_in, const MaybeTensor& a_src_in,
                                   const MaybeTensor& a_dst_in, const MaybeTensor& a_edge_in,
                                   const MaybeTensor& seed, const Tensor& indptr,
                                   const Tensor& indices, const MaybeTensor& edge_ids,
                                   const MaybeTensor& t_indptr, const MaybeTensor& t_indices,
                                   const MaybeTensor& t_edge_ids, double slope, double dropout,
                                   int64_t promises) {
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
  if (rows == 0 || heads == 0) return {out, lse};
  Walk walk(op, x, graph.csr, aligned(x), heads, channels, heads * channels + 2 * heads, promises);
  ForwardArgs args{};
  args.csr = graph.csr;
  args.heads = heads, args.channels = channels;
  args.x = x.data_ptr(), args.x_stride = x.stride(0);
  args.a_src = pointer(a_src), args.a_src_stride = row_stride(a_src);
  args.a_dst = pointer(a_dst), args.a_dst_stride = row_stride(a_dst);
  args.scores = scores_of(a_edge, seed, slope, dropout);
  args.out = out.data_ptr();
  args.lse = lse.data_ptr();
  args.hubs = walk.hubs;
  check_cuda(op, launch_forward(walk.dtype, walk.plan, args, walk.stream));
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad_in, const MaybeTensor& grad_lse_in, const Tensor& out_in,
    const Tensor& lse_in, const Tensor& x_in, const MaybeTensor& a_src_in,
    const MaybeTensor& a_dst_in, const MaybeTensor& a_edge_in, const MaybeTensor& seed,
    const Tensor& indptr, const Tensor& indices, const MaybeTensor& edge_ids,
    const MaybeTensor& t_indptr, const MaybeTensor& t_indices, const MaybeTensor& t_edge_ids,
    double slope, double dropout, int64_t promises, int64_t wanted) {
  constexpr auto op = "neighbor_attention_grad";
  check_attention_grad(
      grad_in, grad_lse_in, out_in, lse_in, x_in, {a_src_in, a_dst_in, a_edge_in, seed},
      {indptr, indices, edge_ids, t_indptr, t_indices, t_edge_ids}, dropout, wanted);
  const DeviceGuard guard(x_in.get_device_index());
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
              stats.data_ptr()};
  const cudaStream_t stream = current_stream(x.get_device_index());
  if (rows > 0) check_cuda(op, launch_stats(dtype, s, stream));
  BackwardArgs args{};
  args.heads = heads, args.channels = channels;
  args.a_src = pointer(a_src), args.a_src_stride = row_stride(a_src);
  args.stats = stats.data_ptr();
  args.scores = scores_of(a_edge, seed, slope, dropout);
  const auto walk_over = [&](const Csr& csr, int64_t bits) {
    Walk walk(op, x, csr, vector, heads, channels, heads * channels + heads, bits);
    args.csr = csr;
    args.hubs = walk.hubs;
    if (args.grad_edge) walk.fill(op, grad_edge);
    check_cuda(op, launch_backward(dtype, walk.plan, args, stream));
  };
  if ((wanted & (kFirst | kSecond)) && sources > 0) {
    const GraphTensors transpose(*t_indptr, *t_indices, t_edge_ids, rows);
    args.by_source = true;
    args.own = x.data_ptr(), args.own_stride = x.stride(0);
    args.other = grad.data_ptr(), args.other_stride = grad.stride(0);
    args.grad_other_sum = wanted & kFirst ? grad_x.data_ptr() : nullptr;
    args.grad_row = wanted & kSecond ? grad_src.data_ptr() : nullptr;
    walk_over(transpose.csr, (promises & kChecked) | (promises >> 1 & kNoHubs));
  }
  if ((wanted & (kThird | kFourth)) && rows > 0) {
    args.by_source = false;
    args.own = grad.data_ptr(), args.own_stride = grad.stride(0);
    args.other = x.data_ptr(), args.other_stride = x.stride(0);
    args.grad_other_sum = nullptr;
    args.grad_row = wanted & kThird ? grad_dst.data_ptr() : nullptr;
    args.grad_edge = wanted & kFourth ? grad_edge.data_ptr() : nullptr;
    args.scores.by_id |= args.grad_edge != nullptr;
    walk_over(graph.csr, promises);
  }
  return {grad_x, grad_src, grad_dst, grad_edge};
}

Tensor softmax(const char* op, const Tensor& scores_in, const MaybeTensor& alpha_in,
               const Tensor& indptr, const MaybeTensor& edge_ids, int64_t promises) {
  const DeviceGuard guard(scores_in.get_device_index());
  const Tensor scores = dense(scores_in), offsets = dense(indptr);
  const MaybeTensor alpha = dense(alpha_in), ids = dense(edge_ids);
  Tensor out = empty(op, scores, scores.scalar_type(), {scores.size(0), scores.size(1)});
  SoftmaxArgs args{};
  args.csr = {
      offsets.data_ptr(),  nullptr, pointer(ids),  offsets.scalar_type() == ScalarType::Long, false,
      offsets.size(0) - 1, 0,       scores.size(0)};
  args.heads = scores.size(1);
  if (out.numel() == 0) return out;
  Walk walk(op, scores, args.csr, false, args.heads, 1, 0, promises);
  walk.fill(op, out);
  args.scores = scores.data_ptr();
  args.alpha = pointer(alpha);
  args.out = out.data_ptr();
  args.hubs = walk.hubs;
  check_cuda(op, launch_softmax(walk.dtype, walk.plan, args, walk.stream));
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

Gatv2Args gatv2_args(const Tensor& att, const MaybeTensor& edge, double slope) {
  Gatv2Args args{};
  args.heads = att.size(0), args.channels = att.size(1);
  args.att = att.data_ptr();
  args.edge = pointer(edge);
  args.slope = slope;
  return args;
}

bool all_aligned(const Tensor& x_src, const Tensor& x_dst, const Tensor& att,
                 const MaybeTensor& edge) {
  return aligned(x_src) && aligned(x_dst) && reinterpret_cast<uint64_t>(att.data_ptr()) % 16 == 0 &&
         (!edge || aligned(*edge));
}

Tensor gatv2_score(const Tensor& x_src_in, const Tensor& x_dst_in, const Tensor& att_in,
                   const MaybeTensor& edge_in, const Tensor& indptr, const Tensor& indices,
                   const MaybeTensor& edge_ids, const MaybeTensor& t_indptr,
                   const MaybeTensor& t_indices, const MaybeTensor& t_edge_ids, double slope,
                   int64_t promises) {
  constexpr auto op = "gatv2_score";
  check_gatv2(op, x_src_in, x_dst_in, att_in, edge_in,
              {indptr, indices, edge_ids, t_indptr, t_indices, t_edge_ids});
  const DeviceGuard guard(x_src_in.get_device_index());
  const Tensor x_src = dense_heads(x_src_in), x_dst = dense_heads(x_dst_in), att = dense(att_in);
  const MaybeTensor edge = dense(edge_in);
  const GraphTensors graph(indptr, indices, edge_ids, x_src.size(0));
  Tensor scores = empty(op, x_src, x_src.scalar_type(), {graph.csr.edges, x_src.size(1)});
  if (scores.numel() == 0) return scores;
  Gatv2Args args = gatv2_args(att, edge, slope);
  Walk walk(op, x_src, graph.csr, all_aligned(x_src, x_dst, att, edge), args.heads, args.channels,
            0, promises);
  walk.fill(op, scores);
  args.csr = graph.csr;
  args.own = x_dst.data_ptr(), args.own_stride = x_dst.stride(0);
  args.other = x_src.data_ptr(), args.other_stride = x_src.stride(0);
  args.scores = scores.data_ptr();
  args.hubs = walk.hubs;
  check_cuda(op, launch_gatv2(walk.dtype, walk.plan, args, walk.stream));
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
  const DeviceGuard guard(x_src_in.get_device_index());
  const Tensor grad = dense(grad_in), att = dense(att_in);
  const Tensor x_src = dense_heads(x_src_in), x_dst = dense_heads(x_dst_in);
  const MaybeTensor edge = dense(edge_in);
  const GraphTensors graph(indptr, indices, edge_ids, x_src.size(0));
  const int64_t rows = graph.csr.rows, heads = att.size(0), channels = att.size(1);
  const int64_t sources = t_indptr ? t_indptr->size(0) - 1 : 0;
  const auto result = [&](int64_t bit, int64_t count) {
    return wanted & bit ? empty(op, x_src, x_src.scalar_type(), {count, heads, channels})
                        : empty(op, x_src, x_src.scalar_type(), {int64_t(0)});
  };
  Tensor grad_src = result(kFirst, sources), grad_dst = result(kSecond, rows);
  Tensor grad_att = result(kThird, rows), grad_edge = result(kFourth, graph.csr.edges);
  if (heads == 0 || channels == 0) return {grad_src, grad_dst, grad_att, grad_edge};
  Gatv2Args args = gatv2_args(att, edge, slope);
  args.grad = grad.data_ptr();
  const auto walk_over = [&](const Csr& csr, int64_t bits, const Tensor& first,
                             const Tensor& second) {
    Walk walk(op, x_src, csr, all_aligned(x_src, x_dst, att, edge), heads, channels,
              2 * heads * channels, bits);
    args.csr = csr;
    args.hubs = walk.hubs;
    for (const Tensor* t : {&first, &second}) walk.fill(op, *t);
    if (args.grad_edge) walk.fill(op, grad_edge);
    check_cuda(op, launch_gatv2(walk.dtype, walk.plan, args, walk.stream));
  };
  if ((wanted & kFirst) && sources > 0) {
    const GraphTensors transpose(*t_indptr, *t_indices, t_edge_ids, rows);
    args.by_source = true;
    args.own = x_src.data_ptr(), args.own_stride = x_src.stride(0);
    args.other = x_dst.data_ptr(), args.other_stride = x_dst.stride(0);
    args.grad_own = grad_src.data_ptr();
    walk_over(transpose.csr, (promises & kChecked) | (promises >> 1 & kNoHubs), grad_src, grad_src);
  }
  if ((wanted & (kSecond | kThird | kFourth)) && rows > 0) {
    args.by_source = false;
    args.own = x_dst.data_ptr(), args.own_stride = x_dst.stride(0);
    args.other = x_src.data_ptr(), args.other_stride = x_src.stride(0);
    args.grad_own = wanted & kSecond ? grad_dst.data_ptr() : nullptr;
    args.grad_att = wanted & kThird ? grad_att.data_ptr() : nullptr;
    args.grad_edge = wanted & kFourth ? grad_edge.data_ptr() : nullptr;
    walk_over(graph.csr, promises, grad_dst, grad_att);
  }
  return {grad_src, grad_dst, grad_att, grad_edge};
}

}  // namespace
}  // namespace gpuprims::attention

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  using namespace gpuprims;
  m.impl("neighbor_attention", TORCH_BOX(&attention::forward));
  m.impl("neighbor_attention_grad", TORCH_BOX(&attention::backward));
  m.impl("edge_softmax", TORCH_BOX(&attention::edge_softmax));
  m.impl("edge_softmax_grad", TORCH_BOX(&attention::edge_softmax_grad));
  m.impl("gatv2_score", TORCH_BOX(&attention::gatv2_score));
  m.impl("gatv2_score_grad", TORCH_BOX(&attention::gatv2_score_grad));
}
