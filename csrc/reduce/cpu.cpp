// The reductions on the CPU: the same tree as on the GPU (docs/reduce.md), chunks by vector loops.
#include "reduce/boxed.h"
#include "reduce/cpu_run.h"

namespace gpuprims {
namespace {

void run(const ReduceArgs& args, ReduceOp op, ReduceFamily family) {
  if (args.layout.columns == 0) return;
  (is_floating(args.dtype) ? reduce_floats : reduce_integers)(args, op, family);
}

TensorPtr reduce_cpu(const Tensor& input, int64_t op, const MaybeDims& dims, bool keepdim,
                     int64_t dtype, double correction) {
  const ReduceShape shape = check_reduce(input, op, dims, keepdim, dtype);
  const Dtype as = reduced_as(shape.op, shape.dtype, shape.out_dtype);
  if (as != shape.dtype) [[unlikely]]
    return reduce_cpu(torch::stable::to(input, scalar_type_of(as)), op, dims, keepdim,
                      static_cast<int64_t>(shape.out_dtype), correction);
  TensorPtr out = allocate("reduce", place_of(input), scalar_type_of(shape.out_dtype), shape.output,
                           shape.out_rank);
  ReduceArgs args = args_for(shape.op, shape.dtype, shape.out_dtype, correction);
  const ReduceFamily family = family_of(shape.op);
  std::optional<Tensor> copy;
  attach(args, input, shape, family, is_arg(shape.op), copy);
  args.out[0] = data_of(out);
  run(args, shape.op, family);
  return out;
}

StatsResult stats_cpu(const Tensor& input, const MaybeDims& dims, bool keepdim, double correction,
                      bool indices) {
  ReduceShape shape = check_stats(input, dims, keepdim, indices);
  StatsResult result = allocate_stats(input, shape, indices);
  shape.op = ReduceOp::var;
  ReduceArgs args = args_for(shape.op, shape.dtype, shape.out_dtype, correction);
  args.indices = indices;
  std::optional<Tensor> copy;
  attach(args, input, shape, ReduceFamily::stats, indices, copy);
  for (int i = 0; i < 7; ++i) args.out[i] = data_of(result[i]);
  run(args, ReduceOp::var, ReduceFamily::stats);
  return result;
}

template <class T>
void run_dot(const Tensor& input, const Tensor& other, void* out, Dtype dtype) {
  using A = ValueOf<T>;
  const CpuAdditive<T, A> op{false, 0, false};
  const T* const x = static_cast<const T*>(input.const_data_ptr());
  const T* const y = static_cast<const T*>(other.const_data_ptr());
  const int64_t n = input.size(0), step_x = input.strides()[0], step_y = other.strides()[0];
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  const int64_t groups = (chunks + kGroup - 1) / kGroup;
  std::vector<A> partials(std::max<int64_t>(groups, 1), A(0));
  parallel(groups, int64_t{kChunk} * kGroup, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      A s[kGroup] = {};
      for (int j = 0; j < kGroup && g * kGroup + j < chunks; ++j) {
        const int64_t base = (g * kGroup + j) * kChunk;
        const int count = static_cast<int>(std::min<int64_t>(kChunk, n - base));
        A products[kChunk];  // beside each other, are what is summed
        for (int p = 0; p < count; ++p)
          products[p] =
              static_cast<A>(x[(base + p) * step_x]) * static_cast<A>(y[(base + p) * step_y]);
        s[j] = op.chunk(products, count, base);
      }
      combine_pairs(s, op);
      partials[g] = s[0];
    }
  });
  A finals[kFinish] = {};
  for (int64_t g = 0; g < groups; ++g) finals[g % kFinish] += partials[g];
  for (int d = kFinish / 2; d > 0; d /= 2)
    for (int a = 0; a < d; ++a) finals[a] += finals[a + d];
  store_values(out, dtype, 0, 1, finals, 1, [](A x) { return x; });
}

TensorPtr dot_cpu(const Tensor& input, const Tensor& other) {
  const Dtype dtype = check_dot(input, other);
  TensorPtr out = allocate("dot", place_of(input), input.scalar_type(), nullptr, 0);
  void* const to = data_of(out);
  if (dtype == Dtype::f64) run_dot<double>(input, other, to, dtype);
  if (dtype == Dtype::f32) run_dot<float>(input, other, to, dtype);
  if (dtype == Dtype::f16) run_dot<Half>(input, other, to, dtype);
  if (dtype == Dtype::bf16) run_dot<BFloat16>(input, other, to, dtype);
  return out;
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("reduce", &gpuprims::boxed_reduce<gpuprims::reduce_cpu>);
  m.impl("_reduce", &gpuprims::boxed_plain_reduce<gpuprims::reduce_cpu>);
  m.impl("stats", &gpuprims::boxed_stats<gpuprims::stats_cpu>);
  m.impl("dot", &gpuprims::boxed_dot<gpuprims::dot_cpu>);
}
