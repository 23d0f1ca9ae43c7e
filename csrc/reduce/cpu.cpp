// The reductions on the CPU: the same tree as on the GPU (docs/reduce.md), chunks by vector loops.
#include "reduce/boxed.h"
#include "reduce/cpu_rows.h"

namespace gpuprims {
namespace {

template <class V>
void store_value(void* out, Dtype dtype, int64_t at, V value) {
  switch (dtype) {
    case Dtype::f32:
      static_cast<float*>(out)[at] = static_cast<float>(value);
      break;
    case Dtype::f64:
      static_cast<double*>(out)[at] = static_cast<double>(value);
      break;
    case Dtype::f16:
      static_cast<Half*>(out)[at] = Half(static_cast<float>(value));
      break;
    case Dtype::bf16:
      static_cast<BFloat16*>(out)[at] = BFloat16(static_cast<float>(value));
      break;
    default: {
      const auto whole = static_cast<int64_t>(value);
      std::memcpy(static_cast<char*>(out) + at * dtype_bytes(dtype), &whole, dtype_bytes(dtype));
    }
  }
}

template <class A>
A end_value(const ReduceArgs& args, A value) {
  if (args.ending == Ending::divide || args.ending == Ending::divide_root)
    value = value / static_cast<A>(args.divisor);
  if (args.ending == Ending::root || args.ending == Ending::divide_root) value = std::sqrt(value);
  return value;
}

// A: the accumulator. V elements of the input make 16 bytes.
template <class T, class A>
struct CpuAdditive {
  using State = A;
  static constexpr bool kLines = true;
  static constexpr int V = 16 / sizeof(T);
  bool product;
  int transform;
  bool strided;  // of two trees

  bool has_lines() const { return !product; }
  State identity() const { return product ? A(1) : A(0); }
  State combine(State a, State b) const { return product ? a * b : a + b; }

  void lines(const T* from, int64_t step, int count, int columns, State* out) const {
    if constexpr (std::is_floating_point_v<A>) {
      thread_local std::vector<A> memory((kRowLanes + 7) * kTile);
      A* const lines = memory.data();
      if (transform == 0)
        GPUPRIMS_BEST(strided_lines<0, A, T>(from, step, count, columns, lines, out));
      else if (transform == 1)
        GPUPRIMS_BEST(strided_lines<1, A, T>(from, step, count, columns, lines, out));
      else
        GPUPRIMS_BEST(strided_lines<2, A, T>(from, step, count, columns, lines, out));
    } else {
      GPUPRIMS_BEST(integer_lines<T>(from, step, count, columns, out));
    }
  }

  template <class X>
  State add_all(const X* x, int count) const {
    if (strided)
      return product ? GPUPRIMS_BEST(strided_chunk<true, A>(x, count))
                     : GPUPRIMS_BEST(strided_chunk<false, A>(x, count));
    return product ? GPUPRIMS_BEST(multiply_chunk<A, V>(x, count))
                   : GPUPRIMS_BEST(add_chunk<A, V>(x, count));
  }

  template <class X>
  State chunk(const X* x, int count, int64_t) const {
    if constexpr (!std::is_floating_point_v<A>) {
      if (!product) return GPUPRIMS_BEST(add_integers(x, count));
      uint64_t all = 1;
      for (int p = 0; p < count; ++p) all *= static_cast<uint64_t>(x[p]);
      return static_cast<A>(all);
    } else {
      if (transform == 0) return add_all(x, count);
      A values[kChunk];
      for (int p = 0; p < count; ++p) {
        const A wide = static_cast<A>(x[p]);
        values[p] = transform == 2 ? wide * wide : std::fabs(wide);
      }
      return add_all(values, count);
    }
  }
};

// V: the values, in their own order.
template <class T>
struct CpuExtreme {
  using State = ValueOf<T>;
  static constexpr bool kLines = true;
  bool least, magnitude;

  bool has_lines() const { return !magnitude; }
  State identity() const {
    using Limits = std::numeric_limits<State>;
    if (magnitude) return State(0);
    if constexpr (std::is_floating_point_v<State>)
      return least ? Limits::infinity() : -Limits::infinity();
    else
      return least ? Limits::max() : Limits::lowest();
  }
  State combine(State a, State b) const {
    const bool better = least ? b < a : b > a;
    return better || b != b ? b : a;
  }
  void lines(const T* from, int64_t step, int count, int columns, State* out) const {
    if (least)
      GPUPRIMS_BEST(extreme_lines<true, T>(from, step, count, columns, out));
    else
      GPUPRIMS_BEST(extreme_lines<false, T>(from, step, count, columns, out));
  }
  State chunk(const State* x, int count, int64_t) const {
    if (least) return GPUPRIMS_BEST(extreme_chunk<true>(x, count));
    const State most = GPUPRIMS_BEST(extreme_chunk<false>(x, count));
    if (!magnitude) return most;
    const State lowest = GPUPRIMS_BEST(extreme_chunk<true>(x, count));
    return combine(most, State(0) - lowest);
  }
};

template <class T>
struct CpuArg {
  using V = ValueOf<T>;
  using State = Placed<V>;
  bool least;

  State identity() const { return {V(0), -1}; }
  State combine(const State& a, const State& b) const {
    if (b.at < 0) return a;
    if (a.at < 0) return b;
    if (a.value != a.value) return a.at < b.at || b.value == b.value ? a : b;
    if (b.value != b.value) return b;
    if (a.value == b.value) return a.at < b.at ? a : b;
    return (least ? b.value < a.value : b.value > a.value) ? b : a;
  }
  State chunk(const V* x, int count, int64_t base) const {
    const V best = least ? GPUPRIMS_BEST(extreme_chunk<true>(x, count))
                         : GPUPRIMS_BEST(extreme_chunk<false>(x, count));
    return {best, base + GPUPRIMS_BEST(find_chunk(x, count, best))};
  }
};

template <class T>
struct CpuNonzero {
  using State = uint8_t;
  static constexpr bool kLines = true;
  bool all;
  bool has_lines() const { return true; }
  void lines(const T* from, int64_t step, int count, int columns, State* out) const {
    if constexpr (kHalf<T>)
      GPUPRIMS_BEST(nonzero_lines<true>(reinterpret_cast<const uint16_t*>(from), step, count,
                                        columns, all, out));
    else
      GPUPRIMS_BEST(nonzero_lines<false>(from, step, count, columns, all, out));
  }
  State identity() const { return all; }
  State combine(State a, State b) const { return all ? a & b : a | b; }
  template <class X>
  State chunk(const X* x, int count, int64_t) const {
    return GPUPRIMS_BEST(nonzero_chunk(x, count, all));
  }
};

template <class A>
struct CpuMoments {
  using State = Spread<A>;
  State identity() const { return {A(0), A(0), A(0), A(0)}; }
  State combine(const State& a, const State& b) const { return join(a, b); }
  State chunk(const A* x, int count, int64_t) const {
    return GPUPRIMS_BEST(spread_chunk(x, count));
  }
};

template <class A>
struct CpuLogSumExp {
  using State = ScaledSum<A>;
  LogSumExp<A> op;
  State identity() const { return op.identity(); }
  State combine(const State& a, const State& b) const { return op.combine(a, b); }
  State chunk(const A* x, int count, int64_t) const { return GPUPRIMS_BEST(exp_chunk(x, count)); }
};

template <class A>
struct CpuStats {
  using State = Summary<A>;
  Stats<A> op;
  State identity() const { return op.identity(); }
  State combine(const State& a, const State& b) const { return op.combine(a, b); }
  State chunk(const A* x, int count, int64_t base) const {
    const A least = GPUPRIMS_BEST(extreme_chunk<true>(x, count));
    const A most = GPUPRIMS_BEST(extreme_chunk<false>(x, count));
    const int64_t nans = GPUPRIMS_BEST(nan_chunk(x, count));
    const int64_t at_least = op.indices ? base + GPUPRIMS_BEST(find_chunk(x, count, least)) : 0;
    const int64_t at_most = op.indices ? base + GPUPRIMS_BEST(find_chunk(x, count, most)) : 0;
    return {GPUPRIMS_BEST(spread_chunk(x, count)), -least, most, nans, at_least, at_most};
  }
};

template <class T>
constexpr bool kFloating = std::is_floating_point_v<T> || kHalf<T>;

template <class T>
void run_additive(const ReduceArgs& args) {
  const bool strided = has_strided_tree(args.layout);
  const auto run = [&]<class A>(A) {
    reduce_columns<T>(
        args, CpuAdditive<T, A>{args.product, args.transform, strided}, [&](int64_t at, A state) {
          if constexpr (std::is_floating_point_v<A>)
            store_value(args.out[0], args.out_dtype, at, end_value(args, state));
          else if (args.ending == Ending::divide)
            store_value(args.out[0], args.out_dtype, at, static_cast<double>(state) / args.divisor);
          else
            store_value(args.out[0], args.out_dtype, at, state);
        });
  };
  if constexpr (!kFloating<T>)
    run(int64_t{});
  else if constexpr (std::is_same_v<T, double>)
    run(double{});
  else if constexpr (std::is_same_v<T, float>)
    args.acc == Dtype::f64 ? run(double{}) : run(float{});
  else
    run(float{});
}

template <class T>
void run_floating(const ReduceArgs& args, ReduceFamily family) {
  using A = ValueOf<T>;
  if (family == ReduceFamily::moments) {
    reduce_columns<T>(args, CpuMoments<A>{}, [&](int64_t at, const Spread<A>& s) {
      const A m2 = args.layout.n == 0 ? std::numeric_limits<A>::quiet_NaN() : s.m2;
      store_value(args.out[0], args.out_dtype, at, end_value(args, m2));
    });
  } else if (family == ReduceFamily::logsumexp) {
    reduce_columns<T>(args, CpuLogSumExp<A>{}, [&](int64_t at, const ScaledSum<A>& s) {
      const bool some = s.s > A(0) || s.s != s.s;
      store_value(args.out[0], args.out_dtype, at, some ? s.m + std::log(s.s) : lowest_of<A>());
    });
  } else {
    reduce_columns<T>(args, CpuStats<A>{{args.indices}}, [&](int64_t at, const Summary<A>& s) {
      store_value(args.out[0], args.out_dtype, at, -s.least + A(0));
      store_value(args.out[1], args.out_dtype, at, s.most + A(0));
      store_value(args.out[2], args.out_dtype, at, s.spread.mean);
      store_value(args.out[3], args.out_dtype, at, end_value(args, s.spread.m2));
      static_cast<int64_t*>(args.out[4])[at] = s.nans;
      if (!args.indices) return;
      static_cast<int64_t*>(args.out[5])[at] = s.at_least;
      static_cast<int64_t*>(args.out[6])[at] = s.at_most;
    });
  }
}

template <class T>
void run_op(const ReduceArgs& args, ReduceOp op, ReduceFamily family) {
  if (family == ReduceFamily::additive) return run_additive<T>(args);
  const bool least = op == ReduceOp::min || op == ReduceOp::argmin;
  if (op == ReduceOp::any || op == ReduceOp::all)
    return reduce_columns<T>(
        args, CpuNonzero<T>{op == ReduceOp::all},
        [&](int64_t at, uint8_t state) { static_cast<uint8_t*>(args.out[0])[at] = state; });
  if (family == ReduceFamily::extreme)
    return reduce_columns<T>(args, CpuExtreme<T>{least, op == ReduceOp::norm_inf},
                             [&](int64_t at, ValueOf<T> state) {
                               store_value(args.out[0], args.out_dtype, at,
                                           static_cast<ValueOf<T>>(state + ValueOf<T>(0)));
                             });
  if (family == ReduceFamily::arg)
    return reduce_columns<T>(args, CpuArg<T>{least}, [&](int64_t at, const auto& state) {
      static_cast<int64_t*>(args.out[0])[at] = state.at;
    });
  if constexpr (kFloating<T>) run_floating<T>(args, family);
}

void run(const ReduceArgs& args, ReduceOp op, ReduceFamily family) {
  if (args.layout.columns == 0) return;
  switch (args.dtype) {
    case Dtype::u8:
    case Dtype::boolean:
      return run_op<uint8_t>(args, op, family);
    case Dtype::i8:
      return run_op<int8_t>(args, op, family);
    case Dtype::u16:
      return run_op<uint16_t>(args, op, family);
    case Dtype::i16:
      return run_op<int16_t>(args, op, family);
    case Dtype::u32:
      return run_op<uint32_t>(args, op, family);
    case Dtype::i32:
      return run_op<int32_t>(args, op, family);
    case Dtype::u64:
      return run_op<uint64_t>(args, op, family);
    case Dtype::i64:
      return run_op<int64_t>(args, op, family);
    case Dtype::f16:
      return run_op<Half>(args, op, family);
    case Dtype::bf16:
      return run_op<BFloat16>(args, op, family);
    case Dtype::f32:
      return run_op<float>(args, op, family);
    default:
      return run_op<double>(args, op, family);
  }
}

TensorPtr reduce_cpu(const Tensor& input, int64_t op, const MaybeDims& dims, bool keepdim,
                     int64_t dtype, double correction) {
  const ReduceShape shape = check_reduce(input, op, dims, keepdim, dtype);
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
  // Products of a chunk beside each other are what is summed.
  struct Products : CpuAdditive<T, A> {
    const T *x, *y;
    int64_t step_x, step_y;
    bool has_lines() const { return false; }
    A chunk(const A*, int count, int64_t base) const {
      A values[kChunk];
      for (int p = 0; p < count; ++p)
        values[p] = static_cast<A>(x[(base + p) * step_x]) * static_cast<A>(y[(base + p) * step_y]);
      return CpuAdditive<T, A>::chunk(values, count, base);
    }
  };
  Products op;
  op.product = false, op.transform = 0, op.strided = false;
  op.x = static_cast<const T*>(input.const_data_ptr());
  op.y = static_cast<const T*>(other.const_data_ptr());
  op.step_x = input.strides()[0], op.step_y = other.strides()[0];
  ReduceArgs args;
  args.input = op.x;
  args.layout.n = input.size(0);
  args.layout.reduced_dims = 1;
  args.layout.reduced_size[0] = args.layout.n, args.layout.reduced_step[0] = 1;
  const int64_t chunks = (args.layout.n + kChunk - 1) / kChunk;
  const int64_t groups = (chunks + kGroup - 1) / kGroup;
  std::vector<A> partials(std::max<int64_t>(groups, 1), A(0));
  parallel(groups, int64_t{kChunk} * kGroup, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      A s[kGroup] = {};
      for (int j = 0; j < kGroup && g * kGroup + j < chunks; ++j) {
        const int64_t base = (g * kGroup + j) * kChunk;
        s[j] = op.chunk(nullptr, static_cast<int>(std::min<int64_t>(kChunk, args.layout.n - base)),
                        base);
      }
      combine_pairs(s, op);
      partials[g] = s[0];
    }
  });
  A finals[kFinish] = {};
  for (int64_t g = 0; g < groups; ++g) finals[g % kFinish] += partials[g];
  for (int d = kFinish / 2; d > 0; d /= 2)
    for (int a = 0; a < d; ++a) finals[a] += finals[a + d];
  store_value(out, dtype, 0, finals[0]);
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
