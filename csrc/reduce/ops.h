// What each reduction does to elements, on the host and on the device: what a missing element
// counts as, how elements enter an accumulator, how two accumulators become one, what comes out.
// docs/reduce.md defines the tree in which accumulators are combined.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/radix_keys.h"

#if defined(__CUDACC__)
#define GPUPRIMS_UNROLL _Pragma("unroll")
#else
#define GPUPRIMS_UNROLL
#endif

namespace gpuprims {

enum class ReduceOp : int32_t {
  sum = 0,
  mean = 1,
  prod = 2,
  max = 3,
  min = 4,
  argmax = 5,
  argmin = 6,
  any = 7,
  all = 8,
  norm1 = 9,
  norm2 = 10,
  norm_inf = 11,
  var = 12,
  std = 13,
  logsumexp = 14,
};
constexpr int kReduceOps = 15;

constexpr const char* reduce_op_name(ReduceOp op) {
  constexpr const char* names[] = {"sum",    "mean",   "prod", "max", "min",
                                   "argmax", "argmin", "any",  "all", "norm",
                                   "norm",   "norm",   "var",  "std", "logsumexp"};
  return names[static_cast<int>(op)];
}

constexpr bool is_arg(ReduceOp op) { return op == ReduceOp::argmax || op == ReduceOp::argmin; }

// The tree. Position p of the reduced extent lies in chunk p / kChunk. There, accumulator
// p % (kSlots * V), where V elements of the input's type make 16 bytes, adds its elements in
// order. The V accumulators of a slot are combined by halving, then the kSlots slots by halving;
// kGroup neighbouring chunks pairwise; groups in kFinish accumulators, in order, then by halving.
constexpr int kChunk = 4096;
constexpr int kSlots = 32;
constexpr int kGroup = 8;
constexpr int kFinish = 256;

// Strided extents: pieces of kPiece elements, element q of which enters accumulator q % kRowLanes.
// These are combined by halving, the pieces of a group of kGroup chunks pairwise; groups as above.
constexpr int kPiece = 64;
constexpr int kRowLanes = 4;
constexpr int kGroupPieces = kGroup * kChunk / kPiece;

template <class A>
GPUPRIMS_HD bool is_nan(A x) {
  if constexpr (std::is_floating_point_v<A>)
    return x != x;
  else
    return false;
}

// The greater one; NaN if either is. Which zero comes out is settled at the end.
template <class A>
GPUPRIMS_HD A greater_of(A a, A b) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<A, float>) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
  }
#endif
  return a > b || is_nan(a) ? a : b;
}

template <class A>
constexpr A lowest_of() {
  if constexpr (std::is_floating_point_v<A>)
    return -std::numeric_limits<A>::infinity();
  else
    return std::numeric_limits<A>::lowest();
}

template <class A>
GPUPRIMS_HD bool is_finite(A x) {
  return x - x == A(0);
}

// exp of a difference that is at most 0, or +inf where an element is. On the device 2 ulp of ex2.
template <class A>
GPUPRIMS_HD A exp_of(A x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<A, float>) {
    float r;
    asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x * 1.4426950408889634f));
    return r;
  }
#endif
  return std::exp(x);
}

template <class A>
GPUPRIMS_HD A quotient(A a, A b) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<A, float>) return __fdividef(a, b);
#endif
  return a / b;
}

constexpr uint32_t kAllValid = 0xffffffffu;

// A Bundle has vectors of N elements enter, one or several (M elements) at a time: what is looked
// at once costs less the more there are. `at` gives their positions in the chunk, which rise;
// elements that are not valid hold pad().

// Sums and products, in a tree where A is floating (integers give the same in any order).
template <class A>
struct Additive {
  using Value = A;
  using State = A;
  static constexpr bool kTree = std::is_floating_point_v<A>;
  enum Transform : int32_t { as_is, magnitude, square };
  bool product = false;
  int32_t transform = as_is;

  GPUPRIMS_HD State identity() const { return product ? A(1) : A(0); }
  GPUPRIMS_HD Value pad() const { return identity(); }
  GPUPRIMS_HD State combine(const State& a, const State& b) const {
    return product ? a * b : a + b;
  }

  // Of N elements a time, element e enters accumulator e % Held. Integers need but one.
  template <int N, int Held = N>
  struct Bundle {
    static constexpr int kHeld = kTree ? Held : 1;
    A a[kHeld];
    GPUPRIMS_HD void begin(const Additive& op, uint32_t) {
      GPUPRIMS_UNROLL
      for (int e = 0; e < kHeld; ++e) a[e] = op.identity();
    }
    template <int M>
    GPUPRIMS_HD void change(const Additive& op, A (&x)[M]) const {
      if (op.transform == as_is) return;
      GPUPRIMS_UNROLL
      for (int e = 0; e < M; ++e)
        x[e] = op.transform == square ? x[e] * x[e] : x[e] < A(0) ? A(0) - x[e] : x[e];
    }
    template <int M, class At>
    GPUPRIMS_HD void add(const Additive& op, A (&x)[M], const At&, uint32_t) {
      change(op, x);
      if (op.product) {
        GPUPRIMS_UNROLL
        for (int e = 0; e < M; ++e) a[e % kHeld] *= x[e];
      } else {
        GPUPRIMS_UNROLL
        for (int e = 0; e < M; ++e) a[e % kHeld] += x[e];
      }
    }
    // All into the first accumulator, in order.
    GPUPRIMS_HD void add_in_turn(const Additive& op, A (&x)[N]) {
      change(op, x);
      GPUPRIMS_UNROLL
      for (int e = 0; e < N; ++e) a[0] = op.combine(a[0], x[e]);
    }
    GPUPRIMS_HD State close(const Additive& op, int64_t) {
      GPUPRIMS_UNROLL
      for (int d = kHeld / 2; d > 0; d /= 2) GPUPRIMS_UNROLL
      for (int e = 0; e < d; ++e) a[e] = op.combine(a[e], a[e + d]);
      return a[0];
    }
  };
};

// The greatest value. The least is the greatest of what its loads have mirrored (see loads).
template <class A>
struct Extreme {
  using Value = A;
  using State = A;
  static constexpr bool kTree = false;

  GPUPRIMS_HD State identity() const { return lowest_of<A>(); }
  GPUPRIMS_HD Value pad() const { return lowest_of<A>(); }
  GPUPRIMS_HD State combine(const State& a, const State& b) const { return greater_of(a, b); }

  template <int N, int = N>
  struct Bundle {
    A best;
    GPUPRIMS_HD void begin(const Extreme& op, uint32_t) { best = op.identity(); }
    template <int M, class At>
    GPUPRIMS_HD void add(const Extreme&, A (&x)[M], const At&, uint32_t) {
      A most = x[0];
      GPUPRIMS_UNROLL
      for (int e = 1; e < M; ++e) most = greater_of(most, x[e]);
      best = greater_of(best, most);
    }
    GPUPRIMS_HD State close(const Extreme&, int64_t) { return best; }
  };
};

template <class A>
struct Placed {
  A value;
  int64_t at;
};

// Whether (x, p) comes before (v, at): greater, or NaN where v is none, or equal at a lower
// position.
template <class A, class P>
GPUPRIMS_HD bool beats(A x, P p, A v, P at) {
  if (is_nan(x)) return !is_nan(v) || p < at;
  return x > v || (x == v && p < at);
}

template <class A>
struct ArgExtreme {
  using Value = A;
  using State = Placed<A>;
  static constexpr bool kTree = false;

  GPUPRIMS_HD State identity() const {
    return {lowest_of<A>(), std::numeric_limits<int64_t>::max()};
  }
  GPUPRIMS_HD Value pad() const { return lowest_of<A>(); }
  GPUPRIMS_HD State combine(const State& a, const State& b) const {
    const bool second = beats(b.value, b.at, a.value, a.at);
    return {second ? b.value : a.value, second ? b.at : a.at};
  }

  template <int N, int = N>
  struct Bundle {
    A best;
    uint32_t where;
    // first: a position that no valid element of the bundle precedes, so that it is right where
    // all are the lowest; padded elements have positions behind all valid ones of the row.
    GPUPRIMS_HD void begin(const ArgExtreme& op, uint32_t first) {
      best = op.pad();
      where = first;
    }
    // A new greatest element is rare: only then is it looked for.
    template <int M, class At>
    GPUPRIMS_HD void add(const ArgExtreme&, A (&x)[M], const At& at, uint32_t) {
      A most = x[0];
      GPUPRIMS_UNROLL
      for (int e = 1; e < M; ++e) most = greater_of(most, x[e]);
      if (most <= best || is_nan(best)) return;
      best = most;
      GPUPRIMS_UNROLL
      for (int e = M - 1; e >= 0; --e)
        if (x[e] == most || is_nan(x[e])) where = at(e);
    }
    GPUPRIMS_HD State close(const ArgExtreme&, int64_t base) { return {best, base + where}; }
  };
};

// Count, mean and sum of squared distances from it. The mean is the sum of two numbers, the second
// below half an ulp of the first: means far from 0 are not rounded more coarsely than distances
// between them. The count is a weight, whose rounding does not matter: the divisor of the result
// is the extent itself.
template <class A>
struct Spread {
  A n, mean, low, m2;
};

// a + b, and what rounding took from it (Knuth's TwoSum).
template <class A>
GPUPRIMS_HD void add_exactly(A a, A b, A& sum, A& rest) {
  sum = a + b;
  const A other = sum - a;
  rest = (a - (sum - other)) + (b - other);
}

// Chan, Golub & LeVeque (1983), "Algorithms for computing the sample variance".
template <class A>
GPUPRIMS_HD Spread<A> join(const Spread<A>& a, const Spread<A>& b) {
  if (b.n == A(0)) return a;
  if (a.n == A(0)) return b;
  const A n = a.n + b.n, delta = (b.mean - a.mean) + (b.low - a.low);
  const A share = a.n == b.n ? A(0.5) : quotient(b.n, n);
  Spread<A> r;
  r.n = n;
  r.m2 = a.m2 + b.m2 + delta * delta * (a.n * share);
  if (is_finite(delta)) {
    add_exactly(a.mean, a.low + delta * share, r.mean, r.low);
  } else {
    r.mean = a.mean * (A(1) - share) + b.mean * share;
    r.low = A(0);
  }
  return r;
}

// Sums of x - k and of its square, k the mean of the first few elements: what cancels is bounded by
// the number of elements in ulps, divided by the square of the few where they hold an outlier.
template <class A>
struct ShiftedSums {
  int n;
  A k, s, q;
  GPUPRIMS_HD void begin() { n = 0, k = s = q = A(0); }
  template <int N, int M>
  GPUPRIMS_HD void add(const A (&x)[M], uint32_t valid) {
    if (n == 0) {
      A first = A(0), some = A(0);
      GPUPRIMS_UNROLL
      for (int e = 0; e < N; ++e) {
        first += valid >> e & 1 ? x[e] * A(1.0 / N) : A(0);
        some += valid >> e & 1 ? A(1.0 / N) : A(0);
      }
      if (valid != kAllValid && some > A(0)) first = quotient(first, some);
      k = is_finite(first) ? first : A(0);
    }
    GPUPRIMS_UNROLL
    for (int e = 0; e < M; ++e) {
      const A d = valid >> e & 1 ? x[e] - k : A(0);
      s += d;
      q += d * d;
    }
    if (valid == kAllValid) {
      n += M;
    } else {
      GPUPRIMS_UNROLL
      for (int e = 0; e < M; ++e) n += valid >> e & 1;
    }
  }
  GPUPRIMS_HD Spread<A> close() const {
    if (n == 0) return {A(0), A(0), A(0), A(0)};
    const A count = static_cast<A>(n), mean = quotient(s, count), m2 = q - s * mean;
    Spread<A> r{count, k + mean, A(0), m2 < A(0) ? A(0) : m2};  // NaN stays NaN
    if (is_finite(r.mean)) add_exactly(k, mean, r.mean, r.low);
    return r;
  }
};

template <class A>
struct Moments {
  using Value = A;
  using State = Spread<A>;
  static constexpr bool kTree = false;

  GPUPRIMS_HD State identity() const { return {A(0), A(0), A(0), A(0)}; }
  GPUPRIMS_HD Value pad() const { return A(0); }
  GPUPRIMS_HD State combine(const State& a, const State& b) const { return join(a, b); }

  template <int N, int = N>
  struct Bundle {
    ShiftedSums<A> sums;
    GPUPRIMS_HD void begin(const Moments&, uint32_t) { sums.begin(); }
    template <int M, class At>
    GPUPRIMS_HD void add(const Moments&, A (&x)[M], const At&, uint32_t valid) {
      sums.template add<N>(x, valid);
    }
    GPUPRIMS_HD State close(const Moments&, int64_t) { return sums.close(); }
  };
};

// Sum of exp(x - m), where m is the greatest element, kept finite.
template <class A>
struct ScaledSum {
  A m, s;
};

template <class A>
struct LogSumExp {
  using Value = A;
  using State = ScaledSum<A>;
  static constexpr bool kTree = false;
  static constexpr A kMost = std::numeric_limits<A>::max();

  GPUPRIMS_HD State identity() const { return {-kMost, A(0)}; }
  GPUPRIMS_HD Value pad() const { return lowest_of<A>(); }
  GPUPRIMS_HD State combine(const State& a, const State& b) const {
    const A m = a.m > b.m ? a.m : b.m;
    return {m, a.s * exp_of(a.m - m) + b.s * exp_of(b.m - m)};
  }

  template <int N, int = N>
  struct Bundle {
    A m, s;
    GPUPRIMS_HD void begin(const LogSumExp&, uint32_t) { m = -kMost, s = A(0); }
    template <int M, class At>
    GPUPRIMS_HD void add(const LogSumExp&, A (&x)[M], const At&, uint32_t) {
      A most = x[0];
      GPUPRIMS_UNROLL
      for (int e = 1; e < M; ++e) most = greater_of(most, x[e]);
      most = most < kMost ? most : kMost;  // NaN: any m will do, the sum is NaN
      if (most > m) {
        s *= exp_of(m - most);
        m = most;
      }
      GPUPRIMS_UNROLL
      for (int e = 0; e < M; ++e) s += exp_of(x[e] - m);
    }
    GPUPRIMS_HD State close(const LogSumExp&, int64_t) { return {m, s}; }
  };
};

template <class A>
struct Summary {
  Spread<A> spread;
  A least, most;  // least: mirrored, so that the greater one wins
  int64_t nans, at_least, at_most;
};

template <class A>
struct Stats {
  using Value = A;
  using State = Summary<A>;
  static constexpr bool kTree = false;
  bool indices = false;

  GPUPRIMS_HD State identity() const {
    constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();
    return {{A(0), A(0), A(0), A(0)}, lowest_of<A>(), lowest_of<A>(), 0, kNowhere, kNowhere};
  }
  GPUPRIMS_HD Value pad() const { return A(0); }
  GPUPRIMS_HD State combine(const State& a, const State& b) const {
    State r;
    r.spread = join(a.spread, b.spread);
    r.nans = a.nans + b.nans;
    r.at_least = r.at_most = 0;
    if (indices) {
      const ArgExtreme<A> arg;
      const auto least = arg.combine({a.least, a.at_least}, {b.least, b.at_least});
      const auto most = arg.combine({a.most, a.at_most}, {b.most, b.at_most});
      r.least = least.value, r.at_least = least.at;
      r.most = most.value, r.at_most = most.at;
    } else {
      r.least = greater_of(a.least, b.least);
      r.most = greater_of(a.most, b.most);
    }
    return r;
  }

  template <int N, int = N>
  struct Bundle {
    ShiftedSums<A> sums;
    A least, most;
    uint32_t nans, at_least, at_most;
    GPUPRIMS_HD void begin(const Stats&, uint32_t first) {
      sums.begin();
      least = most = lowest_of<A>();
      nans = 0;
      at_least = at_most = first;
    }
    template <int M, class At>
    GPUPRIMS_HD void add(const Stats& op, A (&x)[M], const At& at, uint32_t valid) {
      sums.template add<N>(x, valid);
      if (op.indices) {
        GPUPRIMS_UNROLL
        for (int e = 0; e < M; ++e) {
          nans += is_nan(x[e]) ? 1 : 0;  // what pads are not
          if (!(valid >> e & 1)) continue;
          const uint32_t p = at(e);
          if (beats<A, uint32_t>(x[e], p, most, at_most)) most = x[e], at_most = p;
          if (beats<A, uint32_t>(-x[e], p, least, at_least)) least = -x[e], at_least = p;
        }
        return;
      }
      A high = lowest_of<A>(), low = high;
      GPUPRIMS_UNROLL
      for (int e = 0; e < M; ++e) {
        if (!(valid >> e & 1)) continue;
        high = greater_of(high, x[e]);
        low = greater_of(low, -x[e]);
      }
      most = greater_of(most, high);
      least = greater_of(least, low);
      if (is_nan(high)) {  // rare: otherwise there is none to be counted
        GPUPRIMS_UNROLL
        for (int e = 0; e < M; ++e) nans += is_nan(x[e]) ? 1 : 0;
      }
    }
    GPUPRIMS_HD State close(const Stats&, int64_t base) {
      return {sums.close(), least, most, nans, base + at_least, base + at_most};
    }
  };
};

}  // namespace gpuprims
