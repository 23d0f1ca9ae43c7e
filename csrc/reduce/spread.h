// Variances, and the statistics that `stats` gives with them, on the device.
#pragma once
#include "reduce/ops.h"

namespace gpuprims {

// Of n elements the sums of x - k and of its square. k is finite and near their mean, so that
// little cancels, and a mean far from 0 is not rounded more coarsely than the distances from it.
// The count is a weight, whose rounding does not matter: the divisor of a result is the extent
// itself.
template <class A>
struct Shifted {
  A n, k, s, q;

  GPUPRIMS_HD A mean() const { return k + quotient(s, n); }
  GPUPRIMS_HD A squares() const {  // of distances from the mean
    const A m2 = q - s * quotient(s, n);
    return m2 < A(0) ? A(0) : m2;  // NaN stays NaN
  }
};

// b's sums are moved to a's k, and both to the mean. As a has at least half of the elements, what
// is added to q for b's distance is at most twice what stays of it.
template <class A>
GPUPRIMS_HD Shifted<A> join(const Shifted<A>& a, const Shifted<A>& b) {
  if (b.n == A(0)) return a;
  if (a.n == A(0)) return b;
  const A d = b.k - a.k, moved = b.n * d;
  Shifted<A> r{a.n + b.n, a.k, a.s + (b.s + moved), a.q + (b.q + d * (b.s + b.s + moved))};
  const A mean = r.mean();
  if (is_finite(mean)) {
    const A by = mean - r.k, rest = r.s - r.n * by;
    r = {r.n, mean, rest, r.q - by * (r.s + rest)};
  }
  return r;
}

// The sums of a lane. Its k is given, or the mean of the first N elements that enter.
template <class A>
struct ShiftedSums {
  A k, s, q;
  bool has_k;
  GPUPRIMS_HD void begin() { k = s = q = A(0), has_k = false; }
  GPUPRIMS_HD void set_k(A mean) {
    k = is_finite(mean) ? mean : A(0);
    has_k = true;
  }
  template <int N, int M>
  GPUPRIMS_HD void add(const A (&x)[M], uint32_t valid) {
    if (!has_k) {
      A first = A(0), some = A(0);
      GPUPRIMS_UNROLL
      for (int e = 0; e < N; ++e) {
        first += valid >> e & 1 ? x[e] * A(1.0 / N) : A(0);
        some += valid >> e & 1 ? A(1.0 / N) : A(0);
      }
      set_k(valid != kAllValid && some > A(0) ? quotient(first, some) : first);
    }
    GPUPRIMS_UNROLL
    for (int e = 0; e < M; ++e) {
      const A d = valid >> e & 1 ? x[e] - k : A(0);
      s += d;
      q += d * d;
    }
  }
  GPUPRIMS_HD Shifted<A> close(int count) const { return {static_cast<A>(count), k, s, q}; }
};

template <class A>
struct Moments {
  using Value = A;
  using State = Shifted<A>;
  static constexpr bool kTree = false;

  GPUPRIMS_HD State identity() const { return {}; }
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
    GPUPRIMS_HD State close(const Moments&, int64_t, int count) { return sums.close(count); }
  };
};

template <class A, class S = Shifted<A>>
struct Summary {
  S spread;
  A least, most;  // least: mirrored, so that the greater one wins
  int64_t nans;
};

template <class A>
struct Stats {
  using Value = A;
  using State = Summary<A>;
  static constexpr bool kTree = false;

  GPUPRIMS_HD State identity() const { return {{}, lowest_of<A>(), lowest_of<A>(), 0}; }
  GPUPRIMS_HD Value pad() const { return A(0); }
  GPUPRIMS_HD State combine(const State& a, const State& b) const {
    return {join(a.spread, b.spread), greater_of(a.least, b.least), greater_of(a.most, b.most),
            a.nans + b.nans};
  }

  template <int N, int = N>
  struct Bundle {
    ShiftedSums<A> sums;
    A least, most;
    uint32_t nans;
    GPUPRIMS_HD void begin(const Stats&, uint32_t) {
      sums.begin();
      least = most = lowest_of<A>();
      nans = 0;
    }
    template <int M, class At>
    GPUPRIMS_HD void add(const Stats&, A (&x)[M], const At&, uint32_t valid) {
      sums.template add<N>(x, valid);
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
        for (int e = 0; e < M; ++e) nans += is_nan(x[e]) ? 1 : 0;  // what pads are not
      }
    }
    // The sums of a piece, whose order matters; the rest goes on.
    GPUPRIMS_HD Shifted<A> take(int count) {
      const Shifted<A> taken = sums.close(count);
      sums.begin();
      return taken;
    }
    GPUPRIMS_HD State with(const Shifted<A>& taken) const { return {taken, least, most, nans}; }
    GPUPRIMS_HD State close(const Stats&, int64_t, int count) { return with(sums.close(count)); }
  };
};

// With the positions of the least and the greatest element.
template <class A, class S = Shifted<A>>
struct PlacedSummary : Summary<A, S> {
  int64_t at_least, at_most;
};

template <class A, class S>
GPUPRIMS_HD PlacedSummary<A, S> placed_identity() {
  constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();
  return {{S{}, lowest_of<A>(), lowest_of<A>(), 0}, kNowhere, kNowhere};
}

template <class A, class S>
GPUPRIMS_HD PlacedSummary<A, S> join_placed(const PlacedSummary<A, S>& a,
                                            const PlacedSummary<A, S>& b) {
  const ArgExtreme<A> arg;
  const auto least = arg.combine({a.least, a.at_least}, {b.least, b.at_least});
  const auto most = arg.combine({a.most, a.at_most}, {b.most, b.at_most});
  return {{join(a.spread, b.spread), least.value, most.value, a.nans + b.nans}, least.at, most.at};
}

template <class A>
struct PlacedStats {
  using Value = A;
  using State = PlacedSummary<A>;
  static constexpr bool kTree = false;

  GPUPRIMS_HD State identity() const { return placed_identity<A, Shifted<A>>(); }
  GPUPRIMS_HD Value pad() const { return A(0); }
  GPUPRIMS_HD State combine(const State& a, const State& b) const { return join_placed(a, b); }

  template <int N, int = N>
  struct Bundle {
    ShiftedSums<A> sums;
    A least, most;
    uint32_t nans, at_least, at_most;
    GPUPRIMS_HD void begin(const PlacedStats&, uint32_t first) {
      sums.begin();
      least = most = lowest_of<A>();
      nans = 0;
      at_least = at_most = first;
    }
    template <int M, class At>
    GPUPRIMS_HD void add(const PlacedStats&, A (&x)[M], const At& at, uint32_t valid) {
      sums.template add<N>(x, valid);
      GPUPRIMS_UNROLL
      for (int e = 0; e < M; ++e) {
        nans += is_nan(x[e]) ? 1 : 0;  // what pads are not
        if (!(valid >> e & 1)) continue;
        const uint32_t p = at(e);
        if (beats<A, uint32_t>(x[e], p, most, at_most)) most = x[e], at_most = p;
        if (beats<A, uint32_t>(-x[e], p, least, at_least)) least = -x[e], at_least = p;
      }
    }
    GPUPRIMS_HD State close(const PlacedStats&, int64_t base, int count) {
      return {{sums.close(count), least, most, nans}, base + at_least, base + at_most};
    }
  };
};

}  // namespace gpuprims
