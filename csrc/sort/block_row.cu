// A block a row (at most 8,192 elements): the row is read once, sorted digit by digit in shared
// memory, and written once. Digits in which the row's keys agree are left out.
#include "common/launch.h"
#include "sort/tile.cuh"

namespace gpuprims {
namespace {

// Word: a record in a register, 32 bits (keys alone) or 64; kSide: 16-bit indices beside the keys.
template <class Word, bool kSide, int kThreads, int kItems>
__global__ void __launch_bounds__(
    kThreads, (sizeof(Word) == 4 && kThreads > 32 && kThreads < 256 ? 640 : 512) / kThreads)
    sort_block(const __grid_constant__ SortArgs args) {
  using T = Tile<kThreads, kItems>;
  constexpr int kBatch = 8;
  const T tile(dynamic_memory, sizeof(Word));
  uint16_t* const side = reinterpret_cast<uint16_t*>(dynamic_memory + T::bytes(sizeof(Word)));
  __shared__ unsigned long long ones, zeros;  // bits that some key has, that some key lacks
  const int t = threadIdx.x;
  const int64_t rows = row_count(args);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const RowSpan row = row_span(args, r);
    const int n = static_cast<int>(row.n);
    if (t == 0) ones = 0, zeros = 0;
    __syncthreads();
    uint64_t some = 0, lacking = 0;
    Word* const waiting = tile.template waiting<Word>();
    load_keys<kItems, kBatch>(args, row.start, t, kThreads, n, [&](int i, auto found) {
      const uint64_t key = found;
      some |= key, lacking |= ~key;
      waiting[T::template place<Word>(i)] =
          static_cast<Word>(args.packed ? key << 32 | static_cast<uint32_t>(i) : key);
    });
    tile.template fill<Word>(n);
    atomicOr(&ones, static_cast<unsigned long long>(some));
    atomicOr(&zeros, static_cast<unsigned long long>(lacking));
    if (kSide)
      for (int i = t; i < n; i += kThreads) side[i] = static_cast<uint16_t>(i);
    __syncthreads();
    const uint64_t differ = (ones & zeros) >> args.begin_bit;
    for (int pass = 0; args.begin_bit + pass * 8 < args.end_bit; ++pass) {
      const Digit digit = digit_at(args, pass);
      if (!(static_cast<uint32_t>(differ >> (pass * 8)) & digit.mask)) continue;
      Word records[kItems];
      tile.template take<Word>(records);
      Ranks<kItems, sizeof(Word) == 8> rank;
      tile.rank(rank, records, digit, [](int, uint32_t) {});
#pragma unroll
      for (int i = 0; i < kItems; ++i) waiting[T::template place<Word>(rank[i])] = records[i];
      if constexpr (kSide) {
        uint32_t index[kItems];
#pragma unroll
        for (int i = 0; i < kItems; ++i) index[i] = side[t * kItems + i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kItems; ++i) side[rank[i]] = static_cast<uint16_t>(index[i]);
      }
      __syncthreads();
    }
    const RowSpan kept = kept_span(args, r, row);
    by_width(args, [&](auto elements) {
      using Key = typename decltype(elements)::Word;
#pragma unroll 1
      for (int j = 0; j < kItems; j += kBatch) {
        Word record[kBatch];
        uint32_t index[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int i = t + (j + b) * kThreads;
          record[b] = waiting[T::template place<Word>(i)];
          index[b] = kSide ? side[i] : static_cast<uint32_t>(record[b]);
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int i = t + (j + b) * kThreads;
          if (i >= static_cast<int>(kept.n)) break;
          const Key key = static_cast<Key>(args.packed ? static_cast<uint64_t>(record[b]) >> 32
                                                       : uint64_t{record[b]});
          elements.store(kept.start + i, key, row.start + index[b]);
          if (args.indices) store_index(args, kept.start + i, index_of(args, row.start, index[b]));
        }
      }
    });
    __syncthreads();
  }
}

template <class Word, bool kSide, int kThreads, int kItems>
cudaError_t start(const SortArgs& args, const SortPlan& plan, cudaStream_t stream) {
  using T = Tile<kThreads, kItems>;
  LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads)};
  shape.smem = T::bytes(sizeof(Word)) + (kSide ? T::kSize * 2 : 0);
  return launch(sort_block<Word, kSide, kThreads, kItems>, shape, stream, args);
}

template <class Word, bool kSide>
cudaError_t start(const SortArgs& args, const SortPlan& plan, cudaStream_t stream) {
  constexpr int kMost =
      kSide ? 16 : 32;  // records a thread: an index beside its key takes registers
  if (plan.items < kMost) return start<Word, kSide, 32, 16>(args, plan, stream);
  switch (plan.threads) {
    case 32:
      return start<Word, kSide, 32, kMost>(args, plan, stream);
    case 64:
      return start<Word, kSide, 64, kMost>(args, plan, stream);
    case 128:
      return start<Word, kSide, 128, kMost>(args, plan, stream);
    default:
      return start<Word, kSide, 256, kMost>(args, plan, stream);
  }
}

}  // namespace

cudaError_t launch_sort_block(const SortArgs& args, const SortPlan& plan, cudaStream_t stream) {
  if (plan.side) return start<uint64_t, true>(args, plan, stream);
  if (plan.packed || args.bytes == 8) return start<uint64_t, false>(args, plan, stream);
  return start<uint32_t, false>(args, plan, stream);
}

}  // namespace gpuprims
