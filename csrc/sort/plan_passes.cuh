// What the passes of the sweep do, decided on the device from the counts: digits in which a row's
// keys agree are left out, a sorted row is copied and a reversed one mirrored, and buffers
// alternate such that the last pass that is left reads from A. 8-byte keys are sorted by as many of
// their upper digits as set nearly all of them apart.
#pragma once
#include "sort/sweep.cuh"

namespace gpuprims {
namespace {

// How the passes of a round follow each other: `left` of them, the first of which is number
// `before` of all.
struct Round {
  int left, before;
  bool in_place;
  int done = 0;

  // After pass `done` of `left` the records are in the output, or in A if an even number of passes
  // comes between. In place the output is the input and B, which the first pass may not write; an
  // odd last one leaves them in A.
  __device__ __forceinline__ uint8_t target(int pass) const {
    if (in_place) return pass % 2 == 0 ? kToA : pass == left - 1 ? kToOutput : kToB;
    return pass == left - 1 ? kToOutput : (left - 2 - pass) % 2 ? kToB : kToA;
  }
  __device__ __forceinline__ uint8_t next_role() {
    const uint8_t from = done == 0 ? kFromInput : target(done - 1) == kToA ? kFromA : kFromB;
    const uint8_t role = from | target(done) | ((before + done) % 2 ? kOdd : 0);
    ++done;
    return role;
  }
};

// same[p]: how likely it is that two keys agree in digit p; 1: all do.
__device__ void give_roles(const SweepArgs& args, RowState& state, int64_t n, const float* same) {
  const bool whole = args.sort.begin_bit == 0 && args.sort.end_bit == args.sort.bytes * 8;
  int varying = 0;
  for (int p = 0; p < args.passes; ++p) varying += same[p] < 1;
  const bool copy = varying == 0 || (whole && !state.not_sorted);
  if (copy && args.in_place) return;
  if (copy || (whole && !state.not_reversed && !args.in_place)) {
    state.role[0][0] = copy ? kCopy : kMirror;
    args.space.active[0] = 1;
    return;
  }
  int from = 0, to = args.passes;  // the digits that vary are among these
  while (same[from] == 1) ++from;
  while (same[to - 1] == 1) --to;
  if (args.sort.bytes == 8 && args.side == 4 && to - from <= 4 && (whole || !args.sort.values))
    state.narrow = args.sort.begin_bit + from * 8 + 1;
  int lowest = 0;
  if (args.mend &&
      !state.narrow) {  // until fewer than one key in four has another with the same upper digits
    float alike = static_cast<float>(n);
    for (lowest = args.passes; lowest > 0 && alike >= 0.25f;) alike *= same[--lowest];
    bool more = false;
    for (int p = 0; p < lowest; ++p) more |= same[p] < 1;
    if (!more) lowest = 0;
  }
  Round first{0, args.before, args.in_place};
  for (int p = lowest; p < args.passes; ++p) first.left += same[p] < 1;
  Round second{varying, args.before + first.left, false};
  if (args.in_place) state.unfinished = first.left % 2;
  state.window = lowest * 8;
  for (int p = 0; p < args.passes; ++p) {
    if (same[p] == 1) continue;
    if (p >= lowest) {
      state.role[0][p] = first.next_role();
      args.space.active[p] = 1;
    }
    if (lowest == 0) continue;
    state.role[1][p] = second.next_role();
    args.space.active[kMaxPasses + p] = 1;
  }
}

// In place: keys that an odd number of passes left in A.
__device__ __forceinline__ void bring_back(const SweepArgs& args) {
  for (int64_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    const TilePlace place = tile_place(args, tile);
    if (!args.space.state[place.row].unfinished) continue;
    const int64_t begin = place.in_row * args.tile, left = place.span.n - begin;
    by_width(args.sort, [&](auto elements) {
      using Element = std::remove_cv_t<std::remove_pointer_t<decltype(elements.input())>>;
      const Element* const from = static_cast<const Element*>(args.space.keys[0]);
#pragma unroll 8
      for (int i = threadIdx.x; i < args.tile; i += kDigits)
        if (i < left)
          elements.store(place.span.start + begin + i, from[place.span.start + begin + i], 0);
    });
  }
}

// A block a row: counts become the digits' first places, and roles are given out. `after`: the
// passes are done, in place.
__global__ void __launch_bounds__(kDigits)
    sort_plan_passes(const __grid_constant__ SweepArgs args, bool after) {
  constexpr int kEach = kDigits / 32;
  static_assert(kDigits / 32 == kMaxPasses);  // a warp a pass
  __shared__ float same[kMaxPasses];
  const int t = threadIdx.x, lane = t & 31, pass = t / 32;
  cudaGridDependencySynchronize();
  if (after) return bring_back(args);
  if (args.rest && !*args.space.left) return;
  const int64_t rows =
      args.space.totals ? (tile_count(args) ? args.space.totals[0] : 0) : row_count(args.sort);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    if (args.rest && !args.left(row)) continue;
    const uint64_t n = row_span(args.sort, row).n;
    if (pass < args.passes) {
      uint64_t* const at = args.space.counts + (row * args.passes + pass) * kDigits + lane * kEach;
      uint64_t mine[kEach], own = 0;
      float square = 0;
      bool all = false;
#pragma unroll
      for (int d = 0; d < kEach; ++d) mine[d] = at[d];
#pragma unroll
      for (int d = 0; d < kEach; ++d) {
        own += mine[d];
        const float share = static_cast<float>(mine[d]) / static_cast<float>(n);
        square += share * share;
        all |= mine[d] == n;
      }
      uint64_t sum = own;
      for (int step = 1; step < 32; step *= 2) {
        const uint64_t before = __shfl_sync(~0u, sum, lane - step);
        if (lane >= step) sum += before;
        square += __shfl_xor_sync(~0u, square, step);
      }
      sum -= own;
#pragma unroll
      for (int d = 0; d < kEach; ++d) at[d] = sum, sum += mine[d];
      all = __any_sync(~0u, all);
      if (lane == 0) same[pass] = all ? 1 : square > 0.999f ? 0.999f : square;
    }
    __syncthreads();
    if (t == 0) give_roles(args, args.space.state[row], n, same);
    __syncthreads();
  }
}

}  // namespace
}  // namespace gpuprims
