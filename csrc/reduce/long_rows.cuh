// Rows whose elements are neighbours in memory, a warp a chunk.
#pragma once
#include "common/launch.h"
#include "reduce/row_chunk.cuh"

namespace gpuprims {

constexpr int kRowThreads = reduce_tuning::kThreads;

// Registers for partial results on their way to a thread of the last block. It is alone then, and
// waits once for as many of them: of 2^28 elements a thread has 32.
constexpr int kFinishWords = 32;

// The last block of a row: groups go to kFinish accumulators in turn, which are combined by
// halving. Those that have no group are left out.
template <class Op>
__device__ void finish_row(const Op& op, const ReduceArgs& args, typename Op::State* finals,
                           int64_t row, int64_t parts, int per, int64_t out) {
  using State = typename Op::State;
  const int per_group = kGroup / per;
  const int groups =
      static_cast<int>((parts + per_group - 1) / per_group);  // the grid fits 31 bits
  int width = 32;
  while (width < kFinish && width < groups) width *= 2;
  for (int a = threadIdx.x; a < width; a += blockDim.x) {
    State state = op.identity();
    if (per_group == 1) {  // many: a batch is on its way while none is waited for
      constexpr int kBatch = kFinishWords * 4 / sizeof(State);
#pragma unroll 1
      for (int g = a; g < groups; g += kBatch * kFinish) {
        State some[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          some[i] = op.identity();
          if (g + i * kFinish < groups)
            some[i] = get_partial<State>(args.partials, row * parts + g + i * kFinish);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) state = op.combine(state, some[i]);
      }
    } else {
      for (int g = a; g < groups; g += kFinish)
        state =
            op.combine(state, load_group(op, args.partials, row * parts, 1, g, per_group, parts));
    }
    finals[a] = state;
  }
  for (int d = width / 2; d >= 32; d /= 2) {
    __syncthreads();
    for (int a = threadIdx.x; a < d; a += blockDim.x)
      finals[a] = op.combine(finals[a], finals[a + d]);
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const State state = halve_lanes(op, finals[threadIdx.x], 32);
  if (threadIdx.x == 0) finish(op, args, out, state);
}

// The same as a call, which takes no registers from everybody's work: of large states.
template <class Op>
__device__ __noinline__ void finish_row_apart(const Op& op, const ReduceArgs& args,
                                              typename Op::State* finals, int64_t row,
                                              int64_t parts, int per, int64_t out) {
  finish_row(op, args, finals, row, parts, per, out);
}

// A block has `per` neighbouring chunks of one row, a warp each, or whole rows of `per` chunks.
// 512 blocks, which are 2^24 elements, shall run at once on 132 multiprocessors: 64 registers a
// thread, where elements and states leave it at that.
template <class Op, class Raw, bool Pair>
constexpr int kRowBlocks = sizeof(typename Op::State) > 48                      ? 1
                           : Pair || std::is_same_v<typename Op::Value, double> ? 2
                           : sizeof(Raw) < 4 || sizeof(Raw) > 4                 ? 3
                                                                                : 4;

template <class Op, class Raw, int Loads, bool Pair>
__device__ __forceinline__ void reduce_long(const Op& op, const ReduceArgs& args, int64_t parts,
                                            int per, bool staged, typename Op::State* states) {
  using State = typename Op::State;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, unit = warp / per;
  const uint32_t at = blockIdx.x * (warps / per) + unit;
  const uint32_t row = parts == 1 ? at : at / static_cast<uint32_t>(parts);
  const uint32_t part = parts == 1 ? 0 : at - row * static_cast<uint32_t>(parts);
  const int64_t base = int64_t{kChunk} * (part * per + (warp - unit * per));
  const bool real = row < args.layout.columns;
  const Raw* const from =
      static_cast<const Raw*>(args.input) + kept_place(args.layout, real ? row : 0).in + base;
  const int64_t left = real ? args.layout.n - base : 0;
  State state = op.identity();
  if (left > 0)
    state = warp_chunk<Op, Raw, Loads, Pair>(
        op, args, from, static_cast<const Raw*>(args.other) + (Pair ? base : 0),
        static_cast<int>(left < kChunk ? left : kChunk), staged, base);
  if (per > 1) {  // pairwise, by the first warp: a lane has a warp's state
    if ((threadIdx.x & 31) == 0) states[warp] = state;
    __syncthreads();
    if (warp == 0) {
      if (threadIdx.x < warps) state = states[threadIdx.x];
#pragma unroll 1
      for (int d = 1; d < per; d *= 2) state = op.combine(state, shuffle_down(state, d));
    }
  }
  if (parts == 1) {
    const int lane = threadIdx.x & 31;
    const bool has = per > 1 ? warp == 0 && lane < warps && lane % per == 0 : lane == 0;
    const uint32_t mine = per > 1 ? blockIdx.x * (warps / per) + lane / per : row;
    if (has && mine < args.layout.columns)
      finish(op, args, kept_place(args.layout, mine).out, state);
    return;
  }
  if (threadIdx.x == 0) put_partial(args.partials, int64_t{row} * parts + part, state);
  if (!is_last_block(args.tickets + row, static_cast<uint32_t>(parts))) return;
  const int64_t out = kept_place(args.layout, row).out;
  if constexpr (sizeof(State) > 16)
    finish_row_apart(op, args, states, row, parts, per, out);
  else
    finish_row(op, args, states, row, parts, per, out);
}

template <class Op, class Raw, int Loads, bool Pair>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks<Op, Raw, Pair>)
    long_rows(const __grid_constant__ ReduceArgs args, int64_t parts, int per, bool staged) {
  using State = typename Op::State;
  using Placed = typename AlsoPlaced<Op, Raw>::Type;
  using PlacedState = typename Placed::State;
  __shared__ __align__(16) unsigned char memory[kFinish * sizeof(PlacedState)];
  if constexpr (!std::is_same_v<Placed, Op>)
    if (args.indices)
      return reduce_long<Placed, Raw, Loads, Pair>(Placed{}, args, parts, per, staged,
                                                   reinterpret_cast<PlacedState*>(memory));
  const Op op = make_op<Op>(args);
  reduce_long<Op, Raw, Loads, Pair>(op, args, parts, per, staged, reinterpret_cast<State*>(memory));
}

template <class Op, class Raw, int Loads = 8, bool Pair = false>
cudaError_t launch_long_rows(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream) {
  const size_t stage = plan.staged ? plan.threads / 32 * kChunk * sizeof(Raw) : 0;
  return launch(long_rows<Op, Raw, Loads, Pair>,
                {dim3(static_cast<unsigned>(plan.grid)), dim3(plan.threads), stage}, stream, args,
                plan.parts, plan.per, plan.staged);
}

}  // namespace gpuprims
