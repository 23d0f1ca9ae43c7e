// Reduced extents of any strides: columns, middle dimensions, several dimensions, expanded ones.
#pragma once
#include "common/launch.h"
#include "reduce/tree.cuh"

namespace gpuprims {

// What a kernel needs of the plan.
struct StridedShape {
  int64_t tiles, parts;
  int64_t step;       // of rows, where one step parts them
  int columns, rows;  // threads of a block across columns, and with pieces (a power of two)
  int pieces;         // of a thread, one after another (a power of two)
  int lanes;          // threads that share a piece
  bool loads;         // of all columns of a thread at once
  bool rows_inner;
};

// Positions of the rows of a bundle.
struct Rows {
  uint32_t first, apart;
  __device__ __forceinline__ uint32_t operator()(int e) const { return first + e * apart; }
};

// The Wide columns of a thread, by their offsets; neighbours where one load takes them all.
template <class Raw, int Wide>
struct Columns {
  struct alignas(sizeof(Raw) * Wide < 16 ? sizeof(Raw) * Wide : 16) Line {
    Raw raw[Wide];
  };
  const Raw* input;
  int64_t at[Wide];
};

// Eight rows from position p on, `apart` from each other; `some` of them, then the first again, so
// that all loads are made before any is waited for.
template <class Raw, int Wide>
__device__ __forceinline__ void load_rows(const ReduceLayout& layout, const StridedShape& shape,
                                          const Columns<Raw, Wide>& columns, int64_t p, int apart,
                                          int some, typename Columns<Raw, Wide>::Line (&lines)[8]) {
  using Line = typename Columns<Raw, Wide>::Line;
  if (layout.reduced_dims <= 1) {
    const Raw* const from = columns.input + p * shape.step;
    const int64_t step = apart * shape.step;
    if (shape.loads) {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        lines[e] = *reinterpret_cast<const Line*>(from + columns.at[0] + (e < some ? e * step : 0));
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const Raw* const row = from + (e < some ? e * step : 0);
#pragma unroll
        for (int v = 0; v < Wide; ++v) lines[e].raw[v] = row[columns.at[v]];
      }
    }
    return;
  }
  const int64_t size = layout.reduced_size[0], step = layout.reduced_step[0];
  const int64_t outer =
      (p | size) >> 32 == 0 ? static_cast<uint32_t>(p) / static_cast<uint32_t>(size) : p / size;
  const int64_t within = p - outer * size, first = split_offset(layout, p);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int ahead = e < some ? e * apart : 0;
    const int64_t row =
        within + ahead < size ? first + ahead * step : split_offset(layout, p + ahead);
#pragma unroll
    for (int v = 0; v < Wide; ++v) lines[e].raw[v] = columns.input[columns.at[v] + row];
  }
}

// A piece, or the share of it of one of kRowLanes threads: accumulator `lane` and no other.
template <class Op, class Raw, int Wide>
__device__ __forceinline__ void add_piece(const Op& op, const ReduceArgs& args,
                                          const StridedShape& shape,
                                          const Columns<Raw, Wide>& columns, int64_t base, int lane,
                                          typename Op::State (&out)[Wide]) {
  const int64_t left = args.layout.n - base;
  const int count = left < kPiece ? static_cast<int>(left) : kPiece;
  const int apart = shape.lanes;
  typename Op::template Bundle<kRowLanes> bundles[Wide];
#pragma unroll
  for (int v = 0; v < Wide; ++v) bundles[v].begin(op, lane);
#pragma unroll 1
  for (int p = lane; p < count; p += kRowLanes * apart) {
    typename Columns<Raw, Wide>::Line lines[kRowLanes];
    const int rows = apart == 1 ? count - p : (count - p + kRowLanes - 1) / kRowLanes;
    load_rows(args.layout, shape, columns, base + p, apart, rows, lines);
    const Rows at{static_cast<uint32_t>(p), static_cast<uint32_t>(apart)};
    const uint32_t valid = rows >= kRowLanes ? kAllValid : (1u << rows) - 1;
#pragma unroll
    for (int v = 0; v < Wide; ++v) {
      typename Op::Value x[kRowLanes];
#pragma unroll
      for (int e = 0; e < kRowLanes; ++e) x[e] = element<Op>(lines[e].raw[v], args.decode);
      if (valid != kAllValid) {
#pragma unroll
        for (int e = 0; e < kRowLanes; ++e)
          if (!(valid >> e & 1)) x[e] = op.pad();
      }
      if constexpr (Op::kTree) {
        if (apart > 1) {
          bundles[v].add_in_turn(op, x);
          continue;
        }
      }
      if (valid == kAllValid)
        bundles[v].template add<false>(op, x, at, kAllValid);
      else
        bundles[v].template add<false>(op, x, at, valid);
    }
  }
#pragma unroll
  for (int v = 0; v < Wide; ++v) out[v] = bundles[v].close(op, base);
}

// The pieces of a thread, combined pairwise.
template <class Op, class Raw, int Wide>
__device__ __forceinline__ void add_pieces(const Op& op, const ReduceArgs& args,
                                           const StridedShape& shape,
                                           const Columns<Raw, Wide>& columns, int64_t base,
                                           int lane, typename Op::State (&out)[Wide]) {
  if (shape.pieces == 1) {
    if (base < args.layout.n) add_piece(op, args, shape, columns, base, lane, out);
    return;
  }
  typename Op::State held[3][Wide];  // in local memory: once every 64 rows
#pragma unroll 1
  for (int i = 0; i < shape.pieces; ++i, base += kPiece) {
    if (base < args.layout.n) {
      add_piece(op, args, shape, columns, base, lane, out);
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
    if (i + 1 == shape.pieces) return;
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
template <class Op>
constexpr int kStridedBlocks = sizeof(typename Op::State) > 48 ? 1 : 2;

// States of a block that are exchanged at a time: at most 16 KB where one a thread fits.
template <class State, int Wide>
constexpr int kExchanged =
    std::min<int>(Wide, std::max<int>(1, 16384 / (reduce_tuning::kThreads * sizeof(State))));

template <class Op, class Raw, int Wide>
__device__ __forceinline__ void reduce_strided(const Op& op, const ReduceArgs& args,
                                               const StridedShape& shape,
                                               typename Op::State* states) {
  using State = typename Op::State;
  constexpr int kAtOnce = kExchanged<State, Wide>;
  const int64_t tile = blockIdx.x % shape.tiles, block = blockIdx.x / shape.tiles;
  const int side = shape.rows * shape.lanes;  // threads of a column
  const int t = threadIdx.x;
  const int c = shape.rows_inner ? t / side : t % shape.columns;
  const int y = shape.rows_inner ? t % side : t / shape.columns;
  const int lane = y % shape.lanes, q = y / shape.lanes;
  const int64_t width = shape.columns * Wide, last = args.layout.columns - 1;
  // Neighbouring columns, or, where they are loaded one by one, those of neighbouring threads.
  const int64_t first = tile * width + (shape.loads ? c * Wide : c);
  const int apart = shape.loads ? 1 : shape.columns;
  const bool real = t < shape.columns * side && first <= last;
  Columns<Raw, Wide> columns{static_cast<const Raw*>(args.input), {}};
  if (shape.loads) {
    columns.at[0] = kept_place(args.layout, first < last ? first : last).in;
  } else {
#pragma unroll
    for (int v = 0; v < Wide; ++v) {
      const int64_t mine = first + v * apart;
      columns.at[v] = kept_place(args.layout, mine < last ? mine : last).in;
    }
  }
  State state[Wide];
#pragma unroll
  for (int v = 0; v < Wide; ++v) state[v] = op.identity();
  const int64_t base = (block * shape.rows + q) * shape.pieces * kPiece;
  if (real) add_pieces(op, args, shape, columns, base, lane, state);
  // Accumulators by halving, then pieces pairwise.
  const int near = shape.rows_inner ? 1 : shape.columns;
  const auto join = [&](int distance, bool takes) {
#pragma unroll
    for (int v = 0; v < Wide; v += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (v + i < Wide) states[t + i * blockDim.x] = state[v + i];
      __syncthreads();
      if (takes) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          if (v + i < Wide)
            state[v + i] = op.combine(state[v + i], states[t + distance * near + i * blockDim.x]);
      }
      __syncthreads();
    }
  };
  const bool inside = t < shape.columns * side;
  for (int d = shape.lanes / 2; d > 0; d /= 2) join(d, inside && lane < d);
  for (int d = 1; d < shape.rows; d *= 2)
    join(d * shape.lanes, inside && lane == 0 && (q & (2 * d - 1)) == 0);
#pragma unroll
  for (int v = 0; v < Wide; ++v) {
    const int64_t mine = first + v * apart;
    if (!real || y != 0 || mine > last) continue;
    if (shape.parts == 1)
      finish(op, args, kept_place(args.layout, mine).out, state[v]);
    else
      put_partial(args.partials, block * args.layout.columns + mine, state[v]);
  }
  if (shape.parts == 1) return;
  if (is_last_block(args.tickets + tile, static_cast<uint32_t>(shape.parts))) {
    const int64_t begin = tile * width, end = begin + width;
    finish_columns(op, args, states, begin,
                   static_cast<int>((end <= last ? end : last + 1) - begin), shape.parts,
                   kGroupPieces / (shape.rows * shape.pieces));
  }
}

template <class Op, class Raw, int Wide>
__global__ void __launch_bounds__(reduce_tuning::kThreads, kStridedBlocks<Op>)
    strided_rows(const __grid_constant__ ReduceArgs args,
                 const __grid_constant__ StridedShape shape) {
  using State = typename Op::State;
  constexpr int kMost = std::is_same_v<Raw, AnyInteger> ? 4 : Wide;
  __shared__ __align__(
      16) unsigned char memory[reduce_tuning::kThreads * kExchanged<State, kMost> * sizeof(State)];
  State* const states = reinterpret_cast<State*>(memory);
  const Op op = make_op<Op>(args);
  if constexpr (std::is_same_v<Raw, AnyInteger>) {  // four kernels in one
    switch (args.decode.bytes) {
      case 1:
        return reduce_strided<Op, Integer<1>, 4>(op, args, shape, states);
      case 2:
        return reduce_strided<Op, Integer<2>, 4>(op, args, shape, states);
      case 4:
        return reduce_strided<Op, Integer<4>, 4>(op, args, shape, states);
      default:
        return reduce_strided<Op, Integer<8>, 2>(op, args, shape, states);
    }
  } else {
    reduce_strided<Op, Raw, Wide>(op, args, shape, states);
  }
}

template <class Op, class Raw, int Wide>
cudaError_t launch_strided(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  StridedShape shape{};
  shape.tiles = plan.tiles, shape.parts = plan.parts;
  shape.columns = plan.columns, shape.rows = plan.rows, shape.pieces = plan.pieces;
  shape.lanes = plan.shared ? kRowLanes : 1;
  const uint64_t width =
      std::min(16, plan.wide * dtype_bytes(args.dtype));  // bytes of an aligned load
  shape.loads = plan.loads && reinterpret_cast<uintptr_t>(args.input) % width == 0;
  shape.rows_inner = plan.rows_inner;
  shape.step = args.layout.reduced_step[0];
  return launch(strided_rows<Op, Raw, Wide>,
                {dim3(static_cast<unsigned>(plan.grid)), dim3(plan.threads)}, stream, args, shape);
}

}  // namespace gpuprims
