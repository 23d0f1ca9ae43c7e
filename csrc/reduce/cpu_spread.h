// Variances on the CPU: states, and how two meet.
#pragma once
#include "reduce/spread.h"

namespace gpuprims {

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
inline void add_exactly(A a, A b, A& sum, A& rest) {
  sum = a + b;
  const A other = sum - a;
  rest = (a - (sum - other)) + (b - other);
}

// Chan, Golub & LeVeque (1983), "Algorithms for computing the sample variance".
template <class A>
inline Spread<A> join(const Spread<A>& a, const Spread<A>& b) {
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

}  // namespace gpuprims
