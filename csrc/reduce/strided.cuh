// Reduced extents of any strides: columns, middle dimensions, several dimensions, expanded ones.
#pragma once
#include "common/launch.h"
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
    struct alignas(sizeof(Raw) * kBatch < 16 ? sizeof(Raw) * kBatch : 16) Batch {
      Raw raw[kBatch];
    };
    int64_t row = p * shape.step, within = 0, size = std::numeric_limits<int64_t>::max();
    if (layout.reduced_dims > 1) {
      size = layout.reduced_size[0];
      const int64_t outer =
          (p | size) >> 32 == 0 ? static_cast<uint32_t>(p) / static_cast<uint32_t>(size) : p / size;
      within = p - outer * size;
      row = split_offset(layout, p);
    }
    if (shape.loads == RowLoads::rows && bits == 0 && some >= kBatch) {
      const Batch batch = *reinterpret_cast<const Batch*>(from + row);
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

// A piece, or the share of it of one of kRowLanes threads: accumulator `lane` and no other.
template <class Op, class Raw, int Wide>
__device__ __forceinline__ void add_piece(const Op& op, const ReduceArgs& args,
                                          const StridedShape& shape, const Raw* from, int64_t base,
                                          int lane, typename Op::State (&out)[Wide]) {
  const int64_t left = args.layout.n - base;
  const int count = left < kPiece ? static_cast<int>(left) : kPiece;
  const int bits = shape.lane_bits;
  typename Op::template Bundle<kBatch, kRowLanes> bundles[Wide];
#pragma unroll
  for (int v = 0; v < Wide; ++v) bundles[v].begin(op, lane);
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
#pragma unroll
  for (int v = 0; v < Wide; ++v) out[v] = bundles[v].close(op, base);
}

// All of a piece, by one thread: nothing is left to be decided between its loads. What the general
// loop decides there is what it waits for, not memory.
template <class Op, class Raw, int Wide>
__device__ __forceinline__ void add_whole_piece(const Op& op, const ReduceArgs& args,
                                                const Raw* row, int64_t step, int64_t base,
                                                typename Op::State (&out)[Wide]) {
  typename Op::template Bundle<kBatch, kRowLanes> bundles[Wide];
#pragma unroll
  for (int v = 0; v < Wide; ++v) bundles[v].begin(op, 0);
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
#pragma unroll
  for (int v = 0; v < Wide; ++v) out[v] = bundles[v].close(op, base);
}

// The pieces of a thread, combined pairwise.
template <class Op, class Raw, int Wide>
__device__ __forceinline__ void add_pieces(const Op& op, const ReduceArgs& args,
                                           const StridedShape& shape, const Raw* from, int64_t base,
                                           int lane, typename Op::State (&out)[Wide]) {
  const bool one_step = shape.loads == RowLoads::columns ||
                        (shape.loads == RowLoads::elements && args.layout.reduced_dims <= 1);
  const bool plain = one_step && shape.lane_bits == 0 && is_plain(op);
  typename Op::State held[3][Wide];  // in local memory: once every 64 rows
#pragma unroll 1
  for (int i = 0;; base += kPiece) {
    if (plain && base + kPiece <= args.layout.n) {
      add_whole_piece(Op{}, args, from + base * shape.step, shape.step, base, out);
    } else if (base < args.layout.n) {
      add_piece(op, args, shape, from, base, lane, out);
    } else {
#pragma unroll
      for (int v = 0; v < Wide; ++v) out[v] = op.identity();
    }
    int level = 0;
#pragma unroll 1
    for (; i >> level & 1; ++level) {
#pragma unroll
      for (int v = 0; v < Wide; ++v) out[v] = op.combine(held[level][v], out[v]);
    }
    if (++i == shape.pieces) return;
#pragma unroll
    for (int v = 0; v < Wide; ++v) held[level][v] = out[v];
  }
}

// `count` neighbouring partial results of a column from `first` on (a power of two), pairwise.
template <class Op>
__device__ typename Op::State load_pairs(const Op& op, const ReduceArgs& args, int64_t column,
                                         int64_t first, int count, int64_t parts) {
  using State = typename Op::State;
  State held[6];
  State state = op.identity();
#pragma unroll 1
  for (int i = 0; i < count; i += kGroup) {
    if (first + i >= parts) {
      if (i == 0) break;
      state = op.identity();
    } else {
      const int64_t step = args.layout.columns, from = first + i;
      state = load_group(op, args.partials, from * step + column, step, 0,
                         count < kGroup ? count : kGroup, parts - from);
    }
    int level = 0;
#pragma unroll 1
    for (; i / kGroup >> level & 1; ++level) state = op.combine(held[level], state);
    if (i + kGroup < count) held[level] = state;
  }
  return state;
}

// The last block of a tile of columns. `per` partial results make a group (of one group: as many as
// there are); a column has `width` finals, each of which `split` threads share where there are
// enough.
template <class Op>
__device__ void finish_columns(const Op& op, const ReduceArgs& args, typename Op::State* finals,
                               int64_t first, int count, int64_t parts, int per) {
  using State = typename Op::State;
  const int64_t groups = (parts + per - 1) / per;
  int width = 1, split = 1;
  while (width < kFinish && width < groups) width *= 2;
  while (groups == 1 && per / 2 >= parts) per /= 2;
  const int threads = blockDim.x;
  while (split < per && 2 * split * width * count <= threads) split *= 2;
  const int side = blockDim.x / (width * split);
  const int mine = threadIdx.x % side, a = threadIdx.x / side % split;
  const int f = threadIdx.x / (side * split), share = per / split;
  for (int c = 0; c < count; c += side) {
    const int64_t column = first + c + mine;
    const bool real = c + mine < count;
    State state = op.identity();
    for (int64_t g = f; real && g < groups; g += kFinish)
      state = op.combine(state, load_pairs(op, args, column, g * per + a * share, share, parts));
    __syncthreads();
    finals[threadIdx.x] = state;
    for (int d = 1; d < split; d *= 2) {
      __syncthreads();
      if ((a & (2 * d - 1)) == 0)
        finals[threadIdx.x] = op.combine(finals[threadIdx.x], finals[threadIdx.x + d * side]);
    }
    for (int d = width / 2; d > 0; d /= 2) {
      __syncthreads();
      if (a == 0 && f < d)
        finals[threadIdx.x] =
            op.combine(finals[threadIdx.x], finals[threadIdx.x + d * side * split]);
    }
    if (a == 0 && f == 0 && real)
      finish(op, args, kept_place(args.layout, column).out, finals[threadIdx.x]);
  }
}

// Blocks a multiprocessor: enough loads in flight, and registers for a thread's states.
template <class Op, class Raw>
constexpr int kStridedBlocks =
    sizeof(typename Op::State) > 48 ? 1
    : std::is_same_v<Raw, float> && std::is_same_v<typename Op::Value, float> &&
            !std::is_same_v<Op, Moments<float>> && sizeof(typename Op::State) <= 16
        ? 3
        : 2;

// States of a block that are exchanged at a time: at most 16 KB where one a thread fits.
template <class State, int Wide>
constexpr int kExchanged =
    std::min<int>(Wide, std::max<int>(1, 16384 / (reduce_tuning::kThreads * sizeof(State))));

template <class Op, class Raw, int Wide>
__device__ __forceinline__ void reduce_columns(const Op& op, const ReduceArgs& args,
                                               const StridedShape& shape) {
  using State = typename Op::State;
  State* const states = reinterpret_cast<State*>(dynamic_memory);
  constexpr int kAtOnce = kExchanged<State, Wide>;
  const uint32_t block = blockIdx.x / shape.tiles, tile = blockIdx.x - block * shape.tiles;
  // Lanes of a piece are those of a warp, then neighbours in memory.
  const int t = threadIdx.x, lane = t & ((1 << shape.lane_bits) - 1), u = t >> shape.lane_bits;
  const int c = shape.rows_inner ? u >> shape.row_bits : u & (shape.columns - 1);
  const int q = shape.rows_inner ? u & (shape.rows - 1) : u >> shape.column_bits;
  const bool inside = u < shape.columns << shape.row_bits;
  const int64_t width = shape.columns * Wide, last = args.layout.columns - 1;
  const int64_t first = tile * width + c * Wide;
  const bool real = inside && first <= last;
  const Place2 place = kept_place(args.layout, first < last ? first : last);
  const Raw* const from = static_cast<const Raw*>(args.input) + place.in;
  State state[Wide];
#pragma unroll
  for (int v = 0; v < Wide; ++v) state[v] = op.identity();
  const int64_t base = ((int64_t{block} << shape.row_bits) + q) * shape.pieces * kPiece;
  if (real) add_pieces(op, args, shape, from, base, lane, state);
  // Accumulators by halving, then pieces pairwise.
  if (shape.lane_bits > 0) {
#pragma unroll
    for (int v = 0; v < Wide; ++v) {
#pragma unroll
      for (int d = kRowLanes / 2; d > 0; d /= 2)
        state[v] = op.combine(state[v], shuffle_down(state[v], d));
    }
  }
  const int near = (shape.rows_inner ? 1 : shape.columns) << shape.lane_bits;
#pragma unroll 1
  for (int d = 1; d < shape.rows; d *= 2) {
    const bool gives = lane == 0 && (q & (2 * d - 1)) == d;
    const bool takes = inside && lane == 0 && (q & (2 * d - 1)) == 0;
#pragma unroll
    for (int v = 0; v < Wide; v += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (v + i < Wide && gives) states[t + i * reduce_tuning::kThreads] = state[v + i];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (v + i < Wide && takes)
          state[v + i] =
              op.combine(state[v + i], states[t + d * near + i * reduce_tuning::kThreads]);
      // Another round's givers have other places, but the states of one round may share them.
      if (kAtOnce < Wide) __syncthreads();
    }
  }
#pragma unroll
  for (int v = 0; v < Wide; ++v) {
    const int64_t mine = first + v;
    if (!real || lane != 0 || q != 0 || mine > last) continue;
    if (shape.parts == 1)
      finish(op, args, place.out + v * args.layout.kept_out[0], state[v]);
    else
      put_partial(args.partials, block * args.layout.columns + mine, state[v]);
  }
  if (shape.parts == 1) return;
  __syncthreads();
  if (is_last_block(args.tickets + tile, shape.parts)) {
    const int64_t begin = tile * width, end = begin + width;
    finish_columns(op, args, states, begin,
                   static_cast<int>((end <= last ? end : last + 1) - begin), shape.parts,
                   kGroupPieces / (shape.rows * shape.pieces));
  }
}

// Two kernels in one: of several columns a thread, and of one where they are not neighbours.
template <class Op, class Raw, int Wide>
__device__ __forceinline__ void reduce_strided(const Op& op, const ReduceArgs& args,
                                               const StridedShape& shape) {
  if (shape.loads == RowLoads::columns)
    reduce_columns<Op, Raw, Wide>(op, args, shape);
  else
    reduce_columns<Op, Raw, 1>(op, args, shape);
}

template <class Op, class Raw, int Wide>
__global__ void __launch_bounds__(reduce_tuning::kThreads, kStridedBlocks<Op, Raw>)
    strided_rows(const __grid_constant__ ReduceArgs args,
                 const __grid_constant__ StridedShape shape) {
  const Op op = make_op<Op>(args);
  if constexpr (std::is_same_v<Raw, AnyInteger>) {  // four kernels in one
    switch (args.decode.bytes) {
      case 1:
        return reduce_strided<Op, Integer<1>, 4>(op, args, shape);
      case 2:
        return reduce_strided<Op, Integer<2>, 4>(op, args, shape);
      case 4:
        return reduce_strided<Op, Integer<4>, 4>(op, args, shape);
      default:
        return reduce_strided<Op, Integer<8>, 2>(op, args, shape);
    }
  } else {
    reduce_strided<Op, Raw, Wide>(op, args, shape);
  }
}

template <class Op, class Raw, int Wide>
cudaError_t launch_strided(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  StridedShape shape{};
  shape.tiles = static_cast<uint32_t>(plan.tiles), shape.parts = static_cast<uint32_t>(plan.parts);
  shape.columns = plan.columns, shape.rows = plan.rows, shape.pieces = plan.pieces;
  shape.column_bits = std::countr_zero(static_cast<unsigned>(plan.columns));
  shape.row_bits = std::countr_zero(static_cast<unsigned>(plan.rows));
  shape.lane_bits = plan.shared ? std::countr_zero(static_cast<unsigned>(kRowLanes)) : 0;
  shape.rows_inner = plan.rows_inner;
  shape.step = args.layout.reduced_step[0];
  shape.loads = plan.loads       ? RowLoads::columns
                : plan.row_loads ? RowLoads::rows
                                 : RowLoads::elements;
  constexpr int kMost = std::is_same_v<Raw, AnyInteger> ? 4 : Wide;
  const size_t states = plan.rows > 1 || plan.parts > 1
                            ? reduce_tuning::kThreads * kExchanged<typename Op::State, kMost> *
                                  sizeof(typename Op::State)
                            : 0;
  return launch(strided_rows<Op, Raw, Wide>,
                {dim3(static_cast<unsigned>(plan.grid)), dim3(plan.threads), states}, stream, args,
                shape);
}

}  // namespace gpuprims
