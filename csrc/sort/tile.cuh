// The stable rank of a tile's records by one digit. A warp has 32 consecutive records at a time and
// a table of its own in shared memory, a word a digit.
// The optimistic way is one atomic addition that returns the count so far: today's GPUs serve the
// lanes of a warp in order, which nothing promises, so whoever uses it must look at the result and
// have the exact way at hand. That one marks lanes in a second table: a lane sets its bit, reads
// the mask, and adds the lanes below it to the count; the highest lane of a digit writes the new
// count back. No vote, whatever the digits are.
#pragma once
#include "sort/records.cuh"

namespace gpuprims {
namespace {

template <int kThreads_, int kItems_>
struct Tile {
  static constexpr int kThreads = kThreads_, kItems = kItems_, kSize = kThreads * kItems;
  static constexpr int kTables = kThreads / 32, kWarpRecords = 32 * kItems;
  static constexpr int kCountBytes = kTables * kDigits * 4;
  static constexpr int kTableBytes = 2 * kCountBytes;  // the exact way's masks are behind
  static constexpr int kEach = kThreads < kDigits ? kDigits / kThreads : 1;  // digits a thread
  static_assert(kItems % 2 == 0 && kSize <= 65536);

  // Tables and records take turns in the same memory.
  static constexpr int stage_bytes(int record) {
    return kSize * record > kTableBytes ? kSize * record : kTableBytes;
  }
  static constexpr int bytes(int record) { return stage_bytes(record) + kDigits * 4 + 64; }

  unsigned char* stage;
  uint32_t* starts;  // [256]: the digit's first rank
  uint32_t* sums;    // [16]

  __device__ __forceinline__ Tile(unsigned char* memory, int record)
      : stage(memory), starts(reinterpret_cast<uint32_t*>(memory + stage_bytes(record))) {
    sums = starts + kDigits;
  }

  template <class Record>
  __device__ __forceinline__ Record* waiting() const {
    return reinterpret_cast<Record*>(stage);
  }
  // Where this thread's record i lies in the tile.
  static __device__ __forceinline__ int place(int i) {
    return threadIdx.x / 32 * kWarpRecords + threadIdx.x % 32 + i * 32;
  }
  __device__ __forceinline__ void clear(bool masks) const {
    uint4* const words = reinterpret_cast<uint4*>(stage);
    constexpr int kWords = kCountBytes / 16;
#pragma unroll
    for (int i = 0; i < kWords / kThreads; ++i)
      words[i * kThreads + threadIdx.x] = make_uint4(0, 0, 0, 0);
    if (!masks) return;
#pragma unroll
    for (int i = 0; i < kWords / kThreads; ++i)
      words[kWords + i * kThreads + threadIdx.x] = make_uint4(0, 0, 0, 0);
  }

  // Ranks of two records a word.
  struct Ranks {
    uint32_t words[kItems / 2];
    __device__ __forceinline__ uint32_t operator[](int i) const {
      return i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xffff;
    }
    __device__ __forceinline__ void set(int i, uint32_t rank) {
      words[i / 2] = i % 2 ? words[i / 2] | rank << 16 : rank;
    }
    __device__ __forceinline__ void add(int i, uint32_t more) {  // ranks stay below 2^16
      words[i / 2] += i % 2 ? more << 16 : more;
    }
  };

  // rank[i]: the place of records[i] in the order by digit of the tile's `count` records; those
  // behind them keep theirs. All threads; what waits on the stage must have been taken, and is
  // gone. `counted` is called with each of this thread's digits and its count.
  template <class Records, class Counted>
  __device__ __forceinline__ void rank(Ranks& rank, const Records& records, int count, Digit digit,
                                       bool optimistic, const Counted& counted) const {
    __syncthreads();
    clear(!optimistic);
    __syncthreads();
    uint32_t* const table = reinterpret_cast<uint32_t*>(stage) + threadIdx.x / 32 * kDigits;
    const int mine = count - place(0);  // record i is one of the tile's where i * 32 is less
    if (optimistic)
      add_in_turn(rank, records, mine, digit, table);
    else
      mark_and_read(rank, records, mine, digit, table);
    __syncthreads();
    start_digits(counted);
    __syncthreads();
    digit.low = opaque(digit.low);
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      if (i * 32 < mine) rank.add(i, table[digit.of(records[i])]);
    __syncthreads();  // the tables may go
  }

 private:
  template <class Records>
  static __device__ __forceinline__ void mark_and_read(Ranks& rank, const Records& records,
                                                       int left, Digit digit, uint32_t* table) {
    const uint32_t mine = 1u << threadIdx.x % 32, below = mine - 1;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      uint32_t* const count = table + digit.of(records[i]);
      uint32_t* const mask = count + kCountBytes / 4;
      const bool real = i * 32 < left;
      if (real) atomicOr(mask, mine);
      __syncwarp();
      const uint32_t seen = *static_cast<volatile uint32_t*>(mask);
      const uint32_t before = *static_cast<volatile uint32_t*>(count) + __popc(seen & below);
      rank.set(i, real ? before : place(i));
      __syncwarp();
      if (real && seen <= (mine | below)) {
        *static_cast<volatile uint32_t*>(count) = before + 1;
        *static_cast<volatile uint32_t*>(mask) = 0;
      }
      __syncwarp();
    }
  }

  template <class Records>
  static __device__ __forceinline__ void add_in_turn(Ranks& rank, const Records& records, int left,
                                                     Digit digit, uint32_t* table) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      uint32_t before = place(i);
      if (i * 32 < left) before = atomicAdd(table + digit.of(records[i]), 1u);
      rank.set(i, before);
      __syncwarp();
    }
  }

  // Counts become the ranks of the first record of a table's digit.
  template <class Counted>
  __device__ __forceinline__ void start_digits(const Counted& counted) const {
    const int t = threadIdx.x, lane = t & 31;
    uint32_t* const column = reinterpret_cast<uint32_t*>(stage) + t * kEach;
    uint32_t own[kEach] = {}, total = 0, sum = 0;
    if (t < kDigits) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
#pragma unroll 8
        for (int g = 0; g < kTables; ++g) own[e] += column[g * kDigits + e];
        counted(t * kEach + e, own[e]);
        total += own[e];
      }
      sum = total;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const uint32_t before = __shfl_sync(~0u, sum, lane - step);
        if (lane >= step) sum += before;
      }
      if (lane == 31) sums[t / 32] = sum;
    }
    if constexpr (kThreads > 32) __syncthreads();
    if (t >= kDigits) return;
    for (int w = 0; w < t / 32; ++w) sum += sums[w];
    sum -= total;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      starts[t * kEach + e] = sum;
      uint32_t place = sum;
#pragma unroll 8
      for (int g = 0; g < kTables; ++g) {
        const uint32_t count = column[g * kDigits + e];
        column[g * kDigits + e] = place;
        place += count;
      }
      sum += own[e];
    }
  }
};

}  // namespace
}  // namespace gpuprims
