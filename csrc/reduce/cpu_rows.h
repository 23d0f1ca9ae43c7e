// The tree above chunks on the CPU: where elements are, who reduces them, how chunks become one
// result.
#pragma once
#include <cstring>

#include "reduce/cpu_ops.h"

namespace gpuprims {
namespace {  // the CPU sources include this

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

// A thread's memory for elements that are brought together.
template <class T>
class Gathered {
 public:
  explicit Gathered(const ReduceArgs& args) : args_(args) {}

  // A chunk's elements side by side, those of column c at result + c * kChunk.
  const T* chunk(int64_t offset, int columns, int64_t base, int count) {
    const T* const from = static_cast<const T*>(args_.input) + offset;
    if (args_.layout.contiguous()) return from + base;
    T* const all = room(static_cast<size_t>(columns) * kChunk);
    const int64_t step = args_.layout.reduced_step[0];
    each_run(args_.layout, base, count, [&](int p, int64_t at, int length) {
      for (int i = 0; i < length; ++i)
        for (int c = 0; c < columns; ++c)
          all[int64_t{c} * kChunk + p + i] = from[at + i * step + c];
    });
    return all;
  }

  // Rows of `columns` elements in rows of `width`.
  const T* padded(const T* from, int64_t step, int count, int columns, int width) {
    T* const all = room(static_cast<size_t>(count) * width);
    for (int i = 0; i < count; ++i)
      for (int c = 0; c < columns; ++c) all[int64_t{i} * width + c] = from[i * step + c];
    return all;
  }

 private:
  T* room(size_t elements) {
    if (memory_.size() < elements) memory_.resize(elements);
    return memory_.data();
  }
  const ReduceArgs& args_;
  std::vector<T> memory_;
};

template <class Body>
void parallel(int64_t tasks, int64_t elements, const Body& body) {
  if (tasks <= 1 || tasks * elements < 2 * kGrain) return body(0, tasks);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(elements, 1));
  torch::stable::parallel_for(0, tasks, grain, body);
}

template <class Op, class T>
concept HasLines = requires { Op::template kLanes<T>; };

template <class State>
void combine_pairs(State* s, const auto& op) {
  for (int d = 1; d < kGroup; d *= 2)
    for (int j = 0; j < kGroup; j += 2 * d) s[j] = op.combine(s[j], s[j + d]);
}

// A chunk of any number of neighbouring columns, of one step between rows.
template <class T, class Op>
void reduce_lines(const Op& op, Gathered<T>& source, const T* x, int64_t step, int count,
                  int columns, int64_t base, typename Op::State* out) {
  constexpr int L = Op::template kLanes<T>, kFold = kTile / L;
  typename Op::State some[kTile];
  int done = 0, folded = 0;
  if constexpr (Op::kTree) {
    if (columns < L && step == columns && kRowLanes * columns >= L)
      return op.narrow(x, count, columns, out);
  } else if constexpr (Op::kFolds) {
    if (columns < L && columns <= kFold && step == columns && count >= 4 * L) {
      // L rows are one
      op.lines(x, step * L, count / L, columns * L, some);
      for (int r = 0; r < L; ++r)
        for (int c = 0; c < columns; ++c) {
          auto state = some[r * columns + c];
          if constexpr (requires { state.at; }) state.at = state.at * L + r;
          out[c] = r == 0 ? state : op.combine(out[c], state);
        }
      folded = count / L * L;
    }
  }
  if (folded == 0) {
    done = columns / L * L;
    if (done > 0) op.lines(x, step, count, done, out);
  }
  const int rest = columns - done;
  if (rest > 0 && folded < count) {
    const T* const padded = source.padded(x + folded * step + done, step, count - folded, rest, L);
    op.lines(padded, L, count - folded, L, some);
    for (int c = 0; c < rest; ++c) {
      if constexpr (requires { some[c].at; }) some[c].at += folded;
      out[done + c] = folded > 0 ? op.combine(out[c], some[c]) : some[c];
    }
  }
  if constexpr (requires { out->at; })
    for (int c = 0; c < columns; ++c) out[c].at += base;
}

// Rows of one chunk: short ones side by side.
template <class T, class Op, class Finish>
void reduce_rows(const ReduceArgs& args, const Op& op, const Finish& finish) {
  const ReduceLayout& l = args.layout;
  const T* const input = static_cast<const T*>(args.input);
  const int n = static_cast<int>(l.n);
  parallel(l.columns, n, [&](int64_t begin, int64_t end) {
    constexpr int K = kTurnedRows;
    typename Op::State states[K];
    for (int64_t first = begin; first < end; first += K) {
      const int rows = static_cast<int>(std::min<int64_t>(K, end - first));
      const T* const row = input + first * l.kept_step[0];
      bool done = false;
      if constexpr (HasLines<Op, T>)
        if (n <= Op::kMostTurned) {
          using Turned = typename Op::Turned;
          constexpr int L = kWidth<Turned>;
          alignas(32) Turned tile[Op::kMostTurned * K];
          GPUPRIMS_BEST(turn_rows<Turned>(row, l.kept_step[0], rows, n, tile));
          op.turned(tile, n, (rows + L - 1) / L * L, states);
          done = true;
        }
      if (!done)
        for (int r = 0; r < rows; ++r) states[r] = op.chunk(row + r * l.kept_step[0], n, 0);
      finish(states, rows, first * l.kept_out[0], l.kept_out[0]);
    }
  });
}

// finish(states, count, at, step): results go to places at, at + step, ...
template <class T, class Op, class Finish>
void reduce_columns(const ReduceArgs& args, const Op& op, const Finish& finish) {
  using State = typename Op::State;
  const ReduceLayout& l = args.layout;
  const int64_t chunks = std::max<int64_t>((l.n + kChunk - 1) / kChunk, 1);
  const int64_t groups = (chunks + kGroup - 1) / kGroup;
  if (l.contiguous() && chunks == 1 && l.kept_dims <= 1 && l.n > 0)
    return reduce_rows<T>(args, op, finish);
  const bool across = !l.contiguous() && l.kept_dims > 0 && l.kept_step[0] == 1;
  const int64_t inner = across ? l.kept_size[0] : 1;
  bool by_lines = false;
  if constexpr (HasLines<Op, T>)
    by_lines = across && l.reduced_dims <= 1 &&
               (Op::kTree || Op::kFolds || 2 * inner > Op::template kLanes<T>);
  const int64_t width = std::min<int64_t>(inner, by_lines ? kTile : kGathered);
  const int64_t per_outer = (inner + width - 1) / width;
  const int64_t tiles = per_outer * (l.columns / std::max<int64_t>(inner, 1));
  std::vector<State> partials(groups > 1 ? l.columns * groups : 0);
  const int64_t work = std::min<int64_t>(l.n, int64_t{kChunk} * kGroup) * width;
  parallel(tiles * groups, work, [&](int64_t begin, int64_t end) {
    Gathered<T> source(args);
    std::vector<State> states(width * kGroup, op.identity()), line(width, op.identity());
    for (int64_t task = begin; task < end; ++task) {
      const int64_t tile = task / groups, group = task - tile * groups;
      const int64_t outer = tile / per_outer, first = (tile - outer * per_outer) * width;
      const int columns = static_cast<int>(std::min<int64_t>(width, inner - first));
      const int64_t column = outer * inner + first;
      const int64_t offset = kept_offset(l, column, l.kept_step);
      for (int j = 0; j < (chunks > 1 ? kGroup : 1); ++j) {
        const int64_t base = (group * kGroup + j) * kChunk;
        const int count = static_cast<int>(std::min<int64_t>(kChunk, l.n - base));
        if (count <= 0) {
          std::fill(line.begin(), line.end(), op.identity());
        } else if (by_lines) {
          if constexpr (HasLines<Op, T>)
            reduce_lines<T>(op, source,
                            static_cast<const T*>(args.input) + offset + base * l.reduced_step[0],
                            l.reduced_step[0], count, columns, base, line.data());
        } else {
          const T* const values = source.chunk(offset, columns, base, count);
          for (int c = 0; c < columns; ++c)
            line[c] = op.chunk(values + int64_t{c} * kChunk, count, base);
        }
        if (chunks > 1)
          for (int c = 0; c < columns; ++c) states[c * kGroup + j] = line[c];
      }
      if (chunks > 1)
        for (int c = 0; c < columns; ++c) {
          combine_pairs(&states[c * kGroup], op);
          line[c] = states[c * kGroup];
        }
      if (groups > 1)
        for (int c = 0; c < columns; ++c) partials[(column + c) * groups + group] = line[c];
      else
        finish(line.data(), columns, kept_offset(l, column, l.kept_out),
               across ? l.kept_out[0] : 0);
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
      finish(finals.data(), 1, kept_offset(l, column, l.kept_out), 1);
    }
  });
}

}  // namespace
}  // namespace gpuprims
