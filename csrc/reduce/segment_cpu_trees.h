// The trees of segment_plan.h on the host, one thread. Loops over accumulators are what compilers
// turn into vector instructions.
#pragma once
#include <algorithm>
#include <bit>
#include <vector>

#include "reduce/segment_plan.h"

namespace gpuprims::segmented {

// AnyOp with its op known to the compiler.
template <class A, SegmentOp kOp>
struct FixedOp {
  using State = A;
  using Value = A;
  Turn<A> turn;

  static constexpr bool kTurned = kOp == SegmentOp::max || kOp == SegmentOp::min;
  AnyOp<A> any() const { return {kOp, turn}; }
  State identity() const { return any().identity(); }
  State lift(A x) const { return kTurned ? turn.into(x) : x; }
  State combine(State a, State b) const { return any().combine(a, b); }
  A result(State a) const { return any().result(a); }
};

template <class State>
struct Accumulators {
  alignas(64) State at[32 * 8];
};

// The accumulators of a chunk become its state. `used` values have joined them; those behind hold
// the identity up to the next power of two of slots.
template <int V, class Op>
typename Op::State halve_slots(const Op& op, typename Op::State* sum, int used) {
  const int slots = static_cast<int>(std::bit_ceil(static_cast<unsigned>((used + V - 1) / V)));
  for (int s = 0; s < slots; ++s) {
    auto* const slot = sum + s * V;
    for (int half = V / 2; half > 0; half /= 2)
      for (int e = 0; e < half; ++e) slot[e] = op.combine(slot[e], slot[e + half]);
    sum[s] = slot[0];
  }
  for (int half = slots / 2; half > 0; half /= 2)
    for (int s = 0; s < half; ++s) sum[s] = op.combine(sum[s], sum[s + half]);
  return sum[0];
}

// At most 4,096 values.
template <int V, class Op, class T>
typename Op::State reduce_chunk(const Op& op, const T* x, int length) {
  using A = typename Op::Value;
  constexpr int kAll = 32 * V;
  Accumulators<typename Op::State> sums;
  auto* const sum = sums.at;
  const int used = std::min(length, kAll);
  const int padded = V * static_cast<int>(std::bit_ceil(static_cast<unsigned>((used + V - 1) / V)));
  for (int a = 0; a < padded; ++a) sum[a] = op.identity();
  int at = 0;
  for (; at + kAll <= length; at += kAll)
    for (int a = 0; a < kAll; ++a) sum[a] = op.combine(sum[a], op.lift(static_cast<A>(x[at + a])));
  for (int a = 0; at + a < length; ++a)
    sum[a] = op.combine(sum[a], op.lift(static_cast<A>(x[at + a])));
  return halve_slots<V>(op, sum, used);
}

// Two passes over a chunk, which is in the cache: one exponential a value, none of them waiting for
// another. Not the tree of the GPU, whose logsumexp differs in the last bits.
template <class A, class T>
typename LogSumExp<A>::State reduce_chunk_exp(const LogSumExp<A>& op, const T* x, int length) {
  auto state = op.identity();
  for (int i = 0; i < length; ++i) state.most = greater_or_nan(static_cast<A>(x[i]), state.most);
  if (state.most != state.most || length == 0) return {state.most, state.most - state.most};
  constexpr int kLanes = 8;
  A sum[kLanes] = {};
  for (int i = 0; i < length; ++i) {
    const A v = static_cast<A>(x[i]);
    sum[i % kLanes] += v == state.most ? A(1) : std::exp(v - state.most);
  }
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
  state.sum = sum[0];
  return state;
}

// A group's chunks pairwise; groups in order into accumulators, which are halved.
template <class Op>
typename Op::State combine_chunks(const Op& op, const typename Op::State* states, int64_t chunks) {
  using State = typename Op::State;
  std::vector<State> sum(kSegmentFinish, op.identity());
  const int64_t groups = segment_div_up(chunks, kSegmentGroup);
  State first = op.identity();
  for (int64_t g = 0; g < groups; ++g) {
    State v[kSegmentGroup];
    for (int i = 0; i < kSegmentGroup; ++i) {
      const int64_t at = g * kSegmentGroup + i;
      v[i] = at < chunks ? states[at] : op.identity();
    }
    for (int step = 1; step < kSegmentGroup; step *= 2)
      for (int i = 0; i < kSegmentGroup; i += 2 * step) v[i] = op.combine(v[i], v[i + step]);
    if (groups == 1) return v[0];
    sum[g % kSegmentFinish] = op.combine(sum[g % kSegmentFinish], v[0]);
  }
  for (int half = kSegmentFinish / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sum[i] = op.combine(sum[i], sum[i + half]);
  return groups == 0 ? first : sum[0];
}

// The tree of rows over `width` columns: rows come one after another, and 64 of them become a row
// of the next level.
template <class Op>
class RowTree {
 public:
  using State = typename Op::State;
  RowTree(const Op& op, int width) : op_(op), width_(width) {}

  void clear() {
    for (Level& level : levels_) level.rows = 0;
  }

  // Row of values of the input (T) or of states.
  template <class T, class Lift>
  void add(size_t at, const T* row, const Lift& lift) {
    if (at == levels_.size()) levels_.push_back({0, std::vector<State>(kRowLanes * width_)});
    Level& level = levels_[at];
    if (level.rows == 0) std::fill(level.lanes.begin(), level.lanes.end(), op_.identity());
    State* const lane = level.lanes.data() + level.rows % kRowLanes * width_;
    for (int c = 0; c < width_; ++c) lane[c] = op_.combine(lane[c], lift(row[c]));
    if (++level.rows == kRowPiece) close(at);
  }

  // The result's states; the tree is empty afterwards.
  const State* finish() {
    for (size_t at = 0; at + 1 < levels_.size(); ++at)
      if (levels_[at].rows > 0) close(at);
    if (levels_.empty()) return nullptr;
    halve(levels_.back());
    clear();
    return levels_.back().lanes.data();
  }

 private:
  struct Level {
    int rows;
    std::vector<State> lanes;  // [kRowLanes, width]
  };

  void halve(Level& level) {
    if (level.rows == 0) std::fill(level.lanes.begin(), level.lanes.end(), op_.identity());
    State* const lanes = level.lanes.data();
    for (int half = kRowLanes / 2; half > 0; half /= 2)
      for (int i = 0; i < half * width_; ++i)
        lanes[i] = op_.combine(lanes[i], lanes[i + half * width_]);
  }

  void close(size_t at) {
    halve(levels_[at]);
    levels_[at].rows = 0;
    const std::vector<State> row(levels_[at].lanes.begin(), levels_[at].lanes.begin() + width_);
    add(at + 1, row.data(), [](const State& state) { return state; });
  }

  Op op_;
  int width_;
  std::vector<Level> levels_;
};

}  // namespace gpuprims::segmented
