// The last step of the spread: windows of whole buckets, each sorted by a block. Its records are
// counted in bins of equal width between the least and the greatest of them, put there, and each
// finds its place among those of its bin, one or two on average. A bin is a range of (key, index)
// taken as one number, so that equal keys spread as well as others; or a range of values, where
// floats span binades, as around zero. Windows whose records crowd in few bins are sorted digit by
// digit.
#pragma once
#include <algorithm>

#include "sort/bins.cuh"

namespace gpuprims {
namespace {

constexpr int kSettleItems = sort_tuning::kSettleItems;
struct SettleMemory {
  using T = Tile<kThreads, kSettleItems>;
  static constexpr int kSize = T::kSize;
  static_assert(kSize == 1 << sort_tuning::kSettleLog);
  // The steps of two look one record behind the last one.
  static constexpr int kStage =
      std::max(T::bytes(sizeof(Record)), (kSize + 2) * static_cast<int>(sizeof(Record)));
  static constexpr int kTable = (kStage + 15) / 16 * 16;
  static constexpr int kBytes = kTable + kBins * 4;
};

// Counts become (start, count) in 16 bits each, and the threads' next counts 0 elsewhere. Returns
// whether too many records share bins.
__device__ __forceinline__ bool start_bins(uint32_t* table, int count, uint32_t* sums) {
  constexpr uint32_t kWork = 12;  // comparisons a record
  constexpr int kVectors = kBinsEach / 4;
  uint4* const mine = reinterpret_cast<uint4*>(table) + threadIdx.x * kVectors;
  uint4 found[kVectors];
  uint32_t own = 0, work = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    found[v] = mine[v];
    for (const uint32_t c : {found[v].x, found[v].y, found[v].z, found[v].w}) {
      own += c, work += c * c;
    }
  }
  uint32_t at = sum_before(own, sums);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const auto start = [&](uint32_t& word) {
      const uint32_t size = word;
      word = at | size << 16;
      at += size;
    };
    start(found[v].x), start(found[v].y), start(found[v].z), start(found[v].w);
    mine[v] = found[v];
  }
  return work > 64 + kWork * static_cast<uint32_t>(count) / 16;  // a sixteenth of all in few bins
}

// Sorts and writes a window whose records crowd in bins, digit by digit; out of the way.
__device__ __noinline__ void settle_by_digits(const SweepArgs& args, uint32_t begin, int count) {
  using T = SettleMemory::T;
  __shared__ unsigned long long ones, zeros;
  const T tile(dynamic_memory, sizeof(Record));
  Record* const stage = tile.waiting<Record>();
  const Record* const from = static_cast<const Record*>(args.space.keys[0]) + begin;
  if (threadIdx.x == 0) ones = zeros = 0;
  __syncthreads();
  uint64_t some = 0, lacking = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const Record record = stage[i] = from[i];
    some |= record, lacking |= ~record;
  }
  atomicOr(&ones, static_cast<unsigned long long>(some));
  atomicOr(&zeros, static_cast<unsigned long long>(lacking));
  __syncthreads();
  const uint64_t differ = ones & zeros;
  for (int low = 0; low < static_cast<int>(sizeof(Record)) * 8 && differ >> low; low += 8) {
    low = 63 - __clzll((differ >> low & -(differ >> low)) << low);
    T::Ranks rank;
    Record words[kSettleItems];
#pragma unroll
    for (int i = 0; i < kSettleItems; ++i) words[i] = stage[T::place(i)];
    tile.rank(rank, words, count, Digit{low, 255}, false, [](int, uint32_t) {});
#pragma unroll
    for (int i = 0; i < kSettleItems; ++i) stage[rank[i]] = words[i];
    __syncthreads();
  }
  const SettledRow to(args.sort);
  for (int i = threadIdx.x; i < count; i += kThreads) to.put<false>(begin + i, stage[i]);
}

// Calls body(i) for a thread's records, several at a time, as far as the window has any.
constexpr int kSettleBatch = 4;
template <class Body>
__device__ __forceinline__ void rows(int count, const Body& body) {
#pragma unroll
  for (int i = 0; i < kSettleItems; i += kSettleBatch) {
    if (i * kThreads >= count) break;
#pragma unroll
    for (int b = i; b < i + kSettleBatch; ++b) body(b);
  }
}

__device__ __forceinline__ void count_less(uint32_t& rank, Record other, Record mine) {
#ifdef __CUDA_ARCH__  // an addition under a predicate, where the compiler would choose between sums
  asm("{.reg .pred p;\n\tsetp.lt.u64 p, %1, %2;\n\t@p add.u32 %0, %0, 1;}"
      : "+r"(rank)
      : "l"(other), "l"(mine));
#else
  rank += other < mine;
#endif
}

// Each record of a window finds its place among those of its bin.
template <bool kPlain, class Map>
__device__ __forceinline__ void write_window(const Record* stage, const uint32_t* table,
                                             const Map& map, const SettledRow& to, uint32_t begin,
                                             int count) {
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const Record mine = stage[i];
    const uint32_t word = table[map.of(mine)], size = word >> 16;
    uint32_t place = word & 0xffff;
    if (size > 1) {
      const Record* other = stage + place;
      const Record* const end = other + size;
#pragma unroll 1
      do {  // two at a time: those behind are greater
        count_less(place, other[0], mine);
        count_less(place, other[1], mine);
        other += 2;
      } while (other < end);
    }
    to.put<kPlain>(begin + place, mine);
  }
}

__global__ void __launch_bounds__(kThreads, sort_tuning::kBlocksPerSm)
    sort_settle(const __grid_constant__ SweepArgs args, int index_up) {
  using M = SettleMemory;
  __shared__ uint32_t sums[kThreads / 32], ends[2][kThreads / 32];
  __shared__ uint4 told;
  Record* const stage = reinterpret_cast<Record*>(dynamic_memory);
  uint32_t* const table = reinterpret_cast<uint32_t*>(dynamic_memory + M::kTable);
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  cudaGridDependencySynchronize();
  const SpreadSpace& space = args.space.spread;
  if (!space.state->fits) return;
  const uint32_t windows = space.state->windows;
  const Record* const from = static_cast<const Record*>(args.space.keys[0]);
  const bool plain = args.sort.values && args.sort.wide_index;
  Record record[kSettleItems];
  // Behind the window's end its last record stands for those that are not there.
  const auto load = [&](uint32_t begin, int count) {
    const Record* const here = from + begin;
#pragma unroll
    for (int i = 0; i < kSettleItems; i += kSettleBatch) {
#pragma unroll
      for (int b = i; b < i + kSettleBatch; ++b) record[b] = 0;
      if (i * kThreads >= count) continue;
      if ((i + kSettleBatch) * kThreads <= count) {
#pragma unroll
        for (int b = i; b < i + kSettleBatch; ++b) record[b] = here[b * kThreads + t];
      } else {
#pragma unroll
        for (int b = i; b < i + kSettleBatch; ++b) {
          const int at = b * kThreads + t;
          record[b] = here[static_cast<uint32_t>(at < count ? at : count - 1)];
        }
      }
    }
  };
  // In shared memory: a thread's records leave few registers.
  __shared__ volatile uint32_t begins[2];
  __shared__ volatile int counts[2];
  uint32_t ahead = 0, behind = 0, window = blockIdx.x;  // where the next one begins and ends
  const auto find = [&](uint32_t window) {
    ahead = window < windows ? space.windows[window] : 0;
    behind = window < windows ? space.windows[window + 1] : 0;
  };
  const auto tell = [&](int turn) {
    if (t == 0) begins[turn] = ahead, counts[turn] = static_cast<int>(behind - ahead);
  };
  // Sorts and writes the window that is in registers, whose map is told, and loads the next one.
  const auto settle = [&]<class Map>(std::type_identity<Map>, int turn) {
    int count = counts[turn];
    const SettledRow row(args.sort);
    const Map map(told, row);
    // A record's number among those of its bin, four a word: bins of more than 255 are crowded.
    uint32_t numbers[kSettleItems / 4] = {};
    rows(count, [&](int i) {
      const uint32_t more = i * kThreads < count - t ? 1 : 0;
      numbers[i / 4] += atomicAdd(table + map.of(record[i]), more) << (i % 4 * 8);
    });
    __syncthreads();
    const bool crowded = __syncthreads_or(start_bins(table, count, sums));
    count = counts[turn];
    if (!crowded) {
      const Map again = map.again();
      rows(count, [&](int i) {
        const uint32_t slot =
            (table[again.of(record[i])] & 0xffff) + (numbers[i / 4] >> (i % 4 * 8) & 255);
        if (i * kThreads < count - t) stage[slot] = record[i];
      });
    }
    if (t == 0) {
      stage[count] = ~Record(0);
      space.crowded[window] = crowded;
    }
    window += gridDim.x;
    tell(turn ^ 1);
    __syncthreads();
    load(begins[turn ^ 1], counts[turn ^ 1]);  // while this one is written
    if (crowded) return;
    count = counts[turn];
    const SettledRow to(args.sort);
    if (plain)
      write_window<true>(stage, table, map, to, begins[turn], count);
    else
      write_window<false>(stage, table, map, to, begins[turn], count);
  };
  find(window);
  tell(0);
  __syncthreads();
  load(begins[0], counts[0]);
  for (int turn = 0; window < windows; turn ^= 1) {  // some windows have no records
    find(window + gridDim.x);
    uint32_t least = ~0u, most = 0;
    rows(counts[turn], [&](int i) {
      const uint32_t key = key_of(record[i]);
      least = key < least ? key : least, most = key > most ? key : most;
    });
    least = __reduce_min_sync(~0u, least), most = __reduce_max_sync(~0u, most);
    if (lane == 0) ends[0][warp] = least, ends[1][warp] = most;
    __syncthreads();  // the window before this one has been written
    if (warp == 0) {
      least = __reduce_min_sync(~0u, ends[0][lane % (kThreads / 32)]);
      most = __reduce_max_sync(~0u, ends[1][lane % (kThreads / 32)]);
      uint4 words;
      if (!ValueMap::words(words, least, most, SettledRow(args.sort)))
        words = BinMap(least, most, index_up).words();
      if (lane == 0) told = words;
    }
#pragma unroll
    for (int v = 0; v < kBinsEach / 4; ++v)
      reinterpret_cast<uint4*>(table)[v * kThreads + t] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (told.z == kByValue)
      settle(std::type_identity<ValueMap>{}, turn);
    else
      settle(std::type_identity<BinMap>{}, turn);
  }
  for (window = blockIdx.x; window < windows; window += gridDim.x) {
    __syncthreads();
    if (!__ldcg(space.crowded + window)) continue;
    const uint32_t begin = space.windows[window];
    settle_by_digits(args, begin, static_cast<int>(space.windows[window + 1] - begin));
  }
}

}  // namespace
}  // namespace gpuprims
