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

// exp of a difference that is at most 0, or +inf where an element is. On the device 2 ulp of ex2,
// whose denormal results, which are added to 1 and more, are not worth two multiplications each.
template <class A>
GPUPRIMS_HD A exp_of(A x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<A, float>) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 1.4426950408889634f));
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
// elements that are not valid hold pad(). What it is closed with: where the chunk or piece begins,
// and how many elements have entered, of all lanes where several share one.

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
    GPUPRIMS_HD State close(const Additive& op, int64_t, int) {
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
    GPUPRIMS_HD State close(const Extreme&, int64_t, int) { return best; }
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
    GPUPRIMS_HD State close(const ArgExtreme&, int64_t base, int) { return {best, base + where}; }
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
    GPUPRIMS_HD State close(const LogSumExp&, int64_t, int) { return {m, s}; }
  };
};

}  // namespace gpuprims
