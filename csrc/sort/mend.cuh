// After the first round of 8-byte keys: keys that agree from bit `window` up stand together, in the
// order of the input. Where such a run is short, whoever finds its start sorts it in place; where
// it is long and out of order, the row is left to the second round. This also looks whether the
// passes did what they should: their ranks were optimistic.
#pragma once
#include "sort/sweep.cuh"

namespace gpuprims {
namespace {

constexpr int kMendThreads = 256, kMendBlocksPerSm = 4;
constexpr int kLongestRun = 32;

struct MendedRow {
  const SweepArgs& args;
  int64_t start, n;
  int window;

  __device__ __forceinline__ uint64_t* values() const {
    return static_cast<uint64_t*>(args.sort.values) + start;
  }
  __device__ __forceinline__ uint64_t key(int64_t i) const {
    return args.sort.order64.encode(values()[i]);
  }
  __device__ __forceinline__ uint64_t upper(int64_t i) const { return key(i) >> window; }
  __device__ __forceinline__ int64_t index(int64_t i) const {
    if (!args.sort.indices) return i;
    return args.sort.wide_index ? static_cast<const int64_t*>(args.sort.indices)[start + i]
                                : static_cast<const int32_t*>(args.sort.indices)[start + i];
  }
  // Elements i and j, i before j, are in the wrong order.
  __device__ __forceinline__ bool wrong(uint64_t before, int64_t i, uint64_t after,
                                        int64_t j) const {
    return before > after || (args.sort.indices && before == after && index(i) > index(j));
  }

  // The end of the run that starts at i, or of its first kLongestRun + 1 elements.
  __device__ __forceinline__ int64_t run_end(int64_t i, uint64_t same) const {
    int64_t end = i + 1;
    while (end < n && end - i <= kLongestRun && upper(end) == same) ++end;
    return end;
  }

  __device__ __noinline__ void mend_several(int64_t first) const {
    const int64_t end = run_end(first, upper(first));
    if (end - first > kLongestRun) return;
    for (int64_t i = first + 1; i < end; ++i) {
      const uint64_t value = values()[i], mine = key(i);
      const int64_t from = index(i);
      int64_t to = i;
      for (; to > first; --to) {
        const uint64_t before = key(to - 1);
        if (before < mine || (before == mine && (!args.sort.indices || index(to - 1) < from)))
          break;
        values()[to] = values()[to - 1];
        if (args.sort.indices) store_index(args.sort, start + to, index(to - 1));
      }
      if (to == i) continue;
      values()[to] = value;
      if (args.sort.indices) store_index(args.sort, start + to, from);
    }
  }

  // Whether element i is in a run too long to mend; nobody changes the windows of elements.
  __device__ __noinline__ bool in_long_run(int64_t i) const {
    const uint64_t same = upper(i);
    int64_t first = i;
    while (first > 0 && i - first < kLongestRun && upper(first - 1) == same) --first;
    return run_end(first, same) - first > kLongestRun;
  }

  // Whether element i can be in a run too long to mend: one reaches that far to one side.
  __device__ __forceinline__ bool has_far_kin(int64_t i, uint64_t same) const {
    constexpr int kFar = kLongestRun / 2;
    return (i >= kFar && upper(i - kFar) == same) || (i + kFar < n && upper(i + kFar) == same);
  }

  // Elements i and i + 1 agree in the window. Sorts their run if it starts here; true if the run is
  // out of order and too long. Most runs have two elements, nearly all no more than kFew: all about
  // those is read at once, as whoever reads step by step is waited for by all others.
  __device__ __forceinline__ bool look(int64_t i) const {
    constexpr int kFew = 4;
    const auto& order = args.sort.order64;
    uint64_t value[kFew + 1], key[kFew + 1];
#pragma unroll
    for (int b = 0; b <= kFew; ++b) value[b] = i + b < n ? values()[i + b] : 0;
    const uint64_t before = i > 0 ? values()[i - 1] : 0;
#pragma unroll
    for (int b = 0; b <= kFew; ++b) key[b] = order.encode(value[b]);
    const uint64_t same = key[0] >> window;
    const bool first = i == 0 || order.encode(before) >> window != same;
    int count = 1;  // of the run; more than kFew: longer
    bool rises = true;
#pragma unroll
    for (int b = 1; b <= kFew; ++b) {
      if (count < b || i + b >= n || key[b] >> window != same) continue;
      count = b + 1;
      rises &= key[b - 1] < key[b];
    }
    if (!first || count > kFew) {
      const bool swapped = wrong(key[0], i, key[1], i + 1);
      const bool long_run = swapped && has_far_kin(i, same) && in_long_run(i);
      if (first) mend_several(i);
      return long_run;
    }
    if (!rises) sort_few(i, value, key, count);
    return false;
  }

 private:
  template <int kValues>
  __device__ __forceinline__ void sort_few(int64_t i, uint64_t (&value)[kValues],
                                           uint64_t (&key)[kValues], int count) const {
    constexpr int kFew = kValues - 1;
    int64_t from[kFew];
#pragma unroll
    for (int b = 0; b < kFew; ++b) from[b] = b < count ? index(i + b) : 0;
#pragma unroll
    for (int a = 1; a < kFew; ++a) {
#pragma unroll
      for (int b = a; b > 0; --b) {
        if (a >= count || key[b - 1] < key[b]) continue;
        if (key[b - 1] == key[b] && from[b - 1] <= from[b]) continue;
        const uint64_t v = value[b], k = key[b];
        const int64_t f = from[b];
        value[b] = value[b - 1], key[b] = key[b - 1], from[b] = from[b - 1];
        value[b - 1] = v, key[b - 1] = k, from[b - 1] = f;
      }
    }
#pragma unroll
    for (int b = 0; b < kFew; ++b) {
      if (b >= count) continue;
      values()[i + b] = value[b];
      if (args.sort.indices) store_index(args.sort, start + i + b, from[b]);
    }
  }
};

// Starts of runs are listed first, so that a warp does not wait for the one run that it has.
__global__ void __launch_bounds__(kMendThreads, kMendBlocksPerSm)
    sort_mend(const __grid_constant__ SweepArgs args) {
  constexpr int kTogether = 4, kRoom = 1024;
  __shared__ uint32_t listed[kRoom];
  __shared__ uint32_t count;
  cudaGridDependencySynchronize();
  if (args.rest && !*args.space.left) return;
  const int64_t tiles = tile_count(args);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const TilePlace place = tile_place(args, tile);
    RowState& state = args.space.state[place.row];
    if (state.window == 0) continue;
    const MendedRow row{args, place.span.start, place.span.n, static_cast<int>(state.window)};
    const int64_t begin = place.in_row * args.tile;
    // Pairs of neighbours: the last element of a row has none behind it.
    const int64_t end = begin + args.tile < row.n - 1 ? begin + args.tile : row.n - 1;
    bool failed = false;
    __syncthreads();
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    for (int64_t i = begin + threadIdx.x; i < end; i += kTogether * kMendThreads) {
      uint64_t mine[kTogether], after[kTogether];
#pragma unroll
      for (int b = 0; b < kTogether; ++b) {
        const int64_t at = i + b * kMendThreads;
        mine[b] = at < end ? row.values()[at] : 0;
        after[b] = at < end ? row.values()[at + 1] : 0;
      }
#pragma unroll
      for (int b = 0; b < kTogether; ++b) {
        const int64_t at = i + b * kMendThreads;
        const uint64_t key = args.sort.order64.encode(mine[b]),
                       next = args.sort.order64.encode(after[b]);
        const uint64_t same = key >> row.window;
        if (at >= end || same < next >> row.window) continue;
        failed |= same > next >> row.window;
        const uint32_t slot = atomicAdd(&count, 1u);
        if (slot < kRoom)
          listed[slot] = static_cast<uint32_t>(at - begin);
        else
          failed |= row.look(at);
      }
    }
    __syncthreads();
    for (uint32_t l = threadIdx.x; l < count && l < kRoom; l += kMendThreads)
      failed |= row.look(begin + listed[l]);
    if (failed) {
      state.unfinished = 1;
      *args.space.repeat = 1;
    }
  }
}

}  // namespace
}  // namespace gpuprims
