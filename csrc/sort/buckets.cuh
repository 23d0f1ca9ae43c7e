// A block's keys, sorted by buckets of one to three keys on average. A sample of them tells how
// many lie in each of many cells of equal width between the least and the greatest one; a cell gets
// as many buckets as it has samples, of equal width within it. So a key's bucket is found without a
// search, and buckets are in the keys' order. One pass counts them, one scatters the keys, in any
// order within a bucket, and then each key counts those of its bucket that come before it. Equal
// keys are told apart by their indices, so nothing depends on the order in which atomics are
// served. Few keys that repeat a lot overfill buckets: those are left to the caller.
#pragma once
#include "sort/outputs.cuh"

namespace gpuprims {
namespace {

template <class Word>
__device__ __forceinline__ Word warp_least(Word word) {
  if constexpr (sizeof(Word) == 4) {
    return __reduce_min_sync(~0u, word);
  } else {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      const Word other = __shfl_xor_sync(~0u, static_cast<unsigned long long>(word), mask);
      word = other < word ? other : word;
    }
    return word;
  }
}

// Side: what moves beside a key. uint16_t: its place among the keys as they came; uint32_t: an
// index that the caller puts there; void: nothing.
template <class Word, class Side, int kThreads, int kItems>
struct Buckets {
  static constexpr bool kSide = !std::is_void_v<Side>, kGiven = std::is_same_v<Side, uint32_t>;
  using Index = std::conditional_t<kSide, Side, uint16_t>;
  static constexpr int kSize = kThreads * kItems, kWarps = kThreads / 32;
  static constexpr int kCellBits = kThreads == 1024 ? 11 : kThreads == 512 ? 10 : 9;
  static constexpr int kCells = 1 << kCellBits, kCellsEach = kCells / kThreads;
  // What shared memory has room for, beside the largest row.
  static constexpr int kCount = kItems > sort_tuning::kBlockItems ? 12288 : kSize;
  // Ends of buckets, two a word. A thread sums up an odd number of words: no bank conflicts.
  static constexpr int kEndWords = kCount / 2 + 1, kEach = kCount / 2 / kThreads + 1;
  static constexpr int kBatch = 4, kStep = 3;            // keys compared at a time
  static constexpr int kKeys = kSize + 4;                // the last steps look behind the end
  static constexpr uint32_t kLargest = 128, kWork = 12;  // keys a bucket; comparisons a key
  static constexpr uint32_t kCrowd = kLargest / 2;       // of the first kBatch keys a thread
  static constexpr uint32_t kTooMany = 1u << 21;
  static_assert(kEach % 2 == 1 && kCells % kThreads == 0 && kCount <= 32768 && kSize <= 32768);
  static constexpr int kBytes = kKeys * static_cast<int>(sizeof(Word)) + (kEndWords + kCells) * 4 +
                                (kSide ? kSize * static_cast<int>(sizeof(Index)) : 0);

  const SortArgs& args;
  const int t = threadIdx.x, lane = threadIdx.x % 32;
  Word* const keys;
  uint32_t* const ends;
  uint32_t* const cells;  // samples; then the first bucket, and in the lower half their number
  Index* const order;
  Word least = 0;
  int shift = 0;

  __device__ __forceinline__ Buckets(const SortArgs& args, unsigned char* memory)
      : args(args),
        keys(reinterpret_cast<Word*>(memory)),
        ends(reinterpret_cast<uint32_t*>(keys + kKeys)),
        cells(ends + kEndWords),
        order(reinterpret_cast<Index*>(cells + kCells)) {}

  __device__ __forceinline__ OrderParams<Word> codec() const {
    OrderParams<Word> codec = Elements<Word>{args}.order();
    codec.lossless = !kSide;  // which the compiler does not know
    return codec;
  }

  // Before keys are measured and arranged; all threads, as with everything here.
  __device__ __forceinline__ void clear() const {
    for (int i = t; i < kEndWords + kCells; i += kThreads) ends[i] = 0;
  }

  // The least key, and how far the others can be shifted; false: all are the same.
  __device__ __forceinline__ bool measure(const Word (&key)[kItems]) {
    __shared__ Word bounds[2][32];
    Word low = ~Word(0), high = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      low = key[i] < low ? key[i] : low;
      high = key[i] > high ? key[i] : high;
    }
    low = warp_least(low), high = ~warp_least(~high);
    if (lane == 0) bounds[0][t / 32] = low, bounds[1][t / 32] = high;
    __syncthreads();
    least = warp_least(bounds[0][lane % kWarps]);
    const Word range = ~warp_least(~bounds[1][lane % kWarps]) - least;
    if constexpr (sizeof(Word) == 8)
      shift = __clzll(static_cast<long long>(range | 1));
    else
      shift = __clz(static_cast<int>(range | 1));
    if (t == 0) shared_shift() = shift;
    return range != 0;
  }

  // Puts n keys, of which thread t has numbers t, t + kThreads ..., into their buckets in shared
  // memory. What is behind them is any of them. False: they are not for buckets.
  __device__ __forceinline__ bool arrange(const Word (&key)[kItems], int n) {
    const int left = n - t;  // item i is there if i * kThreads < left
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; ++i)  // each fourth, of which kThreads apart are different ones
      if ((t + i) % 4 == 0 && i * kThreads < left)
        atomicAdd(cells + (place(key[i]) >> (32 - kCellBits)), 1u);
    __syncthreads();
    share_out();
    __syncthreads();
    bool crowded = false;  // says the first batch
    batches(key, n, [&](int i, const uint32_t (&b)[kBatch]) {
#pragma unroll
      for (int k = 0; k < kBatch; ++k)
        crowded |= take(b[k], (i + k) * kThreads < left) > kCrowd && i == 0;
      if (i == 0) crowded = __syncthreads_or(crowded);
      return !crowded;
    });
    if (crowded) return false;
    __syncthreads();
    if (!add_up(n)) return false;
    __syncthreads();
    uint32_t places[kGiven ? kItems / 2 : 1];  // two a word
    batches(key, n, [&](int i, const uint32_t (&b)[kBatch]) {
      uint32_t to[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) to[k] = take(b[k], (i + k) * kThreads < left);
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if constexpr (kGiven)
          places[(i + k) / 2] = k % 2 ? places[(i + k) / 2] | to[k] << 16 : to[k];
        if ((i + k) * kThreads < left) {
          keys[to[k]] = key[i + k];
          if (kSide && !kGiven) order[to[k]] = static_cast<Index>((i + k) * kThreads + t);
        }
      }
      return true;
    });
    if constexpr (kGiven) move_given(places, left);
    if (t < kKeys - kSize) keys[n + t] = ~Word(0);
    __syncthreads();
    return true;
  }

  // Each key counts those of its bucket that come before it, and is written there. `row`: whose
  // elements they are; `kept`: where they go, and how many.
  __device__ __forceinline__ void write(int n, const RowSpan& row, const RowSpan& kept) const {
    const OrderParams<Word> codec = this->codec();
    const Outputs<Word> to(args, kept);
    const Word* const from = Elements<Word>{args}.input() + row.start;
    const uint16_t* const end = reinterpret_cast<const uint16_t*>(ends);
    // Keys of which the element's bits are to be fetched. Integers have none; two may be fetched.
    const Word zero = codec.sign ^ codec.invert, nan = codec.mask ^ codec.invert;
#pragma unroll 1
    for (int i = t; i < n; i += kThreads) {
      const Word key = keys[i];
      const uint32_t b = bucket(key) >> 16;
      const int first = end[b - 1], last = end[b];
      const uint32_t mine = kSide ? order[i] : i;
      uint32_t rank = first, same = 0;
#pragma unroll 1
      for (int j = first; j < last; j += kStep)  // keys behind the bucket are greater
#pragma unroll
        for (int s = 0; s < kStep; ++s) count(rank, same, keys[j + s], key);
      if (same > 1) {
#pragma unroll 1
        for (int j = first; j < last; ++j)
          rank += keys[j] == key && (kSide ? order[j] : static_cast<uint32_t>(j)) < mine;
      }
      if (rank < static_cast<uint64_t>(kept.n))
        to.put(rank, kSide && (key == zero || key == nan) ? from[mine] : codec.decode(key), mine);
    }
  }

 private:
  static __device__ __forceinline__ int& shared_shift() {
    __shared__ int shift;
    return shift;
  }

  // Given indices follow their keys.
  __device__ __forceinline__ void move_given(const uint32_t* places, int left) const {
    Index index[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) index[i] = order[i * kThreads + t];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      if (i * kThreads < left) order[places[i / 2] >> (i % 2 * 16) & 0xffff] = index[i];
  }

  // Where a key lies between the row's least one and the power of two behind its greatest one.
  __device__ __forceinline__ uint32_t place(Word key) const {
    const Word word = (key - least) << shift;
    return static_cast<uint32_t>(sizeof(Word) == 8 ? word >> (sizeof(Word) * 8 - 32) : word);
  }

  // A key's bucket, from 1 on, in the upper half.
  __device__ __forceinline__ uint32_t bucket(Word key) const {
    const uint32_t at = place(key), cell = cells[at >> (32 - kCellBits)];
    return (at >> (16 - kCellBits) & 0xffff) * (cell & 0xffff) + cell;
  }

  // Calls body(i, the buckets of keys i and up) for a few keys at a time, so that they wait
  // together; until it returns false.
  template <class Body>
  __device__ __forceinline__ void batches(const Word (&key)[kItems], int n, const Body& body) {
#pragma unroll
    for (int i = 0; i < kItems; i += kBatch) {
      if (i * kThreads >= n) break;
      uint32_t b[kBatch];
      shift = *static_cast<const volatile int*>(&shared_shift());  // or places would be kept
#pragma unroll
      for (int k = 0; k < kBatch; ++k) b[k] = bucket(key[i + k]);
      if (!body(i, b)) return;
    }
  }

  // Counts one more key of a bucket, if it is there: the number before.
  __device__ __forceinline__ uint32_t take(uint32_t bucket, bool there) const {
    const uint32_t half = bucket >> 12 & 16;
    return atomicAdd(ends + (bucket >> 17), (there ? 1u : 0u) << half) >> half & 0xffff;
  }

  // The sum of what the threads before this one have; `total`: of what all have.
  __device__ __forceinline__ uint32_t sum_before(uint32_t own, uint32_t& total) const {
    __shared__ uint32_t sums[32];
    uint32_t sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t before = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += before;
    }
    if (lane == 31) sums[t / 32] = sum;
    __syncthreads();
    const uint32_t of_warp = lane < kWarps ? sums[lane] : 0;
    total = __reduce_add_sync(~0u, of_warp);
    return sum - own + __reduce_add_sync(~0u, lane < t / 32 ? of_warp : 0);
  }

  // Samples become buckets.
  __device__ __forceinline__ void share_out() const {
    uint32_t* const mine = cells + t * kCellsEach;
    uint32_t own = 0, total;
#pragma unroll
    for (int c = 0; c < kCellsEach; ++c) own += mine[c];
    uint32_t before = sum_before(own, total);
    const float each = static_cast<float>(kCount) / static_cast<float>(total);
    const auto buckets = [&](uint32_t samples) {  // never falls as samples rise
      return static_cast<uint32_t>(static_cast<float>(samples) * each);
    };
    uint32_t first = buckets(before);
#pragma unroll
    for (int c = 0; c < kCellsEach; ++c) {
      before += mine[c];
      const uint32_t next = buckets(before);
      mine[c] = (first + 1) << 16 | (next - first);
      first = next;
    }
  }

  // Counts become the buckets' starts; false: some buckets are too full.
  __device__ __forceinline__ bool add_up(int n) const {
    __shared__ uint32_t works[32];
    uint32_t* const mine = ends + t * kEach;
    uint32_t own = 0, work = 0, largest = 0, total;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const uint32_t two = t * kEach + e < kEndWords ? mine[e] : 0;
      const uint32_t a = two & 0xffff, b = two >> 16;
      own += a + b;
      work += a * a + b * b;
      largest = a > largest ? a : largest;
      largest = b > largest ? b : largest;
    }
    work = __reduce_add_sync(~0u, largest > kLargest ? kTooMany : work);
    if (lane == 0) works[t / 32] = work;
    uint32_t sum = sum_before(own, total);
    work = __reduce_add_sync(~0u, lane < kWarps ? works[lane] : 0);
    if (work > kWork * static_cast<uint32_t>(n)) return false;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (t * kEach + e >= kEndWords) break;
      const uint32_t two = mine[e], middle = sum + (two & 0xffff);
      mine[e] = middle << 16 | sum;
      sum = middle + (two >> 16);
    }
    return true;
  }

  static __device__ __forceinline__ void count(uint32_t& less, uint32_t& same, Word other,
                                               Word key) {
#ifdef __CUDA_ARCH__  // additions under predicates, where the compiler would choose between sums
    if constexpr (sizeof(Word) == 4)
      asm("{.reg .pred p, q;\n\tsetp.lt.u32 p, %2, %3;\n\tsetp.eq.u32 q, %2, %3;\n\t"
          "@p add.u32 %0, %0, 1;\n\t@q add.u32 %1, %1, 1;}"
          : "+r"(less), "+r"(same)
          : "r"(other), "r"(key));
    else
#endif
      less += other < key, same += other == key;
  }
};

}  // namespace
}  // namespace gpuprims
