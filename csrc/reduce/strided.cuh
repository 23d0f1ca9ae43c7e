// Reduced extents of any strides: columns, middle dimensions, several dimensions, expanded ones.
#pragma once
#include "common/launch.h"
#include "reduce/strided_finish.cuh"
#include "reduce/strided_stream.cuh"

namespace gpuprims {

// Blocks a multiprocessor: enough loads in flight, and registers for a thread's states.
template <class Op, class Raw>
constexpr int kStridedBlocks =
    sizeof(typename Op::State) > 48 ? 1
    : std::is_same_v<Raw, float> && std::is_same_v<typename Op::Value, float> &&
            sizeof(typename Op::State) <= 32
        ? 3
        : 2;

// States of a block that are exchanged at a time: at most 16 KB where one a thread fits.
template <class State, int Wide>
constexpr int kExchanged =
    std::min<int>(Wide, std::max<int>(1, 16384 / (reduce_tuning::kThreads * sizeof(State))));

template <class State, int Wide>
constexpr size_t kExchangedBytes =
    reduce_tuning::kThreads * kExchanged<State, Wide> * sizeof(State);

// Whether the results of a thread's columns can be written at once.
template <class Op, class Raw, int Wide>
constexpr bool kLines =
    Wide == 4 && std::is_same_v<Raw, float> && std::is_same_v<typename Op::Value, float> &&
    !std::is_same_v<Op, PlacedStats<float>>;

inline bool has_lines(const ReduceArgs& args, const ReducePlan& plan) {
  const ReduceLayout& l = args.layout;
  bool lines = plan.loads && l.kept_out[0] == 1 &&
               (args.out_dtype == Dtype::f32 || args.out_dtype == Dtype::i64);
  for (int i = 1; i < l.kept_dims; ++i) lines &= l.kept_out[i] % 4 == 0;
  for (const void* out : args.out) lines &= reinterpret_cast<uintptr_t>(out) % 16 == 0;
  return lines;
}

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
  bool done = !real;
  if constexpr (kStreams<Op, Raw, Wide>) {
    if (real && shape.lane_bits == 0 && base + shape.pieces * kPiece <= args.layout.n)
      done = stream_pieces(op, args, shape, from, base, state);
  }
  if (!done) add_pieces(op, args, shape, from, base, lane, state);
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
  if constexpr (kLines<Op, Raw, Wide>) {
    if (shape.lines && shape.parts == 1) {
      if (real && lane == 0 && q == 0) finish_line(op, args, place.out, state);
      return;
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
  if (!is_last_block(args.tickets + tile, shape.parts)) return;
  const int64_t begin = tile * width, end = begin + width;
  const int count = static_cast<int>((end <= last ? end : last + 1) - begin);
  const int per = kGroupPieces / (shape.rows * shape.pieces);
  if constexpr (requires(PieceBundle<Op>& bundle) { bundle.sums; })
    finish_columns_apart(op, args, states, begin, count, shape.parts, per);
  else
    finish_columns(op, args, states, begin, count, shape.parts, per);
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
  using Placed = typename AlsoPlaced<Op, Raw>::Type;
  if constexpr (!std::is_same_v<Placed, Op>)
    if (args.indices) return reduce_strided<Placed, Raw, Wide>(Placed{}, args, shape);
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
  shape.lines = has_lines(args, plan);
  using Placed = typename AlsoPlaced<Op, Raw>::Type;
  constexpr int kMost = std::is_same_v<Raw, AnyInteger> ? 4 : Wide;
  constexpr size_t kBytes = std::max(kExchangedBytes<typename Op::State, kMost>,
                                     kExchangedBytes<typename Placed::State, kMost>);
  const size_t states = plan.rows > 1 || plan.parts > 1 ? kBytes : 0;
  return launch(strided_rows<Op, Raw, Wide>,
                {dim3(static_cast<unsigned>(plan.grid)), dim3(plan.threads), states}, stream, args,
                shape);
}

}  // namespace gpuprims
