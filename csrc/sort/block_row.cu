// A block a row: the row is read once, sorted in shared memory, and written once: by buckets
// (buckets.cuh), or else digit by digit. Digits in which the row's keys agree are left out. Their
// ranks are taken the optimistic way; whoever writes the row looks whether it is in order, and if
// it is not, the block sorts it again exactly.
#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "common/launch.h"
#include "sort/buckets.cuh"
#include "sort/tile.cuh"

namespace gpuprims {
namespace {

// Sorts a row digit by digit; false: the optimistic ranks were wrong.
template <class Word, bool kSide, int kThreads, int kItems>
__device__ __forceinline__ bool sort_digits(const SortArgs& args, int64_t r, const RowSpan& row,
                                            bool exact) {
  using T = Tile<kThreads, kItems>;
  constexpr int kBatch = 8;
  const T tile(dynamic_memory, sizeof(Word));
  Word* const waiting = tile.template waiting<Word>();
  uint16_t* const side = reinterpret_cast<uint16_t*>(dynamic_memory + T::bytes(sizeof(Word)));
  __shared__ unsigned long long ones, zeros;  // bits that some key has, that some key lacks
  const int t = threadIdx.x, width = args.end_bit - args.begin_bit;
  const Word mask = width >= static_cast<int>(sizeof(Word)) * 8 ? ~Word(0) : (Word(1) << width) - 1;
  const int n = static_cast<int>(row.n);
  __syncthreads();
  if (t == 0) ones = 0, zeros = 0;
  Word least = ~Word(0), some = 0, lacking = 0;
  load_keys<kItems, kBatch>(args, row.start, t, kThreads, n, [&](int i, auto key) {
    least = key < least ? key : least;
    waiting[i] = static_cast<Word>(key);
  });
  // Less the least one, small numbers of both signs have few digits that differ.
  __shared__ Word leasts[32];
  least = warp_least(least);
  if (t % 32 == 0) leasts[t / 32] = least;
  __syncthreads();
  least = width == args.bytes * 8 ? warp_least(leasts[t % (kThreads / 32)]) : 0;
  for (int i = t; i < n; i += kThreads) {
    const Word key = waiting[i] - least;
    some |= key, lacking |= ~key;
    waiting[i] = key;
  }
  if (kSide)
    for (int i = t; i < T::kSize; i += kThreads) side[i] = static_cast<uint16_t>(i);
  __syncthreads();
  atomicOr(&ones, static_cast<unsigned long long>(some));
  atomicOr(&zeros, static_cast<unsigned long long>(lacking));
  __syncthreads();
  const uint64_t differ = (ones & zeros) >> args.begin_bit & mask;
  for (int low = 0; low < width && differ >> low;) {  // bits below have been sorted by
    low = 63 - __clzll((differ >> low & -(differ >> low)) << low);
    const int bits = width - low < 8 ? width - low : 8;
    const Digit digit{args.begin_bit + low, (1u << bits) - 1};
    low += bits;
    typename T::Ranks rank;
    {
      Word keys[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) keys[i] = waiting[T::place(i)];
      tile.rank(rank, keys, n, digit, !exact, [](int, uint32_t) {});
#pragma unroll
      for (int i = 0; i < kItems; ++i) waiting[rank[i]] = keys[i];
    }
    if constexpr (kSide) {
      uint16_t index[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) index[i] = side[T::place(i)];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kItems; ++i) side[rank[i]] = index[i];
    }
    __syncthreads();
  }
  const RowSpan kept = kept_span(args, r, row);
  bool wrong = false;
  by_width(args, [&](auto elements) {
    using Key = typename decltype(elements)::Word;
#pragma unroll 1
    for (int j = 0; j < kItems; j += kBatch) {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int i = t + (j + b) * kThreads;
        if (i >= n) break;
        const Word key = waiting[i];
        const uint32_t index = kSide ? side[i] : 0;
        if (i > 0) {
          const Word before = waiting[i - 1] >> args.begin_bit & mask,
                     now = key >> args.begin_bit & mask;
          wrong |= before > now || (kSide && before == now && side[i - 1] >= index);
        }
        if (kSide && index >= static_cast<uint32_t>(n)) {
          wrong = true;
          continue;
        }
        if (i >= static_cast<int>(kept.n)) continue;
        elements.store(kept.start + i, static_cast<Key>(key + least), row.start + index);
        if (kSide) store_index(args, kept.start + i, index_of(args, row.start, index));
      }
    }
  });
  return exact || !__syncthreads_or(wrong);
}

// Sorts a row by buckets; false: it is not for them, and nothing has been written.
template <class B, class Word, int kThreads, int kItems>
__device__ __forceinline__ bool sort_buckets(const SortArgs& args, int64_t r, const RowSpan& row) {
  B buckets(args, dynamic_memory);
  const int t = threadIdx.x, n = static_cast<int>(row.n);
  const Word* const from = Elements<Word>{args}.input() + row.start;
  const RowSpan kept = kept_span(args, r, row);
  __syncthreads();  // the row before this one has been read
  Word key[kItems];
  const int other = t < n ? t : n - 1;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = i * kThreads + t;
    key[i] = from[at < n ? at : other];  // any key: it is not counted
  }
  buckets.clear();
  const OrderParams<Word> codec = buckets.codec();
#pragma unroll
  for (int i = 0; i < kItems; ++i) key[i] = codec.encode(key[i]);
  if (!buckets.measure(key)) {  // all are equal
    const Outputs<Word> to(args, kept);
#pragma unroll 4
    for (int i = t; i < kept.n; i += kThreads) to.put(i, from[i], i);
    return true;
  }
  if (!buckets.arrange(key, n)) return false;
  buckets.write(n, row, kept);
  return true;
}

// Are whole elements compared, and wide enough that they seldom repeat?
template <class Word>
__device__ __forceinline__ bool for_buckets(const SortArgs& args) {
  return args.bytes == sizeof(Word) && args.begin_bit == 0 &&
         args.end_bit == static_cast<int>(sizeof(Word)) * 8;
}

template <class Word, bool kSide, int kThreads, int kItems>
using RowBuckets = Buckets<Word, std::conditional_t<kSide, uint16_t, void>, kThreads, kItems>;

// Word: a key in a register, 32 or 64 bits; kSide: 16-bit indices beside the keys.
template <class Word, bool kSide, int kThreads, int kItems>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    sort_block(const __grid_constant__ SortArgs args, bool digits) {
  using B = RowBuckets<Word, kSide, kThreads, kItems>;
  constexpr int kPause = 8;  // rows that are not tried after one that is not for buckets
  const int64_t rows = row_count(args);
  int pause = digits || args.exact || !for_buckets<Word>(args) ? INT_MAX : 0;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const RowSpan row = row_span(args, r);
    if (pause == 0) {
      if (sort_buckets<B, Word, kThreads, kItems>(args, r, row)) continue;
      pause = kPause;
    } else {
      --pause;
    }
    for (bool exact = args.exact; !sort_digits<Word, kSide, kThreads, kItems>(args, r, row, exact);
         exact = true) {
    }
  }
}

// GPUPRIMS_SORT_BUCKETS=0: no buckets.
bool by_digits() {
  static const bool set = [] {
    const char* const buckets = std::getenv("GPUPRIMS_SORT_BUCKETS");
    return buckets && !std::strcmp(buckets, "0");
  }();
  return set;
}

template <class Word, bool kSide, int kThreads, int kItems>
cudaError_t start(const SortArgs& args, const SortPlan& plan, cudaStream_t stream) {
  using T = Tile<kThreads, kItems>;
  LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads)};
  shape.smem = std::max(T::bytes(sizeof(Word)) + (kSide ? T::kSize * 2 : 0),
                        RowBuckets<Word, kSide, kThreads, kItems>::kBytes);
  return launch(sort_block<Word, kSide, kThreads, kItems>, shape, stream, args, by_digits());
}

template <class Word, bool kSide>
cudaError_t start(const SortArgs& args, const SortPlan& plan, cudaStream_t stream) {
  constexpr int kItems = sort_tuning::kBlockItems;
  switch (plan.threads) {
    case 128:
      return start<Word, kSide, 128, kItems>(args, plan, stream);
    case 256:
      return start<Word, kSide, 256, kItems>(args, plan, stream);
    case 512:
      return start<Word, kSide, 512, kItems>(args, plan, stream);
  }
  if constexpr (sizeof(Word) == 4)
    if (plan.items > kItems) return start<Word, kSide, 1024, 2 * kItems>(args, plan, stream);
  return start<Word, kSide, 1024, kItems>(args, plan, stream);
}

}  // namespace

cudaError_t launch_sort_block(const SortArgs& args, const SortPlan& plan, cudaStream_t stream) {
  if (args.bytes == 8)
    return plan.side ? start<uint64_t, true>(args, plan, stream)
                     : start<uint64_t, false>(args, plan, stream);
  return plan.side ? start<uint32_t, true>(args, plan, stream)
                   : start<uint32_t, false>(args, plan, stream);
}

}  // namespace gpuprims
