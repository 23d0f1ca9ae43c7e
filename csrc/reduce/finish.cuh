// From a state to the results that are written.
#pragma once
#include "reduce/load.cuh"
#include "reduce/spread.h"

namespace gpuprims {

// Every dtype. A call, since inlined it is a table of jumps at every store, which a kernel's end
// would wait for: neither the table nor what it jumps to is in a cache then.
template <class A>
__device__ __noinline__ void store_rarely(void* out, Dtype dtype, int64_t at, A value) {
  switch (dtype) {
    case Dtype::f32:
      static_cast<float*>(out)[at] = static_cast<float>(value);
      break;
    case Dtype::f64:
      static_cast<double*>(out)[at] = static_cast<double>(value);
      break;
    case Dtype::f16:
      static_cast<__half*>(out)[at] = __float2half_rn(static_cast<float>(value));
      break;
    case Dtype::bf16: {
      const float wide = static_cast<float>(value);
      uint32_t bits;
      memcpy(&bits, &wide, sizeof bits);
      // To nearest, ties to even, as the conversion of PyTorch; NaN stays NaN.
      const uint32_t rounded = wide != wide ? 0x7fc0u : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
      static_cast<uint16_t*>(out)[at] = static_cast<uint16_t>(rounded);
      break;
    }
    case Dtype::boolean:
      static_cast<uint8_t*>(out)[at] = static_cast<uint8_t>(static_cast<int64_t>(value) & 1);
      break;
    default:
      switch (dtype_bytes(dtype)) {
        case 1:
          static_cast<uint8_t*>(out)[at] = static_cast<uint8_t>(static_cast<int64_t>(value));
          break;
        case 2:
          static_cast<uint16_t*>(out)[at] = static_cast<uint16_t>(static_cast<int64_t>(value));
          break;
        case 4:
          static_cast<uint32_t*>(out)[at] = static_cast<uint32_t>(static_cast<int64_t>(value));
          break;
        default:
          static_cast<int64_t*>(out)[at] = static_cast<int64_t>(value);
      }
  }
}

// As what is asked for nearly always, or else by a call.
template <class A>
__device__ __forceinline__ void store_as(void* out, Dtype dtype, int64_t at, A value) {
  if constexpr (std::is_same_v<A, float>) {
    if (dtype == Dtype::f32) {
      static_cast<float*>(out)[at] = value;
      return;
    }
  } else if constexpr (std::is_same_v<A, double>) {
    if (dtype == Dtype::f64) {
      static_cast<double*>(out)[at] = value;
      return;
    }
  } else if constexpr (sizeof(A) == 8) {
    if (dtype == Dtype::i64) {
      static_cast<int64_t*>(out)[at] = value;
      return;
    }
  } else if (dtype == Dtype::i32) {
    static_cast<int32_t*>(out)[at] = value;
    return;
  }
  store_rarely(out, dtype, at, value);
}

template <class A>
__device__ __forceinline__ A end_value(const ReduceArgs& args, A value) {
  if (args.ending == Ending::divide || args.ending == Ending::divide_root)
    value = value / static_cast<A>(args.divisor);
  if (args.ending == Ending::root || args.ending == Ending::divide_root) value = sqrt(value);
  return value;
}

// The result of a state, as it is written: where there is one, and it is floating.
template <class A>
__device__ __forceinline__ A result_of(const Additive<A>&, const ReduceArgs& args, const A& state) {
  return end_value(args, state);
}

template <class A>
__device__ __forceinline__ A result_of(const Extreme<A>&, const ReduceArgs& args, const A& state) {
  Decode back = args.decode;
  back.keep = ~uint64_t{0};
  return mirror(state, back) + A(0);  // -0.0 becomes +0.0
}

template <class A>
__device__ __forceinline__ A result_of(const Moments<A>&, const ReduceArgs& args,
                                       const Shifted<A>& state) {  // of none: NaN
  return end_value(args, state.squares());
}

template <class A>
__device__ __forceinline__ A result_of(const LogSumExp<A>&, const ReduceArgs&,
                                       const ScaledSum<A>& state) {
  return state.s > A(0) || is_nan(state.s) ? state.m + log(state.s) : lowest_of<A>();
}

template <class Op>
  requires std::is_floating_point_v<typename Op::Value>
__device__ __forceinline__ void finish(const Op& op, const ReduceArgs& args, int64_t at,
                                       const typename Op::State& state) {
  store_as(args.out[0], args.out_dtype, at, result_of(op, args, state));
}

template <class A>
  requires std::is_integral_v<A>
__device__ __forceinline__ void finish(const Additive<A>&, const ReduceArgs& args, int64_t at,
                                       const A& state) {
  if (args.ending == Ending::divide)  // the mean of integers, where a dtype was given
    store_as(args.out[0], args.out_dtype, at, static_cast<double>(state) / args.divisor);
  else
    store_as(args.out[0], args.out_dtype, at, state);
}

template <class A>
  requires std::is_integral_v<A>
__device__ __forceinline__ void finish(const Extreme<A>&, const ReduceArgs& args, int64_t at,
                                       const A& state) {
  store_as(args.out[0], args.out_dtype, at, state ^ static_cast<A>(args.decode.flip));
}

template <class A>
__device__ __forceinline__ void finish(const ArgExtreme<A>&, const ReduceArgs& args, int64_t at,
                                       const Placed<A>& state) {
  static_cast<int64_t*>(args.out[0])[at] = state.at;
}

template <class A>
__device__ __forceinline__ void finish(const Stats<A>&, const ReduceArgs& args, int64_t at,
                                       const Summary<A>& state) {
  store_as(args.out[0], args.out_dtype, at, -state.least + A(0));
  store_as(args.out[1], args.out_dtype, at, state.most + A(0));
  store_as(args.out[2], args.out_dtype, at, state.spread.mean());
  store_as(args.out[3], args.out_dtype, at, end_value(args, state.spread.squares()));
  static_cast<int64_t*>(args.out[4])[at] = state.nans;
}

template <class A>
__device__ __forceinline__ void finish(const PlacedStats<A>&, const ReduceArgs& args, int64_t at,
                                       const PlacedSummary<A>& state) {
  finish(Stats<A>{}, args, at, state);
  static_cast<int64_t*>(args.out[5])[at] = state.at_least;
  static_cast<int64_t*>(args.out[6])[at] = state.at_most;
}

// Results of neighbouring columns, which lie side by side, by 16 bytes at a time: one by one, the
// lanes of a warp would write to each sector of L2 once for each of its columns.
template <class T, int N>
__device__ __forceinline__ void store_line(void* out, int64_t at, const T (&values)[N]) {
  auto* const to = reinterpret_cast<Words*>(static_cast<T*>(out) + at);
  Words words[N * sizeof(T) / 16];
  memcpy(words, values, sizeof words);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof words / 16); ++i) to[i] = words[i];
}

template <class Op, int N>
__device__ __forceinline__ void finish_line(const Op& op, const ReduceArgs& args, int64_t at,
                                            const typename Op::State (&states)[N]) {
  float values[N];
#pragma unroll
  for (int v = 0; v < N; ++v) values[v] = result_of(op, args, states[v]);
  store_line(args.out[0], at, values);
}

template <int N>
__device__ __forceinline__ void finish_line(const ArgExtreme<float>&, const ReduceArgs& args,
                                            int64_t at, const Placed<float> (&states)[N]) {
  int64_t places[N];
#pragma unroll
  for (int v = 0; v < N; ++v) places[v] = states[v].at;
  store_line(args.out[0], at, places);
}

template <int N>
__device__ __forceinline__ void finish_line(const Stats<float>&, const ReduceArgs& args, int64_t at,
                                            const Summary<float> (&states)[N]) {
  float least[N], most[N], mean[N], var[N];
  int64_t nans[N];
#pragma unroll
  for (int v = 0; v < N; ++v) {
    least[v] = -states[v].least + 0.0f;
    most[v] = states[v].most + 0.0f;
    mean[v] = states[v].spread.mean();
    var[v] = end_value(args, states[v].spread.squares());
    nans[v] = states[v].nans;
  }
  store_line(args.out[0], at, least);
  store_line(args.out[1], at, most);
  store_line(args.out[2], at, mean);
  store_line(args.out[3], at, var);
  store_line(args.out[4], at, nans);
}

}  // namespace gpuprims
