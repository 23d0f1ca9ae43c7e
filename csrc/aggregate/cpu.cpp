// Aggregation on the CPU. Tasks take whole rows and about the same work each; a row's edges are
// added in order, so results depend neither on the number of threads nor on how rows are dealt.
#include "aggregate/boxed.h"
#include "aggregate/cpu_rows.h"

namespace gpuprims {
namespace {

namespace narrow {
constexpr int kVectorBytes = 16;  // what every CPU has
#include "aggregate/cpu_kernels.inc"
}  // namespace narrow

// The same operations on 32 bytes at a time, and so the same bits: AVX2 without fused multiply-add.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx2")
namespace wide {
constexpr int kVectorBytes = 32;
#include "aggregate/cpu_kernels.inc"
}  // namespace wide
#pragma GCC pop_options
const bool kHasWide = __builtin_cpu_supports("avx2");
#else
namespace wide = narrow;
constexpr bool kHasWide = false;
#endif

template <class T>
void extreme_grad_rows(const Csr& csr, const T* grad, int64_t stride, int64_t features,
                       const void* arg, const T* weight, T* out) {
  using Acc = double;  // as many terms as a hub has edges
  for_rows(csr, features, [&](int64_t first, int64_t last) {
    std::vector<Acc> sum(features);
    for (int64_t row = first; row < last; ++row) {
      const int64_t place = place_of_row(csr, row);
      if (place < 0) continue;
      std::fill(sum.begin(), sum.end(), Acc(0));
      for (int64_t at = offset(csr, row); at < offset(csr, row + 1); ++at) {
        const auto [edge, w] = edge_at(csr, weight, at);
        for (int64_t f = 0; f < features; ++f) {
          if (edge.source < 0)
            sum[f] = kNaN<T>;
          else if (load_int(arg, csr.wide_offsets, edge.source * features + f) == edge.id)
            sum[f] += w * static_cast<Acc>(grad[edge.source * stride + f]);
        }
      }
      for (int64_t f = 0; f < features; ++f) out[place * features + f] = static_cast<T>(sum[f]);
    }
  });
}

template <class T>
void dot_edges(const Csr& csr, const T* a, int64_t a_stride, const T* b, int64_t b_stride,
               int64_t features, const void* arg, T* out) {
  using Acc = double;
  for_rows(csr, features, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t place = place_of_row(csr, row);
      if (place < 0) continue;
      for (int64_t at = offset(csr, row); at < offset(csr, row + 1); ++at) {
        const int64_t source = source_of(csr, at), id = edge_id(csr, at);
        const T *left = a + place * a_stride, *right = b + source * b_stride;
        Acc dot = source < 0 ? kNaN<T> : Acc(0);
        for (int64_t f = 0; source >= 0 && f < features; ++f)
          if (!arg || load_int(arg, csr.wide_offsets, place * features + f) == id)
            dot += static_cast<Acc>(left[f]) * static_cast<Acc>(right[f]);
        if (id >= 0 && id < csr.edges) out[id] = static_cast<T>(dot);
      }
    }
  });
}

template <class F>
void for_dtype(ScalarType t, const F& f) {
  if (t == ScalarType::Float) f(float{});
  if (t == ScalarType::Double) f(double{});
  if (t == ScalarType::Half) f(Half{});
  if (t == ScalarType::BFloat16) f(BFloat16{});
}

template <class T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.data_ptr());
}

template <class T>
const T* data(const MaybeTensor& t) {
  return static_cast<const T*>(pointer(t));
}

void fill_nan(ScalarType dtype, void* data, int64_t count) {
  for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    std::fill_n(static_cast<T*>(data), count, static_cast<T>(kNaN<T>));
  });
}

}  // namespace

AggregateResult neighbor_aggregate_cpu(const AggregateCall& call) {
  constexpr auto op = "neighbor_aggregate";
  const int64_t reduce = call.reduce;
  check_aggregate(call.x, call.indptr, call.indices, call.edge_ids, call.edge_weight, call.t_indptr,
                  call.t_indices, call.t_edge_ids, reduce);
  const Tensor x = dense_rows(call.x);
  check_plan(op, "plan", call.plan, call.indptr, call.indices, call.x, "x");
  const GraphTensors graph(call.indptr, call.indices, call.edge_ids, call.plan, x.size(0));
  const MaybeTensor weight = dense(call.edge_weight);
  const Csr& csr = graph.csr;
  const int64_t features = x.size(1);
  const int64_t shape[2] = {csr.rows, features};
  AggregateResult result;
  result.out = allocate(op, place_of(x), x.scalar_type(), shape, 2);
  if (reduce >= 2 && call.want_arg)
    result.arg = allocate(op, place_of(x), call.indptr.scalar_type(), shape, 2);
  void* const out = data_of(result.out);
  void* const arg = result.arg ? data_of(result.arg) : nullptr;
  if (!good_data(op, csr, call.promises)) {
    const int64_t count = csr.rows * features;
    fill_nan(x.scalar_type(), out, count);
    for (int64_t i = 0; arg && i < count; ++i) store_int(arg, csr.wide_offsets, i, -1);
    return result;
  }
  for_dtype(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    T* const to = static_cast<T*>(out);
    if (reduce < 2)
      (kHasWide ? wide::sum_rows<T> : narrow::sum_rows<T>)(csr, data<T>(x), x.stride(0), features,
                                                           data<T>(weight), reduce == 1, to);
    else
      (kHasWide ? wide::extreme_rows<T> : narrow::extreme_rows<T>)(csr, data<T>(x), x.stride(0),
                                                                   features, data<T>(weight),
                                                                   reduce == 3, to, arg);
  });
  return result;
}

Tensor neighbor_extreme_grad_cpu(const Tensor& grad_in, const Tensor& arg_in, const Tensor& indptr,
                                 const Tensor& indices, const MaybeTensor& edge_ids,
                                 const MaybeTensor& edge_weight, const MaybeTensor& t_indptr,
                                 const MaybeTensor& t_indices, const MaybeTensor& t_edge_ids,
                                 int64_t promises, const MaybeTensor& plan,
                                 const MaybeTensor& t_plan) {
  constexpr auto op = "neighbor_extreme_grad";
  check_extreme_grad(grad_in, arg_in, indptr, indices, edge_ids, edge_weight, t_indptr, t_indices,
                     t_edge_ids);
  const Tensor grad = dense_rows(grad_in), arg = dense(arg_in);
  check_plan(op, "plan", plan, indptr, indices, grad_in, "grad");
  const GraphTensors graph(indptr, indices, edge_ids, plan, grad.size(0));
  const MaybeTensor weight = dense(edge_weight);
  Tensor out = empty(op, grad, grad.scalar_type(), {graph.csr.rows, grad.size(1)});
  if (!good_data(op, graph.csr, promises)) {
    fill_nan(out.scalar_type(), out.data_ptr(), out.numel());
    return out;
  }
  for_dtype(grad.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    extreme_grad_rows(graph.csr, data<T>(grad), grad.stride(0), grad.size(1), arg.data_ptr(),
                      data<T>(weight), static_cast<T*>(out.data_ptr()));
  });
  return out;
}

Tensor sddmm_cpu(const Tensor& a_in, const Tensor& b_in, const Tensor& indptr,
                 const Tensor& indices, const MaybeTensor& edge_ids, const MaybeTensor& arg_in,
                 const MaybeTensor& t_indptr, const MaybeTensor& t_indices,
                 const MaybeTensor& t_edge_ids, int64_t promises, const MaybeTensor& plan,
                 const MaybeTensor& t_plan) {
  check_sddmm(a_in, b_in, indptr, indices, edge_ids, arg_in, t_indptr, t_indices, t_edge_ids);
  const Tensor a = dense_rows(a_in), b = dense_rows(b_in);
  check_plan("sddmm", "plan", plan, indptr, indices, b_in, "b");
  const GraphTensors graph(indptr, indices, edge_ids, plan, b.size(0));
  const MaybeTensor arg = dense(arg_in);
  Tensor out = empty("sddmm", a, a.scalar_type(), {graph.csr.edges});
  if (!good_data("sddmm", graph.csr, promises)) {
    fill_nan(out.scalar_type(), out.data_ptr(), out.numel());
    return out;
  }
  for_dtype(a.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    T* const to = static_cast<T*>(out.data_ptr());
    if ((edge_ids || graph.csr.order) && !(promises & kChecked))
      std::fill_n(to, out.numel(), T(0.0f));  // ids may repeat
    dot_edges(graph.csr, data<T>(a), a.stride(0), data<T>(b), b.stride(0), a.size(1), pointer(arg),
              to);
  });
  return out;
}

}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("neighbor_aggregate", &gpuprims::boxed_aggregate<gpuprims::neighbor_aggregate_cpu>);
  m.impl("_neighbor_aggregate", &gpuprims::boxed_plain_aggregate<gpuprims::neighbor_aggregate_cpu>);
  m.impl("neighbor_extreme_grad", TORCH_BOX(&gpuprims::neighbor_extreme_grad_cpu));
  m.impl("sddmm", TORCH_BOX(&gpuprims::sddmm_cpu));
}
