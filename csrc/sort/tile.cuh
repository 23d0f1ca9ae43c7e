// The stable rank of a tile's records by one digit, without a vote: each thread counts its own
// consecutive records in counters that nobody else touches (a column of bytes, one bank a lane), so
// that neither equal digits nor the order of warps matter. Per record: 9 instructions to count, 12
// to look its rank up; per thread 64 words of counters to clear and to sum, that is 2 a record.
// Counters in private columns: Satish, Harris & Garland, "Designing efficient sorting algorithms
// for manycore GPUs", IPDPS 2009.
#pragma once
#include "sort/records.cuh"

namespace gpuprims {
namespace {

// Ranks of a thread's records; of 64-bit records, which take the registers, two in one.
template <int kItems, bool kPacked>
struct Ranks {
  uint32_t words[kPacked ? kItems / 2 : kItems];

  __device__ __forceinline__ uint32_t operator[](int i) const {
    if constexpr (kPacked) return i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xffff;
    return words[i];
  }
  __device__ __forceinline__ void set(int i, uint32_t rank) {
    if constexpr (!kPacked)
      words[i] = rank;
    else if (i % 2 == 0)
      words[i / 2] = rank;
    else
      words[i / 2] |= rank << 16;
  }
  // No carry: all ranks are below 2^16.
  __device__ __forceinline__ void add(int i, uint32_t more) {
    words[kPacked ? i / 2 : i] += kPacked && i % 2 ? more << 16 : more;
  }
};

template <int kThreads_, int kItems_>
struct Tile {
  static constexpr int kThreads = kThreads_, kItems = kItems_, kSize = kThreads * kItems;
  static constexpr int kRows = kDigits / 4;        // words of a column: 4 digits each
  static constexpr int kGroups = kThreads / 8;     // 8 threads: their counts fit a byte
  static constexpr int kStride = kGroups * 2 + 2;  // words of a row of group sums, padded
  static_assert(7 * kItems <= 255 && kSize <= 65535 && kGroups <= 32 && kThreads <= kDigits);

  static constexpr int kCounterBytes = kRows * kThreads * 4;
  // Records as they come in: each thread's are followed by 16 bytes, against bank conflicts.
  static constexpr int stage_bytes(int record) {
    const int padded = kThreads * (kItems * record + 16);
    return padded > kCounterBytes ? padded : kCounterBytes;
  }
  static constexpr int kGroupBytes = kRows * kStride * 4;
  static constexpr int kTailBytes = kGroupBytes + 2 * kDigits * 4 + 64;
  static constexpr int bytes(int record) {
    return (stage_bytes(record) + 15) / 16 * 16 + kTailBytes;
  }

  unsigned char* stage;  // counters, or records
  uint32_t* groups;      // [kRows][kStride]: for each group of threads, 4 sums of 16 bits
  uint32_t* counts;      // [256]
  uint32_t* starts;      // [256]: first rank of the digit
  uint32_t* sums;        // [16]

  __device__ __forceinline__ Tile(unsigned char* memory, int record) : stage(memory) {
    groups = reinterpret_cast<uint32_t*>(memory + (stage_bytes(record) + 15) / 16 * 16);
    counts = groups + kRows * kStride;
    starts = counts + kDigits;
    sums = starts + kDigits;
  }

  // Where record i of the tile waits.
  template <class Record>
  __device__ __forceinline__ Record* waiting() const {
    return reinterpret_cast<Record*>(stage);
  }
  template <class Record>
  static __device__ __forceinline__ int place(int i) {
    return i + i / kItems * (16 / static_cast<int>(sizeof(Record)));
  }

  // Behind a row's end wait records of the greatest key: being last, they stay there.
  template <class Record>
  __device__ __forceinline__ void fill(int count) const {
    for (int i = count + threadIdx.x; i < kSize; i += kThreads)
      waiting<Record>()[place<Record>(i)] = static_cast<Record>(~Record(0));
  }

  // This thread's consecutive records, 16 bytes a load.
  template <class Record, class Word>
  __device__ __forceinline__ void take(Word (&records)[kItems]) const {
    constexpr int kEach = 16 / sizeof(Record);
    const uint4* const from = reinterpret_cast<const uint4*>(
        stage + threadIdx.x * (kItems * static_cast<int>(sizeof(Record)) + 16));
#pragma unroll
    for (int v = 0; v < kItems / kEach; ++v) {
      const uint4 raw = from[v];
      const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if constexpr (sizeof(Record) == 8)
          records[v * kEach + e] = static_cast<uint64_t>(word[2 * e + 1]) << 32 | word[2 * e];
        else if constexpr (sizeof(Record) == 4)
          records[v * kEach + e] = word[e];
        else
          records[v * kEach + e] =
              static_cast<Record>(word[e * sizeof(Record) / 4] >> (e * sizeof(Record) % 4 * 8));
      }
    }
  }

  // rank[i]: the place of records[i] in the tile's order by digit. All threads; the stage's records
  // are gone. `counted` is called with each of this thread's digits and its count.
  template <bool kPacked, class Word, class Counted>
  __device__ __forceinline__ void rank(Ranks<kItems, kPacked>& rank, const Word (&records)[kItems],
                                       Digit digit, const Counted& counted) const {
    const auto digit_of = [&](int i) { return digit.of(records[i]); };
    const int t = threadIdx.x, lane = t & 31;
    __syncthreads();  // everybody has taken its records
    uint4* const zeros = reinterpret_cast<uint4*>(stage);
#pragma unroll
    for (int i = 0; i < kCounterBytes / 16 / kThreads; ++i)
      zeros[i * kThreads + t] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    unsigned char* const column = stage + t * 4;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      unsigned char* const counter = column + byte_of(digit_of(i));
      const uint32_t before = *counter;
      rank.set(i, before);
      *counter = static_cast<unsigned char>(before + 1);
    }
    __syncthreads();
    sum_groups(lane);
    __syncthreads();
    start_digits(lane, counted);
    __syncthreads();
    const int group = t / 8;
    digit.low = opaque(digit.low);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const uint32_t d = digit_of(i);
      const uint32_t sums_of = groups[(d >> 2) * kStride + group * 2 + (d & 1)];
      rank.add(i, column[byte_of(d)] + starts[d] + ((sums_of >> ((d & 2) * 8)) & 0xffff));
    }
    __syncthreads();  // the counters may go
  }

 private:
  static __device__ __forceinline__ uint32_t byte_of(uint32_t digit) {
    return (digit >> 2) * (kThreads * 4) + (digit & 3);
  }

  // Counters become sums over the threads of a group before this one; group sums become sums over
  // the groups before. The lanes of kGroups work on one row of counters.
  __device__ __forceinline__ void sum_groups(int lane) const {
    const int g = lane % kGroups;
#pragma unroll 2
    for (int k = 0; k < 8; ++k) {
      const int row = (threadIdx.x + k * kThreads) / kGroups;
      uint4* const words = reinterpret_cast<uint4*>(stage + row * (kThreads * 4) + g * 32);
      uint4 a = words[0], b = words[1];
      const uint32_t a1 = a.x, a2 = a1 + a.y, a3 = a2 + a.z, b0 = a3 + a.w, b1 = b0 + b.x,
                     b2 = b1 + b.y, b3 = b2 + b.z;
      const uint32_t even = (b3 & 0xff00ff) + (b.w & 0xff00ff),
                     odd = (b3 >> 8 & 0xff00ff) + (b.w >> 8 & 0xff00ff);
      words[0] = make_uint4(0, a1, a2, a3);
      words[1] = make_uint4(b0, b1, b2, b3);
      uint32_t even_sum = even, odd_sum = odd;
#pragma unroll
      for (int step = 1; step < kGroups; step *= 2) {
        const uint32_t even_before = __shfl_sync(~0u, even_sum, lane - step),
                       odd_before = __shfl_sync(~0u, odd_sum, lane - step);
        if (g >= step) even_sum += even_before, odd_sum += odd_before;
      }
      uint32_t* const to = groups + row * kStride + g * 2;
      to[0] = even_sum - even;
      to[1] = odd_sum - odd;
      if (g == kGroups - 1) {
        counts[row * 4] = even_sum & 0xffff;
        counts[row * 4 + 1] = odd_sum & 0xffff;
        counts[row * 4 + 2] = even_sum >> 16;
        counts[row * 4 + 3] = odd_sum >> 16;
      }
    }
  }

  template <class Counted>
  __device__ __forceinline__ void start_digits(int lane, const Counted& counted) const {
    constexpr int kEach = kDigits / kThreads;
    const int t = threadIdx.x;
    uint32_t own[kEach], total = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      own[e] = counts[t * kEach + e];
      counted(t * kEach + e, own[e]);
      total += own[e];
    }
    uint32_t sum = total;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t before = __shfl_sync(~0u, sum, lane - step);
      if (lane >= step) sum += before;
    }
    if constexpr (kThreads > 32) {
      if (lane == 31) sums[t / 32] = sum;
      __syncthreads();
      for (int w = 0; w < t / 32; ++w) sum += sums[w];
    }
    sum -= total;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      starts[t * kEach + e] = sum;
      sum += own[e];
    }
  }
};

}  // namespace
}  // namespace gpuprims
