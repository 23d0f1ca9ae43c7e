// edge_softmax and gatv2_score: tensors -> plan -> launches.
#include <tuple>

#include "attention/walk.h"

namespace gpuprims::attention {
namespace {

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
    walk_over(transpose.csr, (promises & kChecked) | (promises >> 1 & kNoLongRows), grad_src,
              grad_src);
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
  m.impl("edge_softmax", TORCH_BOX(&attention::edge_softmax));
  m.impl("edge_softmax_grad", TORCH_BOX(&attention::edge_softmax_grad));
  m.impl("gatv2_score", TORCH_BOX(&attention::gatv2_score));
  m.impl("gatv2_score_grad", TORCH_BOX(&attention::gatv2_score_grad));
}
