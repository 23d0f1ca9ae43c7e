// Codes: a monotone map of a row's keys to 32 bits, over which they are spread nearly equally.
#pragma once
#include "sort/sweep.cuh"

namespace gpuprims {
namespace {

constexpr int kCellBits = 10;
static_assert(kCodeCells == 1 << kCellBits);

// A row's map, its cells in shared memory.
struct Coder {
  const uint2* cells;
  uint64_t least, range;
  int shift;

  // The cell, and what is above its start in units of 2^-32 of a cell.
  static __device__ __forceinline__ uint2 cell_of(uint64_t key, uint64_t least, uint64_t range,
                                                  int shift) {
    uint64_t above = key > least ? key - least : 0;
    above = above < range ? above : range;
    const uint32_t top = static_cast<uint32_t>(above << shift >> 32);
    return make_uint2(top >> (32 - kCellBits), top << kCellBits);
  }
  static __device__ __forceinline__ uint2 cell_of(uint32_t key, uint32_t least, uint32_t range,
                                                  int shift) {
    uint32_t above = key > least ? key - least : 0;
    above = above < range ? above : range;
    const uint32_t top = above << (shift - 32);
    return make_uint2(top >> (32 - kCellBits), top << kCellBits);
  }

  template <class Word>
  __device__ __forceinline__ uint32_t of(Word key) const {
    const uint2 at = cell_of(key, static_cast<Word>(least), static_cast<Word>(range), shift);
    const uint2 line = cells[at.x];
    return line.x + __umulhi(at.y, line.y);
  }
};

// All threads; the cells may be used after the next barrier.
__device__ __forceinline__ void load_cells(uint2* to, const CodeTable& table, int threads) {
  const uint4* const from = reinterpret_cast<const uint4*>(table.cells);
  for (int i = threadIdx.x; i < kCodeCells / 2; i += threads)
    reinterpret_cast<uint4*>(to)[i] = from[i];
}

constexpr int kSampleThreads = 1024, kSampleItems = 16;
constexpr int kSeenSlots = kSampleThreads * kSampleItems;
constexpr int kFineBins = 4096;
constexpr int kSampleBytes = (kSeenSlots + kFineBins) * 4 + kCodeCells * 8;
static_assert(kSampleThreads == kCodeCells);

// A block a row: makes the row's map, and looks whether it will do: not where many keys are equal,
// or where cells are too coarse for the keys.
__global__ void __launch_bounds__(kSampleThreads)
    sort_sample(const __grid_constant__ SweepArgs args, int samples) {
  uint2* const cells = reinterpret_cast<uint2*>(dynamic_memory);
  uint32_t* const seen = reinterpret_cast<uint32_t*>(cells + kCodeCells);
  uint32_t* const bins = seen + kSeenSlots;
  __shared__ unsigned long long ends[2][32];
  __shared__ uint32_t sums[32], twice, crowded;
  const int t = threadIdx.x, lane = t & 31;
  cudaGridDependencySynchronize();
  for (int64_t row = blockIdx.x; row < args.sort.rows; row += gridDim.x) {
    const RowSpan span = row_span(args.sort, row);
    const int64_t stride = span.n / samples;
    __syncthreads();
    for (int i = t; i < kSeenSlots; i += kSampleThreads) seen[i] = 0;
    for (int i = t; i < kFineBins; i += kSampleThreads) bins[i] = 0;
    if (t == 0) twice = 0, crowded = 0;
    uint64_t keys[kSampleItems], least = ~uint64_t{0}, most = 0;
    by_width(args.sort, [&](auto elements) {
      if constexpr (sizeof(*elements.input()) >= 4) {
        std::remove_cv_t<std::remove_pointer_t<decltype(elements.input())>> raw[kSampleItems];
#pragma unroll
        for (int i = 0; i < kSampleItems; ++i) {
          const uint32_t number = i * kSampleThreads + t;
          const uint32_t mixed = (number + 1) * 0x9e3779b1u;
          const int64_t at = number * stride + (uint64_t{mixed ^ mixed >> 15} * stride >> 32);
          raw[i] = number < samples ? elements.input()[span.start + at] : 0;
        }
#pragma unroll
        for (int i = 0; i < kSampleItems; ++i) {
          keys[i] = elements.key(raw[i]);
          if (i * kSampleThreads + t >= samples) continue;
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
    if (lane == 0) ends[0][t / 32] = least, ends[1][t / 32] = most;
    __syncthreads();
    for (int w = 0; w < 32; ++w) {
      least = ends[0][w] < least ? ends[0][w] : least;
      most = ends[1][w] > most ? ends[1][w] : most;
    }
    // Keys that the sample missed lie a little outside.
    const uint64_t top = ~uint64_t{0} >> (64 - args.sort.bytes * 8), more = (most - least) / 32 + 1;
    least = least > more ? least - more : 0;
    most = top - most > more ? most + more : top;
    const uint64_t range = most - least;
    const int shift = __clzll(static_cast<long long>(range));
    uint32_t equal = 0;
#pragma unroll
    for (int i = 0; i < kSampleItems; ++i) {
      if (i * kSampleThreads + t >= samples) continue;
      atomicAdd(bins + Coder::cell_of(keys[i], least, range, shift).x, 1u);
      const uint64_t mixed = (keys[i] + 1) * 0x9e3779b97f4a7c15u;
      const uint32_t mark = static_cast<uint32_t>(mixed >> 20) | 1;
      equal += atomicExch(seen + (mixed >> 50), mark) == mark;
    }
    static_assert(kSeenSlots == 1 << 14);
    equal = __reduce_add_sync(~0u, equal);
    if (lane == 0) atomicAdd(&twice, equal);
    __syncthreads();
    // Neighbours share; no cell is left without a rise.
    const uint32_t before = t > 0 ? bins[t - 1] : 0, after = t + 1 < kCodeCells ? bins[t + 1] : 0;
    const uint32_t weight = 64 * (before + 2 * bins[t] + after) + 13;
    uint32_t sum = weight;
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_sync(~0u, sum, lane - step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) sums[t / 32] = sum;
    __syncthreads();
    uint32_t all = 0;
    for (int w = 0; w < 32; ++w) {
      if (w < t / 32) sum += sums[w];
      all += sums[w];
    }
    const double scale = 4294967295.0 / all;
    const uint32_t start = static_cast<uint32_t>((sum - weight) * scale);
    const uint2 line = make_uint2(start, static_cast<uint32_t>(sum * scale) - start);
    cells[t] = line;
    for (int i = t; i < kFineBins; i += kSampleThreads) bins[i] = 0;
    __syncthreads();
    const Coder coder{cells, least, range, shift};
    const int fine = __clz(samples) + 3;  // four samples a bin, or more
#pragma unroll
    for (int i = 0; i < kSampleItems; ++i)
      if (i * kSampleThreads + t < samples) atomicAdd(bins + (coder.of(keys[i]) >> fine), 1u);
    __syncthreads();
    uint32_t most_in_bin = 0;
    for (int i = t; i < kFineBins; i += kSampleThreads)
      most_in_bin = bins[i] > most_in_bin ? bins[i] : most_in_bin;
    if (most_in_bin > (samples * 6u >> (32 - fine))) crowded = 1;
    __syncthreads();
    CodeTable& table = args.space.codes[row];
    table.cells[t] = line;
    if (t == 0) {
      // Keys that sixteen others are equal to are one pair in so many samples.
      const int64_t pairs = 8 * int64_t{samples} * samples / span.n;
      table.least = least, table.range = range, table.shift = shift;
      table.fit = !crowded && twice <= pairs + 3;
      if (!table.fit) {
        args.space.state[row].unfinished = 1;
        *args.space.repeat = 1;
      }
    }
  }
}

}  // namespace
}  // namespace gpuprims
