// A pass of the spread: records go to their buckets, in any order within one. Tiles need nothing
// from each other: a tile's records of a bucket take the next places there by one addition. While a
// tile is written the next one is on its way to registers.
#pragma once
#include "sort/coder.cuh"

namespace gpuprims {
namespace {

constexpr int kSpreadDigits = 1 << sort_tuning::kSpreadOnce;

// (32-bit key, 32-bit index)
using Record = uint64_t;
__device__ __forceinline__ uint32_t key_of(Record record) {
  return static_cast<uint32_t>(record >> 32);
}

struct SpreadMemory {
  static constexpr int kItems = sort_tuning::sweep_items(sizeof(Record)), kSize = kThreads * kItems;
  static constexpr int kTables = kSize * sizeof(Record);  // two in turns
  static constexpr int kOffsets = kTables + 2 * kSpreadDigits * 4;
  static constexpr int kCells = kOffsets + kSpreadDigits * 4;
  static constexpr int kBytes = kCells + kCodeCells * 4;
};

// The sum of what the threads before this one have.
__device__ __forceinline__ uint32_t sum_before(uint32_t own, uint32_t* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t before = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  return sum - own + __reduce_add_sync(~0u, lane < warp ? sums[lane] : 0);
}

// Where a pass reads tiles and what it takes for a digit.
struct SpreadPass {
  using M = SpreadMemory;
  const SweepArgs& args;
  const bool first;
  const int bits, low;

  __device__ __forceinline__ uint32_t digit(uint32_t code) const {
    if (first) return code >> (32 - bits + low);
    return code >> (32 - bits) & ((1u << low) - 1);
  }
  __device__ __forceinline__ uint32_t tiles() const {
    if (!first) return args.space.spread.state->tiles;
    return (static_cast<uint32_t>(args.sort.n) + M::kSize - 1) / M::kSize;
  }
  // Tile number `at`; none: of no records.
  __device__ __forceinline__ SpreadTile tile(uint32_t at) const {
    if (at >= tiles()) return {0, 0, 0};
    if (!first) return args.space.spread.tiles[at];
    const uint32_t begin = at * M::kSize, left = static_cast<uint32_t>(args.sort.n) - begin;
    return {begin, static_cast<uint16_t>(left < M::kSize ? left : M::kSize), 0};
  }
  // The next free places of the buckets that a tile's digits stand for.
  __device__ __forceinline__ uint32_t* places(const SpreadTile& tile) const {
    if (first && low > 0) return args.space.spread.firsts;
    return args.space.spread.starts + (static_cast<uint32_t>(tile.group) << low);
  }
  __device__ __forceinline__ Record* to() const {
    return static_cast<Record*>(args.space.keys[first && low > 0]);
  }
  // In the first pass elements as they are, in the lower half.
  __device__ __forceinline__ void load(Record (&record)[M::kItems], const SpreadTile& tile) const {
    const auto all = [&](const auto* from) {
      from += tile.begin;
      if (tile.count == M::kSize) {
        from += threadIdx.x;
#pragma unroll
        for (int i = 0; i < M::kItems; ++i) record[i] = from[i * kThreads];
        return;
      }
      const int last = tile.count > 0 ? tile.count - 1 : 0;  // stands for those that are not there
#pragma unroll
      for (int i = 0; i < M::kItems; ++i) {
        const int at = i * kThreads + threadIdx.x;
        record[i] = from[at < last ? at : last];
      }
    };
    if (first)
      all(static_cast<const uint32_t*>(args.sort.input));
    else
      all(static_cast<const Record*>(args.space.keys[1]));
  }
};

__global__ void __launch_bounds__(kThreads, sort_tuning::kBlocksPerSm)
    sort_spread(const __grid_constant__ SweepArgs args, int number, int bits, int low) {
  using M = SpreadMemory;
  __shared__ uint32_t sums[kThreads / 32];
  Record* const stage = reinterpret_cast<Record*>(dynamic_memory);
  uint32_t* const tables = reinterpret_cast<uint32_t*>(dynamic_memory + M::kTables);
  uint32_t* const offsets = reinterpret_cast<uint32_t*>(dynamic_memory + M::kOffsets);
  uint32_t* const cells = reinterpret_cast<uint32_t*>(dynamic_memory + M::kCells);
  const int t = threadIdx.x;
  static_assert(kSpreadDigits == 2 * kThreads);
  for (int i = t; i < 2 * kSpreadDigits; i += kThreads) tables[i] = 0;
  cudaGridDependencySynchronize();
  if (!args.space.spread.state->fits) return;
  load_cells(cells, *args.space.codes, kThreads);
  const Coder coder(cells, *args.space.codes);
  const Elements<uint32_t> elements{args.sort};
  const SpreadPass pass{args, number == 0, bits, low};
  Record* const to = pass.to();
  Record record[M::kItems];
  uint32_t at = blockIdx.x;
  SpreadTile tile = pass.tile(at);
  pass.load(record, tile);
  __syncthreads();
  for (int turn = 0; tile.count > 0; turn ^= 1) {
    uint32_t* const table = tables + turn * kSpreadDigits;
    at += gridDim.x;
    const SpreadTile next = pass.tile(at);
    const int left = tile.count - t;  // record i is there where i * kThreads is less
    uint32_t where[M::kItems];        // a record's digit, and its number among those of it
#pragma unroll
    for (int i = 0; i < M::kItems; ++i) {
      uint32_t key = key_of(record[i]);
      if (pass.first) {
        key = elements.key(static_cast<uint32_t>(record[i]));
        record[i] = Record{key} << 32;
      }
      const uint32_t digit = pass.digit(coder.of(key));
      where[i] = digit << 16 | atomicAdd(table + digit, i * kThreads < left ? 1u : 0u);
    }
    __syncthreads();
    const uint32_t one = table[2 * t], other = table[2 * t + 1];
    uint32_t* const places = pass.places(tile) + 2 * t;
    uint32_t to_one = 0, to_other = 0;
    if (one) to_one = atomicAdd(places, one);
    if (other) to_other = atomicAdd(places + 1, other);
    const uint32_t before = sum_before(one + other, sums);
    table[2 * t] = before, table[2 * t + 1] = before + one;
    uint32_t* const next_table = tables + (turn ^ 1) * kSpreadDigits;
    next_table[2 * t] = next_table[2 * t + 1] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < M::kItems; ++i) {
      Record mine = record[i];
      // Its digit and its place in the tile, until it is written.
      if (pass.first) mine |= (where[i] & 0xffff0000) | (i * kThreads + t);
      const uint32_t slot = table[where[i] >> 16] + (where[i] & 0xffff);
      if (i * kThreads < left) stage[slot] = mine;
    }
    offsets[2 * t] = to_one - before, offsets[2 * t + 1] = to_other - before - one;
    pass.load(record, next);
    __syncthreads();
    if (pass.first) {
#pragma unroll 2
      for (int i = t; i < tile.count; i += kThreads) {
        const Record mine = stage[i];
        const uint32_t lower = static_cast<uint32_t>(mine);
        to[offsets[lower >> 16] + static_cast<uint32_t>(i)] =
            mine >> 32 << 32 | (tile.begin + (lower & 0xffff));
      }
    } else {
#pragma unroll 2
      for (int i = t; i < tile.count; i += kThreads) {
        const Record mine = stage[i];
        to[offsets[pass.digit(coder.of(key_of(mine)))] + static_cast<uint32_t>(i)] = mine;
      }
    }
    tile = next;
  }
}

}  // namespace
}  // namespace gpuprims
