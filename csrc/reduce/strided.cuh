// Reduced extents of any strides: columns, middle dimensions, several dimensions, expanded ones.
#pragma once
#include "common/launch.h"
#include "reduce/tree.cuh"

namespace gpuprims {

// What a kernel needs of the plan.
struct StridedShape {
  int64_t tiles, parts;
  int columns, rows, depth, octets, levels, accumulators;
  int row_shift;  // log2 of rows
  bool loads;     // of all columns of a thread at once, from rows with one step between them
  bool rows_inner;
  int reach;  // the last row of a bundle
  int64_t step, jump[8];
  int offset[8], stride[8];
};

// Positions of the rows of a bundle.
struct Rows {
  const int* offset;
  uint32_t first;
  __device__ __forceinline__ uint32_t operator()(int e) const { return first + offset[e]; }
};

template <class Raw>
struct Loaded {
  using Type = Raw;
};
template <>
struct Loaded<AnyInteger> {
  using Type = int64_t;
};

__device__ __forceinline__ int64_t load_integer(const void* input, int64_t at, const Decode& d) {
  switch (d.bytes) {
    case 1:
      return integer_value<int64_t>(static_cast<const uint8_t*>(input)[at], d);
    case 2:
      return integer_value<int64_t>(static_cast<const uint16_t*>(input)[at], d);
    case 4:
      return integer_value<int64_t>(static_cast<const uint32_t*>(input)[at], d);
    default:
      return integer_value<int64_t>(static_cast<const uint64_t*>(input)[at], d);
  }
}

// The Wide columns of a thread, by their offsets; neighbours where one load takes them all.
template <class Raw, int Wide>
struct Columns {
  using Type = typename Loaded<Raw>::Type;
  struct alignas(sizeof(Type) * Wide) Line {
    Type raw[Wide];
  };
  const void* input;
  int64_t at[Wide];

  __device__ __forceinline__ Type get(int v, int64_t offset, const Decode& d) const {
    if constexpr (std::is_same_v<Raw, AnyInteger>)
      return load_integer(input, at[v] + offset, d);
    else
      return static_cast<const Raw*>(input)[at[v] + offset];
  }
  __device__ __forceinline__ Line get_all(int64_t offset) const {
    return *reinterpret_cast<const Line*>(static_cast<const Type*>(input) + at[0] + offset);
  }
};

template <class Op, class Loaded>
__device__ __forceinline__ typename Op::Value loaded_value(const Loaded& raw, const Decode& d) {
  if constexpr (std::is_same_v<Loaded, int64_t>)
    return raw;
  else
    return element<Op>(raw, d);
}

// One bundle of rows, from `first` on, all its steps. Loads of a step come before their use.
template <class Op, class Raw, int Wide>
__device__ __forceinline__ void add_octet(const Op& op, const ReduceArgs& args,
                                          const StridedShape& shape,
                                          const Columns<Raw, Wide>& columns, int64_t base,
                                          uint32_t first, int count,
                                          typename Op::State (&out)[Wide]) {
  typename Op::template Bundle<8> bundles[Wide];
#pragma unroll
  for (int v = 0; v < Wide; ++v) bundles[v].begin(op, first);
#pragma unroll 1
  for (int p = first; p < count; p += shape.accumulators) {
    typename Columns<Raw, Wide>::Line lines[8];
    uint32_t valid = kAllValid;
    if (shape.loads && p + shape.reach < count) {
      const int64_t start = (base + p) * shape.step;
#pragma unroll
      for (int e = 0; e < 8; ++e) lines[e] = columns.get_all(start + shape.jump[e]);
    } else {
      valid = 0;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int at = p + shape.offset[e];
        if (at >= count) continue;
        valid |= 1u << e;
        const int64_t row = reduced_offset(args.layout, base + at);
#pragma unroll
        for (int v = 0; v < Wide; ++v) lines[e].raw[v] = columns.get(v, row, args.decode);
      }
    }
    const Rows rows{shape.offset, static_cast<uint32_t>(p)};
    if (valid == kAllValid) {
#pragma unroll
      for (int v = 0; v < Wide; ++v) {
        typename Op::Value x[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) x[e] = loaded_value<Op>(lines[e].raw[v], args.decode);
        bundles[v].template add<false>(op, x, rows, kAllValid);
      }
    } else {
#pragma unroll
      for (int v = 0; v < Wide; ++v) {
        typename Op::Value x[8];
#pragma unroll
        for (int e = 0; e < 8; ++e)
          x[e] = valid >> e & 1 ? loaded_value<Op>(lines[e].raw[v], args.decode) : op.pad();
        bundles[v].template add<false>(op, x, rows, valid);
      }
    }
  }
#pragma unroll
  for (int v = 0; v < Wide; ++v) out[v] = bundles[v].close(op, base);
}

// A thread's share of a chunk: up to 4 bundles, combined pairwise.
template <class Op, class Raw, int Wide>
__device__ __forceinline__ void add_rows(const Op& op, const ReduceArgs& args,
                                         const StridedShape& shape,
                                         const Columns<Raw, Wide>& columns, int64_t base,
                                         uint32_t first, int count,
                                         typename Op::State (&out)[Wide]) {
  using State = typename Op::State;
  add_octet(op, args, shape, columns, base, first, count, out);
  if (shape.octets == 1) return;
  State held[Wide];  // the first two, while the others are made
#pragma unroll 1
  for (int i = 1; i < shape.octets; ++i) {
    const uint32_t at = first + (i & 1 ? shape.stride[0] : 0) + (i & 2 ? shape.stride[1] : 0);
    State next[Wide];
    add_octet(op, args, shape, columns, base, at, count, next);
#pragma unroll
    for (int v = 0; v < Wide; ++v) {
      if (i == 2) {
        held[v] = out[v];
        out[v] = next[v];
      } else {
        out[v] = op.combine(out[v], next[v]);
        if (i == 3) out[v] = op.combine(held[v], out[v]);
      }
    }
  }
}

// The last block of a tile of columns: `width` threads a column, the rest as in finish_row.
template <class Op>
__device__ void finish_columns(const Op& op, const ReduceArgs& args, typename Op::State* finals,
                               int64_t first, int count, int64_t parts) {
  using State = typename Op::State;
  const int64_t groups = (parts + kGroup - 1) / kGroup;
  int width = 1;
  while (width < kFinish && width < groups) width *= 2;
  const int side = blockDim.x / width, a = threadIdx.x % width, mine = threadIdx.x / width;
  for (int c = 0; c < count; c += side) {
    const int64_t column = first + c + mine;
    const bool real = c + mine < count;
    State state = op.identity();
    for (int64_t g = a; real && g < groups; g += kFinish)
      state = op.combine(
          state, load_group(op, args.partials, column, args.layout.columns, g, kGroup, parts));
    __syncthreads();
    finals[threadIdx.x] = state;
    for (int d = width / 2; d > 0; d /= 2) {
      __syncthreads();
      if (a < d) finals[threadIdx.x] = op.combine(finals[threadIdx.x], finals[threadIdx.x + d]);
    }
    if (a == 0 && real) finish(op, args, kept_place(args.layout, column).out, finals[threadIdx.x]);
  }
}

// Blocks a multiprocessor: enough loads in flight, and registers for a thread's states.
template <class Op>
constexpr int kStridedBlocks = sizeof(typename Op::State) > 48 ? 1 : 2;

template <class Op, class Raw, int Wide>
__global__ void __launch_bounds__(reduce_tuning::kThreads, kStridedBlocks<Op>)
    strided_rows(const __grid_constant__ ReduceArgs args,
                 const __grid_constant__ StridedShape shape) {
  using State = typename Op::State;
  __shared__ __align__(16) unsigned char memory[reduce_tuning::kThreads * Wide * sizeof(State)];
  State* const states = reinterpret_cast<State*>(memory);
  const Op op = make_op<Op>(args);
  const int64_t tile = blockIdx.x % shape.tiles, block = blockIdx.x / shape.tiles;
  int t = threadIdx.x, c, y;
  if (shape.rows_inner) {
    y = t & (shape.rows - 1);
    t >>= shape.row_shift;
    c = t % shape.columns;
    t /= shape.columns;
  } else {
    c = t % shape.columns;
    t /= shape.columns;
    y = t & (shape.rows - 1);
    t >>= shape.row_shift;
  }
  const int64_t chunk = block * shape.depth + t;
  const int64_t first = (tile * shape.columns + c) * Wide, base = chunk * kChunk;
  const bool real = t < shape.depth && first < args.layout.columns && chunk < shape.parts;
  const int64_t left = real ? args.layout.n - base : 0;
  const int count = static_cast<int>(left < kChunk ? left : kChunk);
  Columns<Raw, Wide> columns{args.input, {}};
#pragma unroll
  for (int v = 0; v < Wide; ++v) {
    const int64_t last = args.layout.columns - 1;
    const Place2 place = kept_place(args.layout, first + v < last ? first + v : last);
    columns.at[v] = place.in;
  }
  State state[Wide];
#pragma unroll
  for (int v = 0; v < Wide; ++v) state[v] = op.identity();
  uint32_t from = 0;
  for (int b = 0; b < shape.row_shift; ++b)
    if (y >> b & 1) from += shape.stride[shape.levels + b];
  if (count > 0) add_rows(op, args, shape, columns, base, from, count, state);
  // Threads that share rows are `apart` in memory, and combined as the tree says.
  const int apart = shape.rows_inner ? 1 : shape.columns;
  for (int d = 1; d < shape.rows; d *= 2) {
#pragma unroll
    for (int v = 0; v < Wide; ++v) states[threadIdx.x + v * blockDim.x] = state[v];
    __syncthreads();
    if ((y & (2 * d - 1)) == 0 && t < shape.depth) {
#pragma unroll
      for (int v = 0; v < Wide; ++v)
        state[v] = op.combine(state[v], states[threadIdx.x + d * apart + v * blockDim.x]);
    }
    __syncthreads();
  }
  if (shape.parts == 1) {
#pragma unroll
    for (int v = 0; v < Wide; ++v)
      if (real && y == 0 && first + v < args.layout.columns)
        finish(op, args, kept_place(args.layout, first + v).out, state[v]);
    return;
  }
#pragma unroll
  for (int v = 0; v < Wide; ++v)
    if (real && y == 0 && first + v < args.layout.columns)
      put_partial(args.partials, chunk * args.layout.columns + first + v, state[v]);
  const auto blocks = static_cast<uint32_t>((shape.parts + shape.depth - 1) / shape.depth);
  if (is_last_block(args.tickets + tile, blocks)) {
    const int64_t begin = tile * shape.columns * Wide, end = begin + shape.columns * Wide;
    const int64_t limit = end < args.layout.columns ? end : args.layout.columns;
    finish_columns(op, args, states, begin, static_cast<int>(limit - begin), shape.parts);
  }
}

template <class Op, class Raw, int Wide>
cudaError_t launch_strided(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  StridedShape shape{};
  shape.tiles = plan.tiles, shape.parts = plan.parts;
  shape.columns = plan.columns, shape.rows = plan.rows, shape.depth = plan.depth;
  shape.octets = plan.octets, shape.levels = plan.levels;
  shape.accumulators = plan.accumulators;
  while (1 << shape.row_shift < plan.rows) ++shape.row_shift;
  const uint64_t width = Wide * static_cast<uint64_t>(dtype_bytes(args.dtype));
  shape.loads = plan.loads && args.layout.reduced_dims <= 1 && args.acc != Dtype::i64 &&
                reinterpret_cast<uintptr_t>(args.input) % width == 0;
  shape.rows_inner = plan.rows_inner;
  shape.step = args.layout.reduced_step[0];
  for (int i = 0; i < 8; ++i) {
    shape.offset[i] = plan.offset[i], shape.stride[i] = plan.stride[i];
    shape.reach = std::max(shape.reach, plan.offset[i]);
    shape.jump[i] = plan.offset[i] * shape.step;
  }
  return launch(strided_rows<Op, Raw, Wide>,
                {dim3(static_cast<unsigned>(plan.grid)), dim3(plan.threads)}, stream, args, shape);
}

}  // namespace gpuprims
