// From what is asked for to an operation of cpu_ops.h and its results.
#pragma once
#include "reduce/cpu_rows.h"

namespace gpuprims {

// In files of their own: each takes minutes to compile.
void reduce_floats(const ReduceArgs& args, ReduceOp op, ReduceFamily family);
void reduce_integers(const ReduceArgs& args, ReduceOp op, ReduceFamily family);

namespace {

// value(state) of each goes to out[at], out[at + step], ...
template <class Out, class State, class Value>
void store_as(void* out, int64_t at, int64_t step, const State* states, int count,
              const Value& value) {
  Out* const to = static_cast<Out*>(out) + at;
  for (int i = 0; i < count; ++i)
    if constexpr (kHalf<Out>)
      to[i * step] = Out(static_cast<float>(value(states[i])));
    else if constexpr (std::is_integral_v<Out>)
      to[i * step] = static_cast<Out>(static_cast<int64_t>(value(states[i])));
    else
      to[i * step] = static_cast<Out>(value(states[i]));
}

template <class State, class Value>
void store_values(void* out, Dtype dtype, int64_t at, int64_t step, const State* states, int count,
                  const Value& value) {
  const auto store = [&]<class Out>(Out) { store_as<Out>(out, at, step, states, count, value); };
  switch (dtype) {
    case Dtype::f32:
      return store(float{});
    case Dtype::f64:
      return store(double{});
    case Dtype::f16:
      return store(Half{});
    case Dtype::bf16:
      return store(BFloat16{});
    default:
      break;
  }
  switch (dtype_bytes(dtype)) {
    case 1:
      return store(int8_t{});
    case 2:
      return store(int16_t{});
    case 4:
      return store(int32_t{});
    default:
      return store(int64_t{});
  }
}

template <class A>
A end_value(const ReduceArgs& args, A value) {
  if (args.ending == Ending::divide || args.ending == Ending::divide_root)
    value = value / static_cast<A>(args.divisor);
  if (args.ending == Ending::root || args.ending == Ending::divide_root) value = std::sqrt(value);
  return value;
}

template <class T>
constexpr bool kFloating = std::is_floating_point_v<T> || kHalf<T>;

template <class T>
void run_additive(const ReduceArgs& args) {
  const bool strided = has_strided_tree(args.layout);
  const auto run = [&]<class A>(A) {
    reduce_columns<T>(args, CpuAdditive<T, A>{args.product, args.transform, strided},
                      [&](const A* states, int count, int64_t at, int64_t step) {
                        const auto store = [&](const auto& value) {
                          store_values(args.out[0], args.out_dtype, at, step, states, count, value);
                        };
                        if (args.ending == Ending::none)
                          store([](A x) { return x; });
                        else if constexpr (std::is_floating_point_v<A>)
                          store([&](A x) { return end_value(args, x); });
                        else
                          store([&](A x) { return static_cast<double>(x) / args.divisor; });
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
  // Results of one output from states.
  const auto to = [&](int i, Dtype dtype, const auto& value) {
    return [=, &args](const auto* states, int count, int64_t at, int64_t step) {
      store_values(args.out[i], dtype, at, step, states, count, value);
    };
  };
  if (family == ReduceFamily::moments)
    return reduce_columns<T>(
        args, CpuMoments<T>{}, to(0, args.out_dtype, [&](const Spread<A>& s) {
          return end_value(args, args.layout.n == 0 ? std::numeric_limits<A>::quiet_NaN() : s.m2);
        }));
  if (family == ReduceFamily::logsumexp)
    return reduce_columns<T>(
        args, CpuLogSumExp<T>{}, to(0, args.out_dtype, [](const ScaledSum<A>& s) {
          return s.s > A(0) || s.s != s.s ? s.m + std::log(s.s) : lowest_of<A>();
        }));
  using S = PlacedSummary<A, Spread<A>>;
  const Dtype dtype = args.out_dtype, whole = Dtype::i64;
  reduce_columns<T>(
      args, CpuStats<T>{args.indices}, [&](const S* s, int count, int64_t at, int64_t step) {
        to(0, dtype, [](const S& x) { return -x.least + A(0); })(s, count, at, step);
        to(1, dtype, [](const S& x) { return x.most + A(0); })(s, count, at, step);
        to(2, dtype, [](const S& x) { return x.spread.mean; })(s, count, at, step);
        to(3, dtype, [&](const S& x) { return end_value(args, x.spread.m2); })(s, count, at, step);
        to(4, whole, [](const S& x) { return x.nans; })(s, count, at, step);
        if (!args.indices) return;
        to(5, whole, [](const S& x) { return x.at_least; })(s, count, at, step);
        to(6, whole, [](const S& x) { return x.at_most; })(s, count, at, step);
      });
}

template <class T>
void run_op(const ReduceArgs& args, ReduceOp op, ReduceFamily family) {
  if (family == ReduceFamily::additive) return run_additive<T>(args);
  const bool least = op == ReduceOp::min || op == ReduceOp::argmin;
  const auto store = [&](Dtype dtype, const auto& value) {
    return [=, &args](const auto* states, int count, int64_t at, int64_t step) {
      store_values(args.out[0], dtype, at, step, states, count, value);
    };
  };
  if (op == ReduceOp::any || op == ReduceOp::all)
    return reduce_columns<T>(args, CpuNonzero<T>{op == ReduceOp::all},
                             store(Dtype::boolean, [](uint8_t x) { return x; }));
  using V = ValueOf<T>;
  if (family == ReduceFamily::extreme)
    return reduce_columns<T>(args, CpuExtreme<T>{least, op == ReduceOp::norm_inf},
                             store(args.out_dtype, [](V x) { return static_cast<V>(x + V(0)); }));
  if (family == ReduceFamily::arg)
    return reduce_columns<T>(args, CpuArg<T>{least},
                             store(Dtype::i64, [](const auto& x) { return x.at; }));
  if constexpr (kFloating<T>) run_floating<T>(args, family);
}

template <class T>
struct Typed {
  Dtype dtype;
};

// As the type that its dtype is among.
template <class... T>
void run_typed(const ReduceArgs& args, ReduceOp op, ReduceFamily family, Typed<T>... types) {
  ((args.dtype == types.dtype ? run_op<T>(args, op, family) : void()), ...);
}

}  // namespace
}  // namespace gpuprims
