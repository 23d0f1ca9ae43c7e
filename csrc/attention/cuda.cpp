// Tensors -> plan -> launches.
#include "attention/calls.h"
#include "attention/walk.h"

namespace gpuprims::attention {
namespace {

Scores scores_of(const Inputs& call) {
  Scores scores{};
  scores.a_edge = pointer(call.a_edge);
  scores.seed = call.dropout > 0 ? static_cast<const int64_t*>(pointer(call.seed)) : nullptr;
  scores.threshold = dropout_threshold(call.dropout);
  scores.kept_scale = call.dropout < 1 ? 1 / (1 - call.dropout) : 0;
  scores.slope = call.slope;
  scores.by_id = scores.a_edge || scores.seed;
  return scores;
}

bool aligned_base(const MaybeTensor& t) { return reinterpret_cast<uint64_t>(pointer(t)) % 16 == 0; }

struct Cuda {
  using Guard = DeviceGuard;

  static void attend(const char* op, const ForwardCall& call) {
    const Csr& csr = call.graph.csr;
    const int64_t rows = csr.rows, heads = call.heads(), channels = call.channels();
    if (rows == 0 || heads == 0) return;
    const bool want_positive = call.positive.numel() > 0;
    Walk walk(op, call.x, csr, aligned(call.x) && aligned_base(call.bias), heads, channels,
              attended_partial(heads, channels, want_positive), call.promises, true);
    ForwardArgs args{};
    args.csr = csr;
    args.heads = heads, args.channels = channels;
    args.x = call.x.data_ptr(), args.x_stride = call.x.stride(0);
    args.a_src = pointer(call.a_src), args.a_src_stride = row_stride(call.a_src);
    args.a_dst = pointer(call.a_dst), args.a_dst_stride = row_stride(call.a_dst);
    args.scores = scores_of(call);
    args.bias = pointer(call.bias);
    args.out = call.out.data_ptr();
    args.lse = call.lse.data_ptr();
    if (want_positive) {
      args.positive = call.positive.data_ptr();
      args.share = static_cast<char*>(args.positive) +
                   rows * heads * channels * dtype_bytes(dtype_of(op, call.lse.scalar_type()));
    }
    args.hubs = walk.hubs;
    check_cuda(op, launch_forward(walk.dtype, walk.plan, args, walk.stream));
  }

  static Tensor make_stats(const char* op, const BackwardCall& call, Dtype dtype) {
    const int64_t rows = call.rows(), heads = call.heads();
    Tensor stats = empty(op, call.x, call.lse.scalar_type(), {rows, heads, int64_t(4)});
    StatsArgs args{rows,
                   heads,
                   call.channels(),
                   call.grad.data_ptr(),
                   call.grad.stride(0),
                   call.out.data_ptr(),
                   pointer(call.bias),
                   call.lse.data_ptr(),
                   pointer(call.grad_lse),
                   pointer(call.a_dst),
                   row_stride(call.a_dst),
                   aligned(call.grad) && aligned(call.out) && aligned_base(call.bias),
                   stats.data_ptr(),
                   pointer(call.positive),
                   call.positive && (call.wanted & kThird) ? call.grad_dst.data_ptr() : nullptr,
                   call.slope};
    if (rows > 0)
      check_cuda(op, launch_stats(dtype, args, current_stream(call.x.get_device_index())));
    return stats;
  }

  static void attend_grad(const char* op, const BackwardCall& call) {
    const Csr& csr = call.graph.csr;
    const int64_t heads = call.heads(), channels = call.channels();
    if (heads == 0) return;
    const Dtype dtype = dtype_of(op, call.x.scalar_type());
    const Tensor stats = make_stats(op, call, dtype);
    BackwardArgs args{};
    args.heads = heads, args.channels = channels;
    args.a_src = pointer(call.a_src), args.a_src_stride = row_stride(call.a_src);
    args.stats = stats.data_ptr();
    args.scores = scores_of(call);
    // Where the part with positive scores was kept, the gradient in a_dst is done.
    const int64_t wanted = call.wanted & ~(call.positive ? kThird : int64_t(0));
    const bool by_source = call.transpose && call.transpose->csr.rows > 0;
    const bool by_destination = (wanted & (kThird | kFourth)) && csr.rows > 0;
    // By source, the gradient in each edge's score is left for the sum over destinations.
    std::optional<Tensor> grad_score;
    if (by_source && by_destination && (wanted & kThird))
      grad_score = empty(op, call.x, call.lse.scalar_type(), {csr.edges, heads});
    args.grad_score = grad_score ? grad_score->data_ptr() : nullptr;
    args.grad_edge = by_destination && (wanted & kFourth) ? call.grad_edge.data_ptr() : nullptr;
    args.scores.by_id |= args.grad_score || args.grad_edge;
    const bool vector = aligned(call.x) && aligned(call.grad);
    const auto walk_over = [&](const Csr& walked, int64_t promises) {
      Walk walk(op, call.x, walked, vector, heads, channels, heads * channels + heads, promises,
                true);
      args.csr = walked;
      args.hubs = walk.hubs;
      if (args.grad_edge) walk.fill(op, call.grad_edge);
      if (grad_score) walk.fill(op, *grad_score);
      check_cuda(op, launch_backward(dtype, walk.plan, args, walk.stream));
    };
    const auto own_and_other = [&](const Tensor& own, const Tensor& other) {
      args.own = own.data_ptr(), args.own_stride = own.stride(0);
      args.other = other.data_ptr(), args.other_stride = other.stride(0);
    };
    if (by_source) {
      args.by_source = true;
      own_and_other(call.x, call.grad);
      args.grad_other_sum = wanted & kFirst ? call.grad_x.data_ptr() : nullptr;
      args.grad_row = wanted & kSecond ? call.grad_src.data_ptr() : nullptr;
      walk_over(call.transpose->csr,
                (call.promises & kChecked) | (call.promises >> 1 & kNoLongRows));
    } else if (by_destination) {
      own_and_other(call.grad, call.x);
      args.grad_row = wanted & kThird ? call.grad_dst.data_ptr() : nullptr;
      walk_over(csr, call.promises);
    }
    if (grad_score) sum_scores(op, call, *grad_score, dtype);
  }

  static void sum_scores(const char* op, const BackwardCall& call, const Tensor& grad_score,
                         Dtype dtype) {
    Walk walk(op, call.x, call.graph.csr, false, call.heads(), 1, 0, call.promises);
    walk.fill(op, call.grad_dst);
    SoftmaxArgs sums{};
    sums.csr = call.graph.csr;
    sums.heads = call.heads();
    sums.scores = grad_score.data_ptr();
    sums.sum = call.grad_dst.data_ptr();
    sums.sum_dtype = dtype;
    sums.hubs = walk.hubs;
    check_cuda(
        op, launch_softmax(dtype == Dtype::f64 ? dtype : Dtype::f32, walk.plan, sums, walk.stream));
  }
};

}  // namespace
}  // namespace gpuprims::attention

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  using namespace gpuprims::attention;
  m.impl("neighbor_attention", TORCH_BOX(&forward<Cuda>));
  m.impl("neighbor_attention_grad", TORCH_BOX(&backward<Cuda>));
}
