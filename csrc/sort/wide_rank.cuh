// Optimistic ranks (sort/tile.cuh) by digits of 11 bits: three passes for 32-bit keys where 8 bits
// take four. A table has 2,048 counts of 16 bits, two a word, so that those of 32 warps fill the
// 128 KiB that the largest tile's 4-byte keys leave while they are in registers; smaller tiles
// would pay more for the tables than they save.
#pragma once
#include "sort/tile.cuh"

namespace gpuprims {
namespace {

template <class T>
struct WideRank {
  static constexpr int kBits = 11;
  static constexpr int kWords = 1 << (kBits - 1);  // of a table
  static constexpr bool kServes =
      T::kThreads == kWords && T::kSize <= 32768 && T::stage_bytes(4) >= T::kTables * kWords * 4;

  const T& tile;

  static __device__ __forceinline__ uint32_t count_in(uint32_t word, uint32_t digit) {
    return digit & 1 ? word >> 16 : word & 0xffff;
  }

  // As T::rank.
  __device__ __forceinline__ void rank(typename T::Ranks& rank, const uint32_t (&keys)[T::kItems],
                                       int count, Digit digit) const {
    uint32_t* const tables = reinterpret_cast<uint32_t*>(tile.stage);
    uint32_t* const table = tables + threadIdx.x / 32 * kWords;
    const int mine = count - T::place(0);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < T::kTables / 4; ++i)
      reinterpret_cast<uint4*>(tables)[i * kWords + threadIdx.x] = make_uint4(0, 0, 0, 0);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < T::kItems; ++i) {
      const uint32_t d = digit.of(keys[i]);
      uint32_t before = T::place(i);
      if (i * 32 < mine) before = count_in(atomicAdd(table + (d >> 1), d & 1 ? 0x10000u : 1u), d);
      rank.set(i, before);
      __syncwarp();
    }
    __syncthreads();
    start_digits(tables + threadIdx.x);
    __syncthreads();
    digit.low = opaque(digit.low);
#pragma unroll
    for (int i = 0; i < T::kItems; ++i) {
      const uint32_t d = digit.of(keys[i]);
      if (i * 32 < mine) rank.add(i, count_in(table[d >> 1], d));
    }
    __syncthreads();
  }

 private:
  // Counts become the ranks of the first record of a table's digit; a thread has two digits. No
  // half of a word runs over: it counts 32,768 records at most.
  __device__ __forceinline__ void start_digits(uint32_t* column) const {
    const int t = threadIdx.x, lane = t & 31;
    uint32_t total = 0;
#pragma unroll 8
    for (int g = 0; g < T::kTables; ++g) total += column[g * kWords];
    const uint32_t own = (total & 0xffff) + (total >> 16);
    uint32_t sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t before = __shfl_sync(~0u, sum, lane - step);
      if (lane >= step) sum += before;
    }
    uint32_t* const sums = tile.starts;
    if (lane == 31) sums[t / 32] = sum;
    __syncthreads();
    uint32_t warps = lane < t / 32 ? sums[lane] : 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) warps += __shfl_xor_sync(~0u, warps, step);
    sum += warps - own;
    uint32_t place = sum | (sum + (total & 0xffff)) << 16;
#pragma unroll 8
    for (int g = 0; g < T::kTables; ++g) {
      const uint32_t found = column[g * kWords];
      column[g * kWords] = place;
      place += found;
    }
  }
};

}  // namespace
}  // namespace gpuprims
