// The reductions of segment_reduce on host and device: what a value becomes, how two meet, what
// the result is.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/radix_keys.h"

namespace gpuprims {

enum class SegmentOp : int32_t { sum, mean, max, min, prod, logsumexp };
constexpr int kSegmentOps = 6;

constexpr const char* segment_op_name(SegmentOp op) {
  constexpr const char* names[] = {"sum", "mean", "max", "min", "prod", "logsumexp"};
  return names[static_cast<int>(op)];
}

// What values of a dtype are added up in: float32 for 16 bits, 64 bits for integers.
enum class SegmentAccumulator : int32_t { f32, f64, i64 };

constexpr SegmentAccumulator segment_accumulator(Dtype t) {
  if (!is_floating(t)) return SegmentAccumulator::i64;
  return t == Dtype::f64 ? SegmentAccumulator::f64 : SegmentAccumulator::f32;
}

// Sums and products of integers are int64, as PyTorch's; of uint64 they stay that.
constexpr Dtype segment_result(Dtype t, SegmentOp op) {
  const bool counts = op == SegmentOp::sum || op == SegmentOp::prod;
  return counts && !is_floating(t) && t != Dtype::u64 ? Dtype::i64 : t;
}

namespace segmented {

// min is max of values turned round: -x, or ~x of integers; uint64 is moved into int64's order.
// Both are undone at the end.
template <class A>
struct Turn {
  bool negate = false;
  bool unsigned_order = false;  // of a maximum or minimum of uint64

  GPUPRIMS_HD A into(A x) const {
    if constexpr (std::is_floating_point_v<A>) {
      return negate ? -x : x;
    } else {
      if (unsigned_order) x = static_cast<A>(static_cast<uint64_t>(x) ^ (1ull << 63));
      return negate ? ~x : x;
    }
  }
  GPUPRIMS_HD A back(A x) const {
    if constexpr (std::is_floating_point_v<A>) {
      return negate ? -x : x;
    } else {
      if (negate) x = ~x;
      return unsigned_order ? static_cast<A>(static_cast<uint64_t>(x) ^ (1ull << 63)) : x;
    }
  }
};

template <class A>
GPUPRIMS_HD A wrapping_add(A a, A b) {
  if constexpr (std::is_floating_point_v<A>)
    return a + b;
  else
    return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

template <class A>
GPUPRIMS_HD A wrapping_multiply(A a, A b) {
  if constexpr (std::is_floating_point_v<A>)
    return a * b;
  else
    return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// NaN wins; of equal values the second.
template <class A>
GPUPRIMS_HD A greater_or_nan(A a, A b) {
  return a > b || a != a ? a : b;
}

template <class A>
struct Sum {
  using State = A;
  using Value = A;
  GPUPRIMS_HD State identity() const { return A(0); }
  GPUPRIMS_HD State lift(A x) const { return x; }
  GPUPRIMS_HD State combine(State a, State b) const { return wrapping_add(a, b); }
  GPUPRIMS_HD A result(State a) const { return a + A(0); }
};

// Sum, product or maximum, chosen at run time: a few more instructions a value, a third of the
// kernels.
template <class A>
struct AnyOp {
  using State = A;
  using Value = A;
  SegmentOp op;
  Turn<A> turn;

  GPUPRIMS_HD bool extreme() const { return op == SegmentOp::max || op == SegmentOp::min; }
  GPUPRIMS_HD State identity() const {
    if (op == SegmentOp::prod) return A(1);
    if (!extreme()) return A(0);
    if constexpr (std::is_floating_point_v<A>)
      return -static_cast<A>(INFINITY);
    else
      return A(1) << 63;
  }
  GPUPRIMS_HD State lift(A x) const { return turn.into(x); }
  GPUPRIMS_HD State combine(State a, State b) const {
    if (op == SegmentOp::prod) return wrapping_multiply(a, b);
    return extreme() ? greater_or_nan(a, b) : wrapping_add(a, b);
  }
  // -0.0 becomes +0.0: which of the zeros came first would decide otherwise.
  GPUPRIMS_HD A result(State a) const { return turn.back(a) + (product() ? -A(0) : A(0)); }
  GPUPRIMS_HD bool product() const { return op == SegmentOp::prod; }
};

// log(sum(exp(x))) in one read: the maximum, and the sum of exp(x - maximum).
template <class A>
struct LogSumExp {
  struct alignas(2 * sizeof(A)) State {
    A most;
    A sum;
  };
  using Value = A;
  GPUPRIMS_HD State identity() const { return {-static_cast<A>(INFINITY), A(0)}; }
  GPUPRIMS_HD State lift(A x) const { return {x, A(1)}; }
  GPUPRIMS_HD State combine(State a, State b) const {
    const A apart = a.most - b.most;
    // Equal infinities have no distance. A NaN makes the sum NaN.
    const A scale = a.most == b.most ? A(1) : std::exp(-std::abs(apart));
    const bool first = a.most >= b.most;
    return {first ? a.most : b.most, first ? a.sum + b.sum * scale : a.sum * scale + b.sum};
  }
  GPUPRIMS_HD A result(State a) const { return a.most + std::log(a.sum); }
};

// The kernel-side op of a call.
template <class Op>
Op make_segment_op(SegmentOp op, Dtype dtype) {
  Op made{};
  if constexpr (std::is_same_v<Op, AnyOp<typename Op::Value>>) {
    made.op = op == SegmentOp::mean ? SegmentOp::sum : op;
    made.turn.negate = op == SegmentOp::min;
    made.turn.unsigned_order = dtype == Dtype::u64 && made.extreme();
  }
  return made;
}

}  // namespace segmented

// Bits of the result of an empty segment: 0, NaN, the least or greatest value, 1, -inf.
inline uint64_t segment_empty_bits(SegmentOp op, Dtype t) {
  const bool low = op == SegmentOp::max || op == SegmentOp::logsumexp;
  if (is_floating(t)) {
    uint64_t bits = 0;  // +0
    const uint64_t infinity = t == Dtype::f16    ? 0x7c00
                              : t == Dtype::bf16 ? 0x7f80
                              : t == Dtype::f32  ? 0x7f800000
                                                 : 0x7ff0000000000000;
    const uint64_t one = t == Dtype::f16    ? 0x3c00
                         : t == Dtype::bf16 ? 0x3f80
                         : t == Dtype::f32  ? 0x3f800000
                                            : 0x3ff0000000000000;
    const uint64_t quiet = t == Dtype::f16    ? 0x7e00
                           : t == Dtype::bf16 ? 0x7fc0
                           : t == Dtype::f32  ? 0x7fc00000
                                              : 0x7ff8000000000000;
    if (op == SegmentOp::prod) bits = one;
    if (op == SegmentOp::mean) bits = quiet;
    if (op == SegmentOp::min) bits = infinity;
    if (low) bits = infinity | 1ull << (8 * dtype_bytes(t) - 1);
    return bits;
  }
  if (op == SegmentOp::prod) return 1;
  const int width = t == Dtype::boolean ? 1 : 8 * dtype_bytes(t);
  const uint64_t ones = width == 64 ? ~0ull : (1ull << width) - 1;
  if (op == SegmentOp::max) return is_signed_integer(t) ? 1ull << (width - 1) : 0;
  if (op == SegmentOp::min) return is_signed_integer(t) ? ones >> 1 : ones;
  return 0;
}

// Bits of every result where the offsets are bad: NaN, of integers 0.
inline uint64_t segment_bad_bits(Dtype t) {
  return is_floating(t) ? segment_empty_bits(SegmentOp::mean, t) : 0;
}

}  // namespace gpuprims
