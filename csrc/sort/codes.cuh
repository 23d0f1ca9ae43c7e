// Rows by codes: the sample that makes a row's map (coder.cuh), and which rows have one.
#pragma once
#include "sort/coder.cuh"

namespace gpuprims {
namespace {

// Whether a row is sorted by codes; known after the counting.
__device__ __forceinline__ bool coded(const SweepArgs& args, int64_t row) {
  const RowState& state = args.space.state[row];
  return args.space.codes[row].scale && state.not_sorted && state.not_reversed;
}

constexpr int kLeastRise = 4;     // of a cell, of 65,536
constexpr int kSampleItems = 16;  // a thread, at most
constexpr uint64_t kEndCells = 192;

// A power of two.
constexpr int sample_slots(int samples) {
  int slots = 1024;
  while (slots < samples) slots *= 2;
  return slots;
}
constexpr int sample_bytes(int samples) {
  return (sample_slots(samples) + sample_slots(samples) / 4 + 2 * kCodeCells) * 4;
}

// A block a row: makes the row's map, and looks whether it will do: not where many keys are equal,
// or where cells are too coarse for the keys. Blocks from number `samplers` on clear the workspace.
// `ends`: the map goes on for the span of the sample's keys divided by this, to both sides; 0: for
// kEndCells, and the sample's ends are nearly where cells end, as keys may be dense up to there.
__global__ void __launch_bounds__(1024)
    sort_sample(const __grid_constant__ SweepArgs args, int samples, int slots, int samplers,
                int64_t clear, int ends) {
  uint32_t* const cells = reinterpret_cast<uint32_t*>(dynamic_memory);
  uint32_t* const counts = cells + kCodeCells;
  uint32_t* const seen = counts + kCodeCells;
  uint32_t* const bins = seen + slots;  // slots / 4
  __shared__ unsigned long long bounds[2][32];
  __shared__ uint32_t sums[32], twice, crowded, trend;
  const int t = threadIdx.x, lane = t & 31, threads = blockDim.x, warps = threads / 32;
  if (static_cast<int>(blockIdx.x) >= samplers) {
    uint4* const memory = static_cast<uint4*>(args.space.status);
    for (int64_t i = static_cast<int64_t>(blockIdx.x - samplers) * threads + t; i < clear;
         i += static_cast<int64_t>(gridDim.x - samplers) * threads)
      memory[i] = make_uint4(0, 0, 0, 0);
    return;
  }
  for (int64_t row = blockIdx.x; row < args.sort.rows; row += samplers) {
    const RowSpan span = row_span(args.sort, row);
    const int64_t stride = span.n / samples;
    __syncthreads();
    for (int i = t; i < kCodeCells + slots + slots / 4; i += threads) counts[i] = 0;
    if (t == 0) twice = 0, crowded = 0, trend = 0;
    bool falls = false, rises = false;
    uint64_t keys[kSampleItems], least = ~uint64_t{0}, most = 0;
    by_width(args.sort, [&](auto elements) {
      if constexpr (sizeof(*elements.input()) >= 4) {
        std::remove_cv_t<std::remove_pointer_t<decltype(elements.input())>> raw[kSampleItems];
#pragma unroll
        for (int i = 0; i < kSampleItems; ++i) {
          const uint32_t number = i * threads + t;
          const uint32_t mixed = (number + 1) * 0x9e3779b1u;
          const int64_t at = number * stride + (uint64_t{mixed ^ mixed >> 15} * stride >> 32);
          raw[i] = static_cast<int>(number) < samples ? elements.input()[span.start + at] : 0;
        }
#pragma unroll
        for (int i = 0; i < kSampleItems; ++i) {
          if (i * threads >= samples) break;
          keys[i] = elements.key(raw[i]);
          const uint64_t before = __shfl_up_sync(~0u, static_cast<unsigned long long>(keys[i]), 1);
          if (i * threads + t >= samples) continue;
          falls |= keys[i]<before, rises |= keys[i]> before;
          least = keys[i] < least ? keys[i] : least;
          most = keys[i] > most ? keys[i] : most;
        }
      }
    });
#pragma unroll 1
    for (int mask = 1; mask < 32; mask *= 2) {
      const uint64_t l = __shfl_xor_sync(~0u, static_cast<unsigned long long>(least), mask);
      const uint64_t m = __shfl_xor_sync(~0u, static_cast<unsigned long long>(most), mask);
      least = l < least ? l : least;
      most = m > most ? m : most;
    }
    if (lane == 0) bounds[0][t / 32] = least, bounds[1][t / 32] = most;
    __syncthreads();
    for (int w = 0; w < warps; ++w) {
      least = bounds[0][w] < least ? bounds[0][w] : least;
      most = bounds[1][w] > most ? bounds[1][w] : most;
    }
    // Keys that the sample missed lie outside.
    const uint64_t top = ~uint64_t{0} >> (64 - args.sort.bytes * 8);
    if (ends) {
      const uint64_t more = (most - least) / ends + 1;
      least = least > more ? least - more : 0;
      most = top - most > more ? most + more : top;
    } else {
      // Both ends a 32nd of a cell from where cells end.
      constexpr uint64_t kInner = (kCodeCells - 2 * kEndCells) * 16 - 1;
      const uint64_t cell = (most - least) * 16 / kInner + 1;
      const uint64_t begin = least > cell / 32 ? least - cell / 32 : 0, before = begin / cell;
      least = before ? begin - (before < kEndCells ? before : kEndCells) * cell : 0;
      most = least + kCodeCells * cell - 1;
      if (most - least > top) most = top;
    }
    const Coder::Map map = Coder::map_of(least, most);
    const Coder coder(cells, map);
    const uint32_t seen_trend = __any_sync(~0u, falls) | __any_sync(~0u, rises) * 2;
    if (lane == 0 && seen_trend) atomicOr(&trend, seen_trend);
    uint32_t equal = 0;
    // Little code: one block runs it once, and waits for what is not in a cache.
#pragma unroll 2
    for (int i = 0; i < kSampleItems; ++i) {
      if (i * threads >= samples) break;
      if (i * threads + t >= samples) continue;
      atomicAdd(counts + Coder::cell(coder.place(keys[i])), 1u);
      const uint64_t mixed = (keys[i] + 1) * 0x9e3779b97f4a7c15u;
      const uint32_t mark = static_cast<uint32_t>(mixed >> 16) | 1;
      equal += atomicExch(seen + (mixed >> 40 & (slots - 1)), mark) == mark;
    }
    equal = __reduce_add_sync(~0u, equal);
    if (lane == 0 && equal) atomicAdd(&twice, equal);
    __syncthreads();
    // Neighbours share, and a cell that the sample missed has some rise too.
    const int each = kCodeCells / threads, first = t * each;
    const auto weight = [&](int c) {
      return (c > 0 ? counts[c - 1] : 0) + 2 * counts[c] + (c + 1 < kCodeCells ? counts[c + 1] : 0);
    };
    uint32_t own = 0;
    for (int c = first; c < first + each; ++c) own += weight(c);
    uint32_t sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_sync(~0u, sum, lane - step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) sums[t / 32] = sum;
    __syncthreads();
    uint32_t all = 0;
    for (int w = 0; w < warps; ++w) {
      if (w < t / 32) sum += sums[w];
      all += sums[w];
    }
    sum -= own;
    CodeTable& table = args.space.codes[row];
    const double unit = (65536 - kLeastRise * kCodeCells) / static_cast<double>(all);
    for (int c = first; c < first + each; ++c) {
      const uint32_t start = kLeastRise * c + static_cast<uint32_t>(sum * unit);
      sum += weight(c);
      const uint32_t line =
          start << 16 | (kLeastRise * (c + 1) + static_cast<uint32_t>(sum * unit) - start);
      cells[c] = line;
      table.cells[c] = line;
    }
    __syncthreads();
    const int fine = __clz(samples) + 3;  // four samples a bin, or more
#pragma unroll 2
    for (int i = 0; i < kSampleItems; ++i) {
      if (i * threads >= samples) break;
      if (i * threads + t < samples) atomicAdd(bins + (coder.of(keys[i]) >> fine), 1u);
    }
    __syncthreads();
    uint32_t most_in_bin = 0;
    for (int i = t; i < slots / 4; i += threads)
      most_in_bin = bins[i] > most_in_bin ? bins[i] : most_in_bin;
    // Buckets are counted before anything is moved: there the limit spares counting in vain.
    if (most_in_bin > (samples * (ends ? 4u : 8u) >> (32 - fine))) crowded = 1;
    __syncthreads();
    if (t > 0) continue;
    // Keys that sixteen others are equal to make this many pairs in a sample.
    const int64_t pairs = 8 * static_cast<int64_t>(samples) * samples / span.n;
    table.least = map.least, table.range = map.range, table.shift = map.shift;
    const bool unordered = ends || trend == 3;  // where buckets are counted, not for nothing
    table.scale = unordered && !crowded && twice <= pairs + 3 ? map.scale : 0;
  }
}

}  // namespace
}  // namespace gpuprims
