// What each operation is for the tree on the CPU: states, and the loops that make them of elements.
#pragma once
#include <algorithm>
#include <vector>

#include "reduce/cpu_chunks.h"
#include "reduce/setup.h"

namespace gpuprims {
namespace {  // the CPU sources include this

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

template <class T>
constexpr bool kHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
template <>
inline constexpr bool kBrain<BFloat16> = true;

// What elements are as values: float for the 16-bit formats.
template <class T>
using ValueOf = std::conditional_t<kHalf<T>, float, T>;

// The same with at least 32 bits.
template <class T>
using LaneOf = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 4, int32_t, ValueOf<T>>;

// Elements as values; the 16-bit formats in `wide`.
template <class T>
const ValueOf<T>* values_of(const T* x, int count, ValueOf<T>* wide) {
  if constexpr (!kHalf<T>) return x;
  if constexpr (kHalf<T>) GPUPRIMS_BEST(widen<float>(x, wide, count));
  return wide;
}
template <class T>
constexpr int kWidened = kHalf<T> ? kChunk : 1;  // room for them

// An operation has
//   chunk(x, count, base): the state of elements that lie side by side;
//   lines(x, step, count, columns, states): the states of `columns` neighbours (a multiple of
//     kLanes<X>), X being T or Turned; argmax counts rows from 0;
//   turned(tile, n, columns, states): of rows that turn_rows has made columns of Turned;
//   kMostTurned: rows of more elements are faster one by one; measured
//   kFolds: whether states of some of a column's rows may be combined in any order.

// A: the accumulator. V elements of the input make 16 bytes.
template <class T, class A>
struct CpuAdditive {
  using State = A;
  using Turned = std::conditional_t<std::is_integral_v<A>, LaneOf<T>, A>;
  static constexpr int V = 16 / sizeof(T);
  static constexpr bool kTree = std::is_floating_point_v<A>, kFolds = !kTree;
  static constexpr int kMostTurned = kHalf<T> ? 48 : 160 / sizeof(Turned);
  template <class X>
  static constexpr int kLanes = kTree ? kWidth<A> : kWidth<int32_t>;
  bool product;
  int transform;
  bool strided;  // of two trees

  State identity() const { return product ? A(1) : A(0); }
  State combine(State a, State b) const { return product ? a * b : a + b; }

  template <class Run>
  auto with_kind(const Run& run) const {
    if (product) return run.template operator()<factor>();
    if (transform == 0) return run.template operator()<as_is>();
    if (transform == 1) return run.template operator()<magnitude>();
    return run.template operator()<squared>();
  }

  template <class X>
  State chunk(const X* x, int count, int64_t) const {
    if constexpr (!kTree)
      return product ? GPUPRIMS_BEST(multiply_integers(x, count))
                     : GPUPRIMS_BEST(add_integers(x, count));
    else
      return with_kind([&]<Change kind>() {
        if (!strided) return GPUPRIMS_BEST(add_chunk<kind, A, V>(x, count));
        ValueOf<X> wide[kWidened<X>];
        const auto* const values = values_of(x, count, wide);
        return GPUPRIMS_BEST(strided_chunk<kind, A>(values, count));
      });
  }

  template <class X>
  void lines(const X* x, int64_t step, int count, int columns, State* out) const {
    if constexpr (!kTree) {
      if (product)
        GPUPRIMS_BEST(integer_lines<true>(x, step, count, columns, out));
      else
        GPUPRIMS_BEST(integer_lines<false>(x, step, count, columns, out));
    } else {
      thread_local std::vector<A> memory(8 * kTile);
      A* const lines = memory.data();
      with_kind([&]<Change kind>() {
        GPUPRIMS_BEST(strided_lines<kind, A>(x, step, count, columns, lines, out));
      });
    }
  }

  // Dense rows of C columns, fewer than a vector's lanes but at least a quarter.
  void narrow(const T* x, int count, int C, State* out) const {
    with_kind([&]<Change kind>() { GPUPRIMS_BEST(narrow_lines<kind, A>(x, count, C, out)); });
  }

  void turned(const Turned* tile, int n, int columns, State* out) const {
    if constexpr (!kTree)
      lines(tile, kTurnedRows, n, columns, out);
    else
      with_kind(
          [&]<Change kind>() { GPUPRIMS_BEST(turned_lines<kind, V, A>(tile, n, columns, out)); });
  }
};

// Of what has the same result in any order.
template <class T, class Self, int kBytes>
struct CpuOrderless {
  using Turned = LaneOf<T>;
  static constexpr int kMostTurned =
      std::max<int>(kBytes / sizeof(Turned), sizeof(T) == 1 ? kWidth<T> - 1 : 0);
  static constexpr bool kTree = false, kFolds = true;
  template <class State>
  void turned(const Turned* tile, int n, int columns, State* out) const {
    static_cast<const Self*>(this)->lines(tile, kTurnedRows, n, columns, out);
  }
};

// The values, in their own order.
template <class T>
struct CpuExtreme : CpuOrderless<T, CpuExtreme<T>, 80> {
  using State = ValueOf<T>;
  template <class X>
  static constexpr int kLanes = kWidth<ValueOf<X>>;
  bool least, magnitude;
  CpuExtreme(bool l, bool m) : least(l), magnitude(m) {}

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
  State chunk(const T* x, int count, int64_t) const {
    if (least) return GPUPRIMS_BEST(extreme_chunk<true, State>(x, count));
    const State most = GPUPRIMS_BEST(extreme_chunk<false, State>(x, count));
    if (!magnitude) return most;
    return combine(most, State(0) - GPUPRIMS_BEST(extreme_chunk<true, State>(x, count)));
  }
  template <class X>
  void lines(const X* x, int64_t step, int count, int columns, State* out) const {
    using S = ValueOf<X>;
    S some[kTile];
    if (least || magnitude) {
      GPUPRIMS_BEST(extreme_lines<true, S>(x, step, count, columns, some));
      for (int c = 0; c < columns; ++c) out[c] = static_cast<State>(some[c]);
    }
    if (least) return;
    GPUPRIMS_BEST(extreme_lines<false, S>(x, step, count, columns, some));
    for (int c = 0; c < columns; ++c) {
      const auto most = static_cast<State>(some[c]);
      out[c] = magnitude ? combine(most, State(0) - out[c]) : most;
    }
  }
};

template <class T>
struct CpuArg : CpuOrderless<T, CpuArg<T>, 256> {
  using V = LaneOf<T>;
  using State = Placed<V>;
  template <class X>
  static constexpr int kLanes = kWidth<V>;
  bool least;
  explicit CpuArg(bool l) : least(l) {}

  State identity() const { return {V(0), -1}; }
  State combine(const State& a, const State& b) const {
    if (b.at < 0) return a;
    if (a.at < 0) return b;
    if (a.value != a.value) return a.at < b.at || b.value == b.value ? a : b;
    if (b.value != b.value) return b;
    if (a.value == b.value) return a.at < b.at ? a : b;
    return (least ? b.value < a.value : b.value > a.value) ? b : a;
  }
  State chunk(const T* from, int count, int64_t base) const {
    ValueOf<T> wide[kWidened<T>];
    const ValueOf<T>* const x = values_of(from, count, wide);
    const ValueOf<T> best = least ? GPUPRIMS_BEST(extreme_chunk<true, ValueOf<T>>(x, count))
                                  : GPUPRIMS_BEST(extreme_chunk<false, ValueOf<T>>(x, count));
    return {V(best), base + GPUPRIMS_BEST(find_chunk(x, count, best))};
  }
  template <class X>
  void lines(const X* x, int64_t step, int count, int columns, State* out) const {
    V best[kTile];
    BitsOf<V> at[kTile];
    if (least)
      GPUPRIMS_BEST(arg_lines<true, V>(x, step, count, columns, best, at));
    else
      GPUPRIMS_BEST(arg_lines<false, V>(x, step, count, columns, best, at));
    for (int c = 0; c < columns; ++c) out[c] = {best[c], at[c]};
  }
};

// Elements as bits, without the sign of floating-point numbers.
template <class T>
struct CpuNonzero : CpuOrderless<T, CpuNonzero<T>, 80> {
  using State = uint8_t;
  template <class X>
  using Bits = std::make_unsigned_t<BitsOf<X>>;
  template <class X>
  static constexpr int kLanes = kWidth<X>;
  bool all;
  explicit CpuNonzero(bool a) : all(a) {}

  template <class X>
  static constexpr Bits<X> mask() {
    return std::is_integral_v<X> ? Bits<X>(~Bits<X>(0)) : Bits<X>(Bits<X>(~Bits<X>(0)) >> 1);
  }
  State identity() const { return all; }
  State combine(State a, State b) const { return all ? a & b : a | b; }
  State chunk(const T* x, int count, int64_t) const {
    const auto* const bits = reinterpret_cast<const Bits<T>*>(x);
    return all ? GPUPRIMS_BEST(nonzero_chunk<true>(bits, count, mask<T>()))
               : GPUPRIMS_BEST(nonzero_chunk<false>(bits, count, mask<T>()));
  }
  template <class X>
  void lines(const X* x, int64_t step, int count, int columns, State* out) const {
    const auto* const bits = reinterpret_cast<const Bits<X>*>(x);
    if (all)
      GPUPRIMS_BEST(nonzero_lines<true>(bits, step, count, columns, mask<X>(), out));
    else
      GPUPRIMS_BEST(nonzero_lines<false>(bits, step, count, columns, mask<X>(), out));
  }
};

// Of floating-point values, whose states have an order all the same.
template <class T, class Self, int kBytes>
struct CpuOfFloats : CpuOrderless<T, Self, kBytes> {
  using A = ValueOf<T>;
  static constexpr bool kFolds = false;
  template <class X>
  static constexpr int kLanes = kWidth<A>;
  auto chunk(const T* x, int count, int64_t) const {
    A wide[kWidened<T>];
    return Self::of_values(values_of(x, count, wide), count);
  }
};

template <class T>
struct CpuMoments : CpuOfFloats<T, CpuMoments<T>, 128> {
  using A = ValueOf<T>;
  using State = Spread<A>;
  State identity() const { return {A(0), A(0), A(0), A(0)}; }
  State combine(const State& a, const State& b) const { return join(a, b); }
  static State of_values(const A* x, int count) { return GPUPRIMS_BEST(spread_chunk(x, count)); }
  template <class X>
  void lines(const X* x, int64_t step, int count, int columns, State* out) const {
    GPUPRIMS_BEST(spread_lines<A>(x, step, count, columns, out));
  }
};

template <class T>
struct CpuLogSumExp : CpuOfFloats<T, CpuLogSumExp<T>, 256> {
  using A = ValueOf<T>;
  using State = ScaledSum<A>;
  LogSumExp<A> op;
  State identity() const { return op.identity(); }
  State combine(const State& a, const State& b) const { return op.combine(a, b); }
  static State of_values(const A* x, int count) { return GPUPRIMS_BEST(exp_chunk(x, count)); }
  template <class X>
  void lines(const X* x, int64_t step, int count, int columns, State* out) const {
    A most[kTile], sum[kTile];
    GPUPRIMS_BEST(exp_lines<A>(x, step, count, columns, most, sum));
    for (int c = 0; c < columns; ++c) out[c] = {most[c], sum[c]};
  }
};

template <class T>
struct CpuStats {
  using A = ValueOf<T>;
  using State = PlacedSummary<A, Spread<A>>;
  bool indices;  // otherwise positions are 0
  State identity() const { return placed_identity<A, Spread<A>>(); }
  State combine(const State& a, const State& b) const { return join_placed(a, b); }
  State chunk(const T* from, int count, int64_t base) const {
    A wide[kWidened<T>];
    const A* const x = values_of(from, count, wide);
    const A least = GPUPRIMS_BEST(extreme_chunk<true, A>(x, count));
    const A most = GPUPRIMS_BEST(extreme_chunk<false, A>(x, count));
    const int64_t nans = GPUPRIMS_BEST(nan_chunk(x, count));
    const int64_t at_least = indices ? base + GPUPRIMS_BEST(find_chunk(x, count, least)) : 0;
    const int64_t at_most = indices ? base + GPUPRIMS_BEST(find_chunk(x, count, most)) : 0;
    return {{GPUPRIMS_BEST(spread_chunk(x, count)), -least, most, nans}, at_least, at_most};
  }
};

}  // namespace
}  // namespace gpuprims
