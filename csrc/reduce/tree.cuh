// Combining accumulators across lanes, warps and blocks.
#pragma once
#include "common/ticket.cuh"
#include "reduce/enter.cuh"
#include "reduce/finish.cuh"

namespace gpuprims {

extern __shared__ __align__(16) unsigned char dynamic_memory[];

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

// Halving over groups of `lanes` lanes; the first lane of a group has the result.
template <class Op>
__device__ __forceinline__ typename Op::State halve_lanes(const Op& op, typename Op::State state,
                                                          int lanes) {
#pragma unroll 1
  for (int d = lanes / 2; d > 0; d /= 2) state = op.combine(state, shuffle_down(state, d));
  return state;
}

template <class A>
__device__ __forceinline__ A add_lanes(A x, int lanes) {
  for (int d = lanes / 2; d > 0; d /= 2) x += __shfl_down_sync(kWholeWarp, x, d);
  return x;
}

template <class A>
__device__ __forceinline__ A greatest_lane(A x, int lanes) {
  for (int d = lanes / 2; d > 0; d /= 2) x = greater_of(x, __shfl_down_sync(kWholeWarp, x, d));
  return x;
}

template <class A>
__device__ __forceinline__ void greatest_lane(A& x, uint32_t& at, int lanes) {
  for (int d = lanes / 2; d > 0; d /= 2) {
    const A other = __shfl_down_sync(kWholeWarp, x, d);
    const uint32_t p = __shfl_down_sync(kWholeWarp, at, d);
    if (beats<A, uint32_t>(other, p, x, at)) x = other, at = p;
  }
}

// The state of `lanes` lanes' bundles, into which `count` elements have entered. Where they share a
// k, sums are added as they are.
template <class Op, class Bundle>
__device__ __forceinline__ typename Op::State close_lanes(const Op& op, Bundle& bundle, int lanes,
                                                          int64_t base, int count) {
  if constexpr (requires { bundle.sums; }) {
    bundle.sums.s = add_lanes(bundle.sums.s, lanes);
    bundle.sums.q = add_lanes(bundle.sums.q, lanes);
  }
  if constexpr (requires { bundle.nans; })
    if (__any_sync(kWholeWarp, bundle.nans)) bundle.nans = add_lanes(bundle.nans, lanes);
  if constexpr (requires { bundle.at_most; }) {
    greatest_lane(bundle.least, bundle.at_least, lanes);
    greatest_lane(bundle.most, bundle.at_most, lanes);
  } else if constexpr (requires { bundle.nans; }) {
    bundle.least = greatest_lane(bundle.least, lanes);
    bundle.most = greatest_lane(bundle.most, lanes);
  }
  if constexpr (requires { bundle.sums; })
    return bundle.close(op, base, count);
  else
    return halve_lanes(op, bundle.close(op, base, count), lanes);
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

template <class Op>
__device__ __forceinline__ Op make_op(const ReduceArgs& args) {
  Op op;
  if constexpr (requires { op.product; }) op.product = args.product, op.transform = args.transform;
  return op;
}

// Whether an op does nothing but what Op{} does, which loops can be told at compile time.
template <class Op>
__device__ __forceinline__ bool is_plain(const Op& op) {
  if constexpr (requires { op.product; }) return !op.product && op.transform == Op::as_is;
  return true;
}

// Where the result with this number begins in the input, and where it is in the output.
struct Place2 {
  int64_t in, out;
};

// Of several extents. A call, so that its divisions do not lie between what every kernel does
// first.
inline __device__ __noinline__ Place2 split_place(const ReduceLayout& l, int64_t column) {
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

__device__ __forceinline__ Place2 kept_place(const ReduceLayout& l, int64_t column) {
  if (l.kept_dims == 0) return {0, 0};
  if (l.kept_dims == 1) return {column * l.kept_step[0], column * l.kept_out[0]};
  return split_place(l, column);
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

// Kernels of Stats are asked for positions as well, but of float32, where these have kernels of
// their own for the sake of the others' registers.
template <class Op, class Raw>
struct AlsoPlaced {
  using Type = Op;
};
template <class A, class Raw>
  requires(!std::is_same_v<Raw, float>)
struct AlsoPlaced<Stats<A>, Raw> {
  using Type = PlacedStats<A>;
};

}  // namespace gpuprims
