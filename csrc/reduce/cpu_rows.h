// The tree above chunks on the CPU: where elements are, who reduces them, how chunks become one
// result. Chunks come from cpu_chunks.h.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "reduce/cpu_chunks.h"
#include "reduce/setup.h"

namespace gpuprims {
namespace {  // one source file includes this

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

template <class T>
constexpr bool kHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <>
inline constexpr bool kBrain<BFloat16> = true;

// What chunks are made of: elements, but float for the 16-bit formats.
template <class T>
using ValueOf = std::conditional_t<kHalf<T>, float, T>;

constexpr int64_t kGrain = 1 << 15;  // elements that are worth a thread: 5 us
constexpr int kGathered = 16;        // columns that are gathered together

int64_t kept_offset(const ReduceLayout& l, int64_t column, const int64_t* step) {
  int64_t offset = 0;
  for (int i = 0; i < l.kept_dims; ++i) {
    const int64_t rest = i + 1 < l.kept_dims ? column / l.kept_size[i] : 0;
    offset += (i + 1 < l.kept_dims ? column - rest * l.kept_size[i] : column) * step[i];
    column = rest;
  }
  return offset;
}

// Calls run(p, offset, length) for stretches of [base, base + count) with one step between
// elements.
template <class Run>
void each_run(const ReduceLayout& l, int64_t base, int count, const Run& run) {
  if (l.reduced_dims <= 1) return run(0, base * l.reduced_step[0], count);
  for (int p = 0; p < count;) {
    int64_t at = base + p, offset = 0;
    const int64_t within = at % l.reduced_size[0];
    for (int i = 0; i < l.reduced_dims; ++i) {
      const int64_t rest = i + 1 < l.reduced_dims ? at / l.reduced_size[i] : 0;
      offset += (i + 1 < l.reduced_dims ? at - rest * l.reduced_size[i] : at) * l.reduced_step[i];
      at = rest;
    }
    const int length = static_cast<int>(std::min<int64_t>(count - p, l.reduced_size[0] - within));
    run(p, offset, length);
    p += length;
  }
}

// Elements of a chunk for neighbouring columns, each column's side by side.
template <class T>
class Chunks {
 public:
  using V = ValueOf<T>;
  explicit Chunks(const ReduceArgs& args) : args_(args) {
    direct_ = args.layout.contiguous() && !kHalf<T>;
  }

  // Values of column c of the tile are at result + c * kChunk.
  const V* get(int64_t offset, int columns, int64_t base, int count) {
    const T* const from = static_cast<const T*>(args_.input) + offset;
    if constexpr (!kHalf<T>)
      if (direct_) return from + base;
    if (buffer_.empty()) buffer_.resize(static_cast<size_t>(columns) * kChunk);
    const int64_t step = args_.layout.reduced_step[0];
    each_run(args_.layout, base, count, [&](int p, int64_t at, int length) {
      V* const to = buffer_.data() + p;
      const T* const source = from + at;
      if (columns == 1) {
        if constexpr (kHalf<T>)
          if (step == 1) return GPUPRIMS_BEST(widen<T>(source, to, length));
        if (step == 1)
          for (int i = 0; i < length; ++i) to[i] = static_cast<V>(source[i]);
        else
          for (int i = 0; i < length; ++i) to[i] = static_cast<V>(source[i * step]);
        return;
      }
      for (int i = 0; i < length; ++i)
        for (int c = 0; c < columns; ++c)
          to[static_cast<int64_t>(c) * kChunk + i] = static_cast<V>(source[i * step + c]);
    });
    return buffer_.data();
  }

 private:
  const ReduceArgs& args_;
  bool direct_;
  std::vector<V> buffer_;
};

template <class Body>
void parallel(int64_t tasks, int64_t elements, const Body& body) {
  if (tasks <= 1 || tasks * elements < 2 * kGrain) return body(0, tasks);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(elements, 1));
  torch::stable::parallel_for(0, tasks, grain, body);
}

// What an operation is for the tree: chunk(values, count, base) and combine(a, b) give states.
// lines(from, count, columns, states), where it exists, takes neighbouring columns at once.
template <class Op>
concept HasLines = requires { Op::kLines; };

template <class State>
void combine_pairs(State* s, const auto& op) {
  for (int d = 1; d < kGroup; d *= 2)
    for (int j = 0; j < kGroup; j += 2 * d) s[j] = op.combine(s[j], s[j + d]);
}

template <class T, class Op, class Finish>
void reduce_columns(const ReduceArgs& args, const Op& op, const Finish& finish) {
  using State = typename Op::State;
  const ReduceLayout& l = args.layout;
  const int64_t chunks = std::max<int64_t>((l.n + kChunk - 1) / kChunk, 1);
  const int64_t groups = (chunks + kGroup - 1) / kGroup;
  if (l.contiguous() && chunks == 1 && l.kept_dims == 1 && l.n > 0) {  // rows: nothing to divide
    return parallel(l.columns, l.n, [&](int64_t begin, int64_t end) {
      Chunks<T> source(args);
      for (int64_t row = begin; row < end; ++row)
        finish(row * l.kept_out[0],
               op.chunk(source.get(row * l.kept_step[0], 1, 0, static_cast<int>(l.n)),
                        static_cast<int>(l.n), 0));
    });
  }
  const bool across = !l.contiguous() && l.kept_dims > 0 && l.kept_step[0] == 1;
  bool by_lines = false;
  if constexpr (HasLines<Op>) by_lines = across && l.reduced_dims <= 1 && op.has_lines();
  const int64_t inner = across ? l.kept_size[0] : 1;
  const int64_t width = std::min<int64_t>(inner, by_lines ? kTile : kGathered);
  const int64_t tiles = (inner + width - 1) / width * (l.columns / std::max<int64_t>(inner, 1));
  std::vector<State> partials(groups > 1 ? l.columns * groups : 0);
  const int64_t work = std::min<int64_t>(l.n, int64_t{kChunk} * kGroup) * width;
  parallel(tiles * groups, work, [&](int64_t begin, int64_t end) {
    Chunks<T> source(args);
    std::vector<State> states(width * kGroup, op.identity());
    std::vector<State> line(width, op.identity());
    for (int64_t task = begin; task < end; ++task) {
      const int64_t tile = task / groups, group = task - tile * groups;
      const int64_t per_outer = (inner + width - 1) / width, outer = tile / per_outer;
      const int64_t first = (tile - outer * per_outer) * width;
      const int columns = static_cast<int>(std::min<int64_t>(width, inner - first));
      const int64_t column = outer * inner + first;
      const int64_t offset = kept_offset(l, column, l.kept_step);
      for (int j = 0; j < kGroup; ++j) {
        const int64_t base = (group * kGroup + j) * kChunk;
        const int count = static_cast<int>(std::min<int64_t>(kChunk, l.n - base));
        if (count <= 0) {
          if (j == 0)
            for (int c = 0; c < columns; ++c) states[c * kGroup] = op.identity();
          if (chunks > 1)
            for (int c = 0; c < columns; ++c) states[c * kGroup + j] = op.identity();
          continue;
        }
        if constexpr (HasLines<Op>) {
          if (by_lines) {
            op.lines(static_cast<const T*>(args.input) + offset + base * l.reduced_step[0],
                     l.reduced_step[0], count, columns, line.data());
            for (int c = 0; c < columns; ++c) states[c * kGroup + j] = line[c];
            continue;
          }
        }
        const auto* values = source.get(offset, static_cast<int>(width), base, count);
        for (int c = 0; c < columns; ++c)
          states[c * kGroup + j] = op.chunk(values + int64_t{c} * kChunk, count, base);
      }
      for (int c = 0; c < columns; ++c) {
        State* const s = &states[c * kGroup];
        if (chunks > 1) combine_pairs(s, op);
        if (groups > 1)
          partials[(column + c) * groups + group] = s[0];
        else
          finish(kept_offset(l, column + c, l.kept_out), s[0]);
      }
    }
  });
  if (groups == 1) return;
  parallel(l.columns, groups, [&](int64_t begin, int64_t end) {
    std::vector<State> finals(kFinish, op.identity());
    for (int64_t column = begin; column < end; ++column) {
      std::fill(finals.begin(), finals.end(), op.identity());
      const State* const mine = &partials[column * groups];
      for (int64_t g = 0; g < groups; ++g)
        finals[g % kFinish] = op.combine(finals[g % kFinish], mine[g]);
      for (int d = kFinish / 2; d > 0; d /= 2)
        for (int a = 0; a < d; ++a) finals[a] = op.combine(finals[a], finals[a + d]);
      finish(kept_offset(l, column, l.kept_out), finals[0]);
    }
  });
}

}  // namespace
}  // namespace gpuprims
