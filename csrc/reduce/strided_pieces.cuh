// What a thread of the strided kernels does: it loads rows, and adds up pieces.
#pragma once
#include "reduce/tree.cuh"

namespace gpuprims {

enum class RowLoads : int32_t {
  elements,  // one by one
  columns,   // all columns of a thread at once, from rows with one step between them
  rows,      // kBatch rows at once, which are neighbours in memory
};

// What a kernel needs of the plan. Numbers of threads are powers of two.
struct StridedShape {
  int64_t step;  // of rows, where one step parts them
  uint32_t tiles, parts;
  int columns, rows;  // threads of a block across columns, and with pieces (times lanes)
  int column_bits, row_bits, lane_bits;
  int pieces;  // of a thread, one after another
  RowLoads loads;
  bool rows_inner;
  bool lines;  // results of a thread's columns are written at once
};

// Positions of the rows of a batch.
struct Rows {
  uint32_t first;
  int bits;
  __device__ __forceinline__ uint32_t operator()(int e) const { return first + (e << bits); }
};

// The Wide columns of a thread, which are neighbours, or the one.
template <class Raw, int Wide>
struct alignas(sizeof(Raw) * Wide < 16 ? sizeof(Raw) * Wide : 16) WideLine {
  Raw raw[Wide];
};

constexpr int kBatch = 8;  // rows that a thread loads at once

// As many rows that are neighbours in memory.
template <class Raw>
struct alignas(sizeof(Raw) * kBatch < 16 ? sizeof(Raw) * kBatch : 16) RowBatch {
  Raw raw[kBatch];
};

template <class Line>
__device__ __forceinline__ Line load_line(const void* at) {
  if constexpr (sizeof(Line) == 16) {
    const Words words = load_words(at);
    Line line;
    memcpy(&line, &words, sizeof line);
    return line;
  } else {
    return *static_cast<const Line*>(at);
  }
}

// kBatch rows from position p on, 1 << bits from each other; `some` of them, then the first again,
// so that all loads are made before any is waited for.
template <class Raw, int Wide>
__device__ __forceinline__ void load_rows(const ReduceLayout& layout, const StridedShape& shape,
                                          const Raw* from, int64_t p, int bits, int some,
                                          WideLine<Raw, Wide> (&lines)[kBatch]) {
  if (shape.loads == RowLoads::columns) {
    const Raw* const first = from + p * shape.step;
    const int64_t step = shape.step << bits;
#pragma unroll
    for (int e = 0; e < kBatch; ++e)
      lines[e] = load_line<WideLine<Raw, Wide>>(first + (e < some ? e * step : 0));
    return;
  }
  if constexpr (Wide == 1) {
    int64_t row = p * shape.step, within = 0, size = std::numeric_limits<int64_t>::max();
    if (layout.reduced_dims > 1) {
      size = layout.reduced_size[0];
      const int64_t outer =
          (p | size) >> 32 == 0 ? static_cast<uint32_t>(p) / static_cast<uint32_t>(size) : p / size;
      within = p - outer * size;
      row = split_offset(layout, p);
    }
    if (shape.loads == RowLoads::rows && bits == 0 && some >= kBatch) {
      const auto batch = *reinterpret_cast<const RowBatch<Raw>*>(from + row);
#pragma unroll
      for (int e = 0; e < kBatch; ++e) lines[e].raw[0] = batch.raw[e];
      return;
    }
#pragma unroll
    for (int e = 0; e < kBatch; ++e) {
      const int ahead = e < some ? e << bits : 0;
      lines[e].raw[0] =
          from[within + ahead < size ? row + ahead * shape.step : split_offset(layout, p + ahead)];
    }
  }
}

template <class Op>
using PieceBundle = typename Op::template Bundle<kBatch, kRowLanes>;

// A piece, or the share of it of one of kRowLanes threads: accumulator `lane` and no other.
template <class Op, class Raw, int Wide>
__device__ __forceinline__ void add_piece(const Op& op, const ReduceArgs& args,
                                          const StridedShape& shape, const Raw* from, int64_t base,
                                          int lane, int count, PieceBundle<Op> (&bundles)[Wide]) {
  const int bits = shape.lane_bits;
#pragma unroll 1
  for (int p = lane; p < count; p += kBatch << bits) {
    WideLine<Raw, Wide> lines[kBatch];
    const int some = (count - p + (1 << bits) - 1) >> bits;
    load_rows(args.layout, shape, from, base + p, bits, some, lines);
    const Rows at{static_cast<uint32_t>(p), bits};
    const uint32_t valid = some >= kBatch ? kAllValid : (1u << some) - 1;
#pragma unroll
    for (int v = 0; v < Wide; ++v) {
      typename Op::Value x[kBatch];
#pragma unroll
      for (int e = 0; e < kBatch; ++e)
        x[e] = valid >> e & 1 ? element<Op>(lines[e].raw[v], args.decode) : op.pad();
      if constexpr (Op::kTree) {
        if (bits > 0) {
          bundles[v].add_in_turn(op, x);
          continue;
        }
      }
      bundles[v].add(op, x, at, valid);
    }
  }
}

// One or two elements a row of many: what is not asked for need not be left out again.
template <class Op, class Raw>
__device__ __forceinline__ void add_two(const Op& op, const ReduceArgs& args,
                                        const StridedShape& shape, const Raw* from, int count,
                                        PieceBundle<Op>& bundle) {
  const Raw first = from[0], second = from[count > 1 ? shape.step : 0];
  typename Op::Value x[2] = {element<Op>(first, args.decode), op.pad()};
  if (count > 1) x[1] = element<Op>(second, args.decode);
  bundle.add(op, x, Rows{0, 0}, count > 1 ? kAllValid : 1u);
}

// All of a piece whose rows are neighbours in memory, 8 at least: as many batches are on their way
// as 128 bytes hold.
template <class Op, class Raw>
__device__ __forceinline__ void add_row_piece(const Op& op, const ReduceArgs& args,
                                              const StridedShape& shape, const Raw* from,
                                              int64_t base, PieceBundle<Op>& bundle) {
  constexpr int kAtOnce = std::min<int>(16 / sizeof(Raw), kPiece / kBatch);
#pragma unroll 1
  for (int p = 0; p < kPiece; p += kAtOnce * kBatch) {
    RowBatch<Raw> batches[kAtOnce];
#pragma unroll
    for (int b = 0; b < kAtOnce; ++b) {
      const int64_t at = base + p + b * kBatch;
      const int64_t row =
          args.layout.reduced_dims > 1 ? split_offset(args.layout, at) : at * shape.step;
      batches[b] = *reinterpret_cast<const RowBatch<Raw>*>(from + row);
    }
#pragma unroll
    for (int b = 0; b < kAtOnce; ++b) {
      typename Op::Value x[kBatch];
#pragma unroll
      for (int e = 0; e < kBatch; ++e) x[e] = element<Op>(batches[b].raw[e], args.decode);
      bundle.add(op, x, Rows{static_cast<uint32_t>(p + b * kBatch), 0}, kAllValid);
    }
  }
}

// All of a piece, by one thread: nothing is left to be decided between its loads. What the general
// loop decides there is what it waits for, not memory.
template <class Op, class Raw, int Wide>
__device__ __forceinline__ void add_whole_piece(const Op& op, const ReduceArgs& args,
                                                const Raw* row, int64_t step,
                                                PieceBundle<Op> (&bundles)[Wide]) {
#pragma unroll 1
  for (int p = 0; p < kPiece; p += kBatch, row += kBatch * step) {
    WideLine<Raw, Wide> lines[kBatch];
#pragma unroll
    for (int e = 0; e < kBatch; ++e) lines[e] = load_line<WideLine<Raw, Wide>>(row + e * step);
#pragma unroll
    for (int v = 0; v < Wide; ++v) {
      typename Op::Value x[kBatch];
#pragma unroll
      for (int e = 0; e < kBatch; ++e) x[e] = element<Op>(lines[e].raw[v], args.decode);
      bundles[v].add(op, x, Rows{static_cast<uint32_t>(p), 0}, kAllValid);
    }
  }
}

// Positions in columns of float32: see strided_stream.cuh.
template <class Op, class Raw, int Wide>
constexpr bool kStreams =
    std::is_same_v<Op, ArgExtreme<float>> && std::is_same_v<Raw, float> && Wide == 4;

// Calls piece(i) for each of a thread's pieces, which leaves its results in `ordered`, and combines
// these pairwise.
template <int Wide, class Ordered, class Piece, class Combine>
__device__ __forceinline__ void pair_pieces(int pieces, Ordered (&ordered)[Wide],
                                            const Piece& piece, const Combine& combine) {
  Ordered held[3][Wide];  // in local memory: once every 64 rows
#pragma unroll 1
  for (int i = 0;;) {
    piece(i);
    int level = 0;
#pragma unroll 1
    for (; i >> level & 1; ++level) {
#pragma unroll
      for (int v = 0; v < Wide; ++v) ordered[v] = combine(held[level][v], ordered[v]);
    }
    if (++i == pieces) return;
#pragma unroll
    for (int v = 0; v < Wide; ++v) held[level][v] = ordered[v];
  }
}

// Calls piece(base, count, add) for each of a thread's pieces, where add(bundles) has its
// elements enter, and combines pairwise what that leaves in `ordered`.
template <class Op, class Raw, int Wide, class Ordered, class Piece, class Combine>
__device__ __forceinline__ void walk_pieces(const Op& op, const ReduceArgs& args,
                                            const StridedShape& shape, const Raw* from,
                                            int64_t base, int lane, Ordered (&ordered)[Wide],
                                            const Piece& piece, const Combine& combine) {
  const bool one_step = shape.loads == RowLoads::columns ||
                        (shape.loads == RowLoads::elements && args.layout.reduced_dims <= 1);
  const bool plain = !kStreams<Op, Raw, Wide> && one_step && shape.lane_bits == 0 && is_plain(op);
  const bool row_pieces = Wide == 1 && shape.loads == RowLoads::rows && shape.lane_bits == 0;
  const bool tiny =
      args.layout.n <= 2 && one_step && shape.lane_bits == 0 && shape.loads == RowLoads::elements;
  pair_pieces(
      shape.pieces, ordered,
      [&](int) {
        const int64_t left = args.layout.n - base;
        const int count = left < kPiece ? left < 0 ? 0 : static_cast<int>(left) : kPiece;
        piece(base, count, [&](PieceBundle<Op>(&bundles)[Wide]) {
          if constexpr (Wide == 1) {
            if (row_pieces && count == kPiece)
              return add_row_piece(op, args, shape, from, base, bundles[0]);
            if constexpr (!Op::kTree && !requires { bundles[0].sums; })
              if (tiny && count > 0)
                return add_two(op, args, shape, from + base * shape.step, count, bundles[0]);
          }
          if (plain && count == kPiece)
            add_whole_piece(Op{}, args, from + base * shape.step, shape.step, bundles);
          else if (count > 0)
            add_piece(op, args, shape, from, base, lane, count, bundles);
        });
        base += kPiece;
      },
      combine);
}

// The pieces of a thread. Where an op can take out of a bundle what has an order, the rest stays in
// it: less is held back.
template <class Op, class Raw, int Wide>
__device__ __forceinline__ void add_pieces(const Op& op, const ReduceArgs& args,
                                           const StridedShape& shape, const Raw* from, int64_t base,
                                           int lane, typename Op::State (&out)[Wide]) {
  using Bundle = PieceBundle<Op>;
  if constexpr (requires(Bundle& bundle) { bundle.take(0); }) {
    using Ordered = decltype(std::declval<Bundle&>().take(0));
    Bundle bundles[Wide];
    Ordered ordered[Wide];
#pragma unroll
    for (int v = 0; v < Wide; ++v) bundles[v].begin(op, lane);
    walk_pieces(
        op, args, shape, from, base, lane, ordered,
        [&](int64_t, int count, const auto& add) {
          add(bundles);
#pragma unroll
          for (int v = 0; v < Wide; ++v) ordered[v] = bundles[v].take(count);
        },
        [](const Ordered& a, const Ordered& b) { return join(a, b); });
#pragma unroll
    for (int v = 0; v < Wide; ++v) out[v] = bundles[v].with(ordered[v]);
  } else {
    walk_pieces(
        op, args, shape, from, base, lane, out,
        [&](int64_t at, int count, const auto& add) {
          Bundle bundles[Wide];
#pragma unroll
          for (int v = 0; v < Wide; ++v) bundles[v].begin(op, lane);
          add(bundles);
#pragma unroll
          for (int v = 0; v < Wide; ++v) out[v] = bundles[v].close(op, at, count);
        },
        [&](const auto& a, const auto& b) { return op.combine(a, b); });
  }
}

}  // namespace gpuprims
