// From a state to the results that are written.
#pragma once
#include "reduce/load.cuh"
#include "reduce/spread.h"

namespace gpuprims {

template <class A>
__device__ __forceinline__ void store_as(void* out, Dtype dtype, int64_t at, A value) {
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

template <class A>
__device__ __forceinline__ A end_value(const ReduceArgs& args, A value) {
  if (args.ending == Ending::divide || args.ending == Ending::divide_root)
    value = value / static_cast<A>(args.divisor);
  if (args.ending == Ending::root || args.ending == Ending::divide_root) value = sqrt(value);
  return value;
}

template <class A>
__device__ __forceinline__ void finish(const Additive<A>&, const ReduceArgs& args, int64_t at,
                                       const A& state) {
  if constexpr (std::is_floating_point_v<A>) {
    store_as(args.out[0], args.out_dtype, at, end_value(args, state));
  } else {
    if (args.ending == Ending::divide)  // the mean of integers, where a dtype was given
      store_as(args.out[0], args.out_dtype, at, static_cast<double>(state) / args.divisor);
    else
      store_as(args.out[0], args.out_dtype, at, state);
  }
}

template <class A>
__device__ __forceinline__ void finish(const Extreme<A>&, const ReduceArgs& args, int64_t at,
                                       const A& state) {
  if constexpr (std::is_floating_point_v<A>) {
    Decode back = args.decode;
    back.keep = ~uint64_t{0};
    store_as(args.out[0], args.out_dtype, at, mirror(state, back) + A(0));  // -0.0 becomes +0.0
  } else {
    store_as(args.out[0], args.out_dtype, at, state ^ static_cast<A>(args.decode.flip));
  }
}

template <class A>
__device__ __forceinline__ void finish(const ArgExtreme<A>&, const ReduceArgs& args, int64_t at,
                                       const Placed<A>& state) {
  static_cast<int64_t*>(args.out[0])[at] = state.at;
}

template <class A>
__device__ __forceinline__ void finish(const Moments<A>&, const ReduceArgs& args, int64_t at,
                                       const Shifted<A>& state) {  // of none: NaN
  store_as(args.out[0], args.out_dtype, at, end_value(args, state.squares()));
}

template <class A>
__device__ __forceinline__ void finish(const LogSumExp<A>&, const ReduceArgs& args, int64_t at,
                                       const ScaledSum<A>& state) {
  const A value = state.s > A(0) || is_nan(state.s) ? state.m + log(state.s) : lowest_of<A>();
  store_as(args.out[0], args.out_dtype, at, value);
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

}  // namespace gpuprims
