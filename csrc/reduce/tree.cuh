// Combining accumulators across lanes, warps and blocks, and writing what comes out.
#pragma once
#include "reduce/load.cuh"

namespace gpuprims {

extern __shared__ __align__(16) unsigned char dynamic_memory[];

constexpr uint32_t kWholeWarp = 0xffffffffu;

template <class State>
struct StateWords {
  static constexpr int kCount = sizeof(State) / 4;
  static_assert(sizeof(State) % 4 == 0);
};

template <class State>
__device__ __forceinline__ State shuffle_down(const State& state, int distance) {
  uint32_t words[StateWords<State>::kCount];
  memcpy(words, &state, sizeof(State));
#pragma unroll
  for (uint32_t& word : words) word = __shfl_down_sync(kWholeWarp, word, distance);
  State other;
  memcpy(&other, words, sizeof(State));
  return other;
}

template <class Op>
__device__ __forceinline__ typename Op::State shuffle_down(const Op&,
                                                           const typename Op::State& state,
                                                           int distance) {
  return shuffle_down(state, distance);
}
template <class A>
__device__ __forceinline__ Summary<A> shuffle_down(const Stats<A>& op, const Summary<A>& state,
                                                   int distance) {
  if (op.indices) return shuffle_down(state, distance);
  Summary<A> other{};
  other.spread = shuffle_down(state.spread, distance);
  other.least = __shfl_down_sync(kWholeWarp, state.least, distance);
  other.most = __shfl_down_sync(kWholeWarp, state.most, distance);
  other.nans = __shfl_down_sync(kWholeWarp, state.nans, distance);
  return other;
}

// Halving over groups of `lanes` lanes; the first lane of a group has the result.
template <class Op>
__device__ __forceinline__ typename Op::State halve_lanes(const Op& op, typename Op::State state,
                                                          int lanes) {
#pragma unroll 1
  for (int d = lanes / 2; d > 0; d /= 2) state = op.combine(state, shuffle_down(op, state, d));
  return state;
}

// Partial results go through L2, which all blocks share, in as few pieces as their size allows.
template <class State>
using PartialWord = std::conditional_t<sizeof(State) % 16 == 0, uint4,
                                       std::conditional_t<sizeof(State) % 8 == 0, uint2, uint32_t>>;

template <class State>
__device__ __forceinline__ void put_partial(void* partials, int64_t at, const State& state) {
  using Word = PartialWord<State>;
  constexpr int kCount = sizeof(State) / sizeof(Word);
  Word words[kCount];
  memcpy(words, &state, sizeof(State));
  auto* to = static_cast<Word*>(partials) + at * kCount;
#pragma unroll
  for (int i = 0; i < kCount; ++i) __stcg(to + i, words[i]);
}

template <class State>
__device__ __forceinline__ State get_partial(const void* partials, int64_t at) {
  using Word = PartialWord<State>;
  constexpr int kCount = sizeof(State) / sizeof(Word);
  Word words[kCount];
  const auto* from = static_cast<const Word*>(partials) + at * kCount;
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = __ldcg(from + i);
  State state;
  memcpy(&state, words, sizeof(State));
  return state;
}

// Whether the calling block is the last of `blocks` to come here with its partial results written,
// after a barrier where other threads than the first wrote them: its fences then stand for all.
// The ticket is 0 again afterwards.
__device__ __forceinline__ bool is_last_block(uint32_t* ticket, uint32_t blocks) {
  __shared__ uint32_t before;
  if (threadIdx.x == 0) {
    __threadfence();
    before = atomicInc(ticket, blocks - 1);
    __threadfence();
  }
  __syncthreads();
  return before == blocks - 1;
}

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
                                       const Spread<A>& state) {
  const A none = args.layout.n == 0 ? std::numeric_limits<A>::quiet_NaN() : A(0);
  store_as(args.out[0], args.out_dtype, at, end_value(args, state.m2 + none));
}

template <class A>
__device__ __forceinline__ void finish(const LogSumExp<A>&, const ReduceArgs& args, int64_t at,
                                       const ScaledSum<A>& state) {
  const A value = state.s > A(0) || is_nan(state.s) ? state.m + log(state.s) : lowest_of<A>();
  store_as(args.out[0], args.out_dtype, at, value);
}

template <class A>
__device__ __forceinline__ void finish(const Stats<A>& op, const ReduceArgs& args, int64_t at,
                                       const Summary<A>& state) {
  store_as(args.out[0], args.out_dtype, at, -state.least + A(0));
  store_as(args.out[1], args.out_dtype, at, state.most + A(0));
  store_as(args.out[2], args.out_dtype, at, state.spread.mean);
  store_as(args.out[3], args.out_dtype, at, end_value(args, state.spread.m2));
  static_cast<int64_t*>(args.out[4])[at] = state.nans;
  if (op.indices) {
    static_cast<int64_t*>(args.out[5])[at] = state.at_least;
    static_cast<int64_t*>(args.out[6])[at] = state.at_most;
  }
}

template <class Op>
__device__ __forceinline__ Op make_op(const ReduceArgs& args) {
  Op op;
  if constexpr (requires { op.product; }) op.product = args.product, op.transform = args.transform;
  if constexpr (requires { op.indices; }) op.indices = args.indices;
  return op;
}

// Whether an op does nothing but what Op{} does, which loops can be told at compile time.
template <class Op>
__device__ __forceinline__ bool is_plain(const Op& op) {
  if constexpr (requires { op.product; }) return !op.product && op.transform == Op::as_is;
  if constexpr (requires { op.indices; }) return !op.indices;
  return true;
}

// Where the result with this number begins in the input, and where it is in the output.
struct Place2 {
  int64_t in, out;
};

__device__ __forceinline__ Place2 kept_place(const ReduceLayout& l, int64_t column) {
  if (l.kept_dims == 0) return {0, 0};
  if (l.kept_dims == 1) return {column * l.kept_step[0], column * l.kept_out[0]};
  Place2 place{0, 0};
  for (int i = 0; i < l.kept_dims; ++i) {
    int64_t at = column;
    if (i + 1 < l.kept_dims) {
      const int64_t size = l.kept_size[i];
      int64_t rest;
      if ((column | size) >> 32 == 0)
        rest = static_cast<uint32_t>(column) / static_cast<uint32_t>(size);
      else
        rest = column / size;
      at = column - rest * size;
      column = rest;
    }
    place.in += at * l.kept_step[i];
    place.out += at * l.kept_out[i];
  }
  return place;
}

// Offset of a reduced position. A call, since unrolled loops would have eight copies of it.
inline __device__ __noinline__ int64_t split_offset(const ReduceLayout& l, int64_t p) {
  int64_t offset = 0;
  for (int i = 0; i + 1 < l.reduced_dims; ++i) {
    const int64_t size = l.reduced_size[i];
    int64_t rest;
    if ((p | size) >> 32 == 0)
      rest = static_cast<uint32_t>(p) / static_cast<uint32_t>(size);
    else
      rest = p / size;
    offset += (p - rest * size) * l.reduced_step[i];
    p = rest;
  }
  return offset + p * l.reduced_step[l.reduced_dims - 1];
}

// Group g of a row: its partials, `step` apart, pairwise. Each stands for kGroup / per_group
// chunks.
template <class Op>
__device__ __forceinline__ typename Op::State load_group(const Op& op, const void* partials,
                                                         int64_t first, int64_t step, int64_t g,
                                                         int per_group, int64_t parts) {
  using State = typename Op::State;
  State s[kGroup];
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    const int64_t part = g * per_group + j;
    s[j] = op.identity();
    if (j < per_group && part < parts) s[j] = get_partial<State>(partials, first + part * step);
  }
#pragma unroll
  for (int d = 1; d < kGroup; d *= 2)
#pragma unroll
    for (int j = 0; j < kGroup; j += 2 * d) s[j] = op.combine(s[j], s[j + d]);
  return s[0];
}

}  // namespace gpuprims
