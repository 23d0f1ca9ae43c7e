// The first read of the sweep: counts of every digit of the keys, and whether a row is sorted.
#pragma once
#include "sort/sweep.cuh"

namespace gpuprims {
namespace {

constexpr int kCountThreads = 512, kCountBlocksPerSm = 2;

// What the keys of a row's part say about its order.
struct Trend {
  bool falls = false, rises = false;

  template <class Word>
  __device__ __forceinline__ void look(Word before, Word key, bool keys_alone) {
    falls |= key < before;
    rises |= keys_alone ? key > before : key >= before;
  }
  __device__ __forceinline__ bool settled() const { return falls && rises; }
  __device__ __forceinline__ void tell(RowState& state) const {
    if (__any_sync(~0u, falls) && threadIdx.x % 32 == 0) state.not_sorted = 1;
    if (__any_sync(~0u, rises) && threadIdx.x % 32 == 0) state.not_reversed = 1;
  }
};

// Counts the keys of elements `begin` to `stop` of a row, in whole vectors where they are aligned,
// and looks at their order.
template <class Key, class Word, int kThreads = kCountThreads, class Encode, class Count>
__device__ __forceinline__ void read_span(const Key* row, int64_t begin, int64_t stop,
                                          bool keys_alone, const Encode& encode, const Count& count,
                                          Trend& trend) {
  constexpr int kEach = 16 / sizeof(Key), kVectors = 4;
  const int t = threadIdx.x, lane = t & 31;
  const auto one = [&](int64_t i) {
    const Word key = encode(row[i]);
    if (i > 0) trend.look(Word{encode(row[i - 1])}, key, keys_alone);
    count(key);
  };
  int64_t from = (16 - reinterpret_cast<uintptr_t>(row + begin) % 16) % 16 / sizeof(Key) + begin;
  if (from > stop) from = stop;
  const int64_t vectors = (stop - from) / kEach;
  if (begin + t < from) one(begin + t);
  if (from + vectors * kEach + t < stop) one(from + vectors * kEach + t);
  for (int64_t v = 0; v < vectors; v += kVectors * kThreads) {
    uint4 raw[kVectors];
#pragma unroll
    for (int b = 0; b < kVectors; ++b) {
      const int64_t at = v + b * kThreads + t;
      raw[b] =
          at < vectors ? reinterpret_cast<const uint4*>(row + from)[at] : make_uint4(0, 0, 0, 0);
    }
    const bool look = __any_sync(~0u, !trend.settled());
#pragma unroll
    for (int b = 0; b < kVectors; ++b) {
      const int64_t at = v + b * kThreads + t;
      const uint32_t word[4] = {raw[b].x, raw[b].y, raw[b].z, raw[b].w};
      Word keys[kEach];
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if constexpr (sizeof(Key) == 8)
          keys[e] = encode(static_cast<uint64_t>(word[2 * e + 1]) << 32 | word[2 * e]);
        else
          keys[e] =
              encode(static_cast<Key>(word[e * sizeof(Key) / 4] >> (e * sizeof(Key) % 4 * 8)));
      }
      if (look) {
        Word before = __shfl_sync(~0u, keys[kEach - 1], lane - 1);
        const int64_t i = from + at * kEach;
        if (at < vectors) {
          if (lane == 0 && i > 0) before = encode(row[i - 1]);
          if (i > 0) trend.look(before, keys[0], keys_alone);
#pragma unroll
          for (int e = 1; e < kEach; ++e) trend.look(keys[e - 1], keys[e], keys_alone);
        }
      }
      if (at >= vectors) continue;
#pragma unroll
      for (int e = 0; e < kEach; ++e) count(keys[e]);
    }
  }
}

template <class Key, class Word>
__device__ __forceinline__ void count_digits(const SweepArgs& args, const OrderParams<Word>& order,
                                             uint32_t (&counts)[sizeof(Key)][kDigits]) {
  constexpr int kThreads = kCountThreads, kPasses = sizeof(Key);
  const int t = threadIdx.x;
  for (int i = t; i < kPasses * kDigits; i += kThreads) counts[0][i] = 0;
  __syncthreads();
  cudaGridDependencySynchronize();
  if (args.rest && !*args.space.left) return;
  const int64_t tiles = tile_count(args);
  const Key* const input = static_cast<const Key*>(args.sort.input);
  const bool keys_alone = !args.sort.indices;
  const int low = args.sort.begin_bit, width = args.sort.end_bit - low;
  const Word mask = width <= 0                                    ? Word(0)
                    : width >= static_cast<int>(sizeof(Word)) * 8 ? ~Word(0)
                                                                  : (Word(1) << width) - 1;
  const int shift = width <= 0 ? 0 : low;
  const auto count = [&](Word key) {
    const Word window = (key >> shift) & mask;
#pragma unroll
    for (int p = 0; p < kPasses; ++p)
      atomicAdd(&counts[p][static_cast<uint32_t>(window >> (p * 8)) & 255], 1u);
  };
  // A block's tiles follow each other: counts are handed on once a row.
  const int64_t each = (tiles + gridDim.x - 1) / gridDim.x;
  const int64_t first = each * blockIdx.x, end = first + each < tiles ? first + each : tiles;
  for (int64_t tile = first; tile < end;) {
    const TilePlace place = tile_place(args, tile);
    const int64_t n = place.span.n, begin = place.in_row * args.tile;
    int64_t stop = begin + (end - tile) * args.tile;
    if (stop > n) stop = n;
    tile += (stop - begin + args.tile - 1) / args.tile;
    if (args.rest && !args.left(place.row)) continue;
    const Key* const row = input + place.span.start;
    Trend trend;
    const auto encode = [&](Key bits) { return order.encode(bits); };
    read_span<Key, Word>(row, begin, stop, keys_alone, encode, count, trend);
    RowState* const state = args.space.state + place.row;
    trend.tell(*state);
    __syncthreads();
    unsigned long long* const sums = reinterpret_cast<unsigned long long*>(args.space.counts) +
                                     place.row * args.passes * kDigits;
    for (int i = t; i < kPasses * kDigits; i += kThreads) {
      const uint32_t found = counts[0][i];
      counts[0][i] = 0;
      if (found && i < args.passes * kDigits)
        atomicAdd(sums + i, static_cast<unsigned long long>(found));
    }
    __syncthreads();
  }
}

template <class Key, class Word>
__global__ void __launch_bounds__(kCountThreads, kCountBlocksPerSm)
    sort_count(const __grid_constant__ SweepArgs args,
               const __grid_constant__ OrderParams<Word> order) {
  __shared__ uint32_t counts[sizeof(Key)][kDigits];
  count_digits<Key, Word>(args, order, counts);
}

// Elements of one byte and of two: one kernel for both.
template <class Word>
__global__ void __launch_bounds__(kCountThreads, kCountBlocksPerSm)
    sort_count_narrow(const __grid_constant__ SweepArgs args) {
  __shared__ uint32_t one[1][kDigits], two[2][kDigits];
  if (args.sort.bytes == 1)
    count_digits<uint8_t, Word>(args, args.sort.order32, one);
  else
    count_digits<uint16_t, Word>(args, args.sort.order32, two);
}

}  // namespace
}  // namespace gpuprims
