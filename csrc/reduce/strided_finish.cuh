// The last block of a tile of columns combines what the others have left.
#pragma once
#include "reduce/tree.cuh"

namespace gpuprims {

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

// The same as a call, which takes no registers from everybody's work: of large states.
template <class Op>
__device__ __noinline__ void finish_columns_apart(const Op& op, const ReduceArgs& args,
                                                  typename Op::State* finals, int64_t first,
                                                  int count, int64_t parts, int per) {
  finish_columns(op, args, finals, first, count, parts, per);
}

}  // namespace gpuprims
