// Where a row of 4-byte keys is cut into parts of nearly equal size: quantiles of a sample, found
// by counting it twice, in cells of equal width and in finer ones within those where the cuts lie.
#pragma once
#include "sort/buckets.cuh"
#include "sort/sweep.cuh"

namespace gpuprims {
namespace {

struct Splitter {
  static constexpr int kThreads = 1024, kItems = 8,  // a sector each
      kSamples = kThreads * kItems;
  static constexpr int kCells = 2048, kCellsEach = kCells / kThreads, kFine = 256;
  static constexpr int kSlots = 8192;
  static constexpr int kBytes = (kCells + kSlots + kMaxParts * kFine) * 4;
  static_assert(kSamples == sort_tuning::kSplitSamples && kMaxParts <= kThreads / 32);
};

// A cut between keys that count as equal (zeros, NaNs) goes below them.
__device__ __forceinline__ uint32_t sound_cut(uint32_t cut, const OrderParams<uint32_t>& order) {
  if (!order.float_mask) return cut;
  const uint32_t zero = order.encode(0), other = order.encode(order.sign);
  if (cut == (zero > other ? zero : other)) return cut - 1;
  const uint32_t nan = order.encode(order.infinity + 1);  // the one next to the numbers
  return order.invert ? (cut <= nan ? 0 : cut) : cut > nan ? nan : cut;
}

// A block a row. Blocks from number `samplers` on clear the workspace.
__global__ void __launch_bounds__(Splitter::kThreads, 2)
    sort_split(const __grid_constant__ SweepArgs args, int parts, int samplers, int64_t clear) {
  using S = Splitter;
  uint32_t* const cells = reinterpret_cast<uint32_t*>(dynamic_memory);
  uint32_t* const seen = cells + S::kCells;
  uint32_t* const fine = seen + S::kSlots;  // [kMaxParts][kFine]
  __shared__ uint32_t ends[2][32], sums[32], twice, trend;
  __shared__ uint32_t cell_of[kMaxParts], group_of[kMaxParts], need[kMaxParts];  // of each cut
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  constexpr int kWarps = S::kThreads / 32;
  if (static_cast<int>(blockIdx.x) >= samplers) {
    uint4* const memory = static_cast<uint4*>(args.space.status);
    for (int64_t i = static_cast<int64_t>(blockIdx.x - samplers) * S::kThreads + t; i < clear;
         i += static_cast<int64_t>(gridDim.x - samplers) * S::kThreads)
      memory[i] = make_uint4(0, 0, 0, 0);
    return;
  }
  OrderParams<uint32_t> order = args.sort.order32;
  order.lossless = true;
  for (int64_t row = blockIdx.x; row < args.sort.rows; row += samplers) {
    const RowSpan span = row_span(args.sort, row);
    const uint32_t* const from = static_cast<const uint32_t*>(args.sort.input) + span.start;
    const uint32_t stride = static_cast<uint32_t>(span.n) / S::kThreads;
    __syncthreads();
    for (int i = t; i < S::kBytes / 16; i += S::kThreads)
      reinterpret_cast<uint4*>(cells)[i] = make_uint4(0, 0, 0, 0);
    if (t == 0) twice = trend = 0;
    uint32_t keys[S::kItems], least = ~0u, most = 0;
    bool falls = false, rises = false;
    {
      const uint32_t mixed = (t + 1) * 0x9e3779b1u;
      uint32_t at = t * stride + __umulhi(mixed ^ mixed >> 15, stride - (S::kItems - 1));
      const uint32_t over = reinterpret_cast<uintptr_t>(from + at) / 4 % S::kItems;
      at = over <= at ? at - over : at + S::kItems - over;  // a whole sector
#pragma unroll
      for (int i = 0; i < S::kItems; ++i) keys[i] = from[at + i];
    }
#pragma unroll
    for (int i = 0; i < S::kItems; ++i) {
      keys[i] = order.encode(keys[i]);
      least = keys[i] < least ? keys[i] : least;
      most = keys[i] > most ? keys[i] : most;
      if (i > 0) falls |= keys[i]<keys[i - 1], rises |= keys[i]> keys[i - 1];
    }
    least = warp_least(least), most = ~warp_least(~most);
    if (lane == 0) ends[0][warp] = least, ends[1][warp] = most;
    falls = __any_sync(~0u, falls), rises = __any_sync(~0u, rises);
    __syncthreads();
    least = warp_least(ends[0][lane % kWarps]), most = ~warp_least(~ends[1][lane % kWarps]);
    const int shift = __clz(static_cast<int>((most - least) | 1));
    uint32_t equal = 0;
#pragma unroll
    for (int i = 0; i < S::kItems; ++i) {
      keys[i] -= least;
      atomicAdd(cells + (keys[i] << shift >> 21), 1u);
      equal += atomicExch(seen + (keys[i] * 0x9e3779b1u >> 19), ~keys[i]) == ~keys[i];
    }
    equal = __reduce_add_sync(~0u, equal);
    if (lane == 0 && equal) atomicAdd(&twice, equal);
    if (lane == 0) atomicOr(&trend, (falls ? 1u : 0u) | (rises ? 2u : 0u));
    __syncthreads();
    // The cells in which the cuts lie; each of them is a group of finer ones.
    uint32_t own[S::kCellsEach], sum = 0;
#pragma unroll
    for (int c = 0; c < S::kCellsEach; ++c) sum += own[c] = cells[t * S::kCellsEach + c];
    const uint32_t mine = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t before = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += before;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    sum += __reduce_add_sync(~0u, lane < warp ? sums[lane] : 0) - mine;
#pragma unroll
    for (int c = 0; c < S::kCellsEach; ++c) {
      uint32_t group = 0;
      int j =
          static_cast<int>((sum * parts + S::kSamples - 1) / S::kSamples);  // the first at `sum`
      for (; j < parts; ++j) {
        const uint32_t wanted = static_cast<uint32_t>(j) * S::kSamples / parts;
        if (wanted >= sum + own[c]) break;
        if (j == 0) continue;
        if (group == 0) group = j;
        cell_of[j] = t * S::kCellsEach + c, group_of[j] = group, need[j] = wanted - sum;
      }
      cells[t * S::kCellsEach + c] = group;
      sum += own[c];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < S::kItems; ++i) {
      const uint32_t place = keys[i] << shift, group = cells[place >> 21];
      if (group) atomicAdd(fine + group * S::kFine + (place >> 13 & 255), 1u);
    }
    __syncthreads();
    RowSplit& split = args.space.splits[row];
    if (warp > 0 && warp < parts) {
      const uint32_t* const counts = fine + group_of[warp] * S::kFine + lane * (S::kFine / 32);
      uint32_t before = 0;
      for (int c = 0; c < S::kFine / 32; ++c) before += counts[c];
      const uint32_t all = before;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, before, step);
        if (lane >= step) before += other;
      }
      uint32_t left = need[warp] - (before - all);  // wraps where it is an earlier lane's
      for (int c = 0; left < all && c < S::kFine / 32; ++c) {
        if (left < counts[c]) {
          const uint32_t place =
              cell_of[warp] << 21 | (lane * (S::kFine / 32) + c) << 13 | left * 8192 / counts[c];
          split.first[warp] = sound_cut(least + (place >> shift), order);
          break;
        }
        left -= counts[c];
      }
    }
    if (t > 0) continue;
    split.first[0] = 0;
    // Keys that eight others are equal to make this many pairs in the sample.
    const int64_t pairs = int64_t{4} * S::kSamples * S::kSamples / span.n;
    split.usable = twice <= pairs && trend == 3;  // others only copy what is in order
  }
}

}  // namespace
}  // namespace gpuprims
