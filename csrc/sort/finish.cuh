// The last step by codes: what the passes left stands in A in the order of its codes. A block takes
// windows of whole buckets (records of one code). It counts the records into so many fine bins
// that most have one or two, puts them there, and each record finds its place in its bin by
// looking at the others: by key, then by index.
#pragma once
#include "sort/codes.cuh"

namespace gpuprims {
namespace {

constexpr int kFinishThreads = kThreads, kFinishItems = sort_tuning::kFinishItems;
constexpr int kWindow = kFinishThreads * kFinishItems;
static_assert(kWindow == sort_tuning::kFinishWindow);
constexpr int kBins = 8192;
constexpr uint32_t kFullBin = 256;  // more in a bin are left to others

// A pass's digit of a code.
__device__ __forceinline__ Digit code_digit(int pass, int passes, int code_bits) {
  const int half = passes > 1 ? code_bits / 2 : 0;
  return {pass ? half : 0, (1u << (pass || passes == 1 ? code_bits - half : half)) - 1};
}

template <class Record, class Side>
struct FinishMemory {
  static constexpr bool kSide = !std::is_same_v<Side, None>;
  static constexpr int kSides = kWindow * sizeof(Record);
  static constexpr int kTable = kSides + (kSide ? kWindow * 4 : 0);
  static constexpr int kCells = kTable + kBins * 4;
  static constexpr int kBytes = kCells + kCodeCells * 8;
};

// Where keys of a window's codes [first, last] go among the bins.
struct BinScale {
  uint32_t first, span;  // last - first
  uint32_t scale;
  int shift;

  __device__ __forceinline__ BinScale(uint32_t first, uint32_t last)
      : first(first), span(last - first) {
    shift = __clz(static_cast<int>(span | 1));
    const float wide = static_cast<float>((span | 1) << shift);
    scale = static_cast<uint32_t>(kBins * (4294967296.0f / wide));
  }
  __device__ __forceinline__ bool has(uint32_t code) const { return code - first <= span; }
  __device__ __forceinline__ uint32_t of(uint32_t code) const {
    const uint32_t bin = __umulhi((code - first) << shift, scale);
    return bin < kBins ? bin : kBins - 1;
  }
};

// Counts become (first place, count) in 16 bits each. All threads; returns the sum.
__device__ __forceinline__ uint32_t scan_bins(uint32_t* table, uint32_t* sums) {
  constexpr int kWarps = kFinishThreads / 32, kEach = kBins / kWarps / 128;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  uint4* const mine = reinterpret_cast<uint4*>(table) + warp * (kBins / kWarps / 4) + lane;
  uint4 held[kEach];
  uint32_t before[kEach], total = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    held[k] = mine[k * 32];
    uint32_t sum = held[k].x + held[k].y + held[k].z + held[k].w;
    const uint32_t own = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_sync(~0u, sum, lane - step);
      if (lane >= step) sum += other;
    }
    before[k] = total + sum - own;
    total += __shfl_sync(~0u, sum, 31);
  }
  if (lane == 0) sums[warp] = total;
  __syncthreads();
  uint32_t earlier = 0, all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) earlier += sums[w];
    all += sums[w];
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    uint32_t at = earlier + before[k];
    uint4 word = held[k];
    word.x = at | held[k].x << 16, at += held[k].x;
    word.y = at | held[k].y << 16, at += held[k].y;
    word.z = at | held[k].z << 16, at += held[k].z;
    word.w = at | held[k].w << 16;
    mine[k * 32] = word;
  }
  __syncthreads();
  return all;
}

template <class Record, class Side>
__global__ void __launch_bounds__(kFinishThreads, 2)
    sort_finish(const __grid_constant__ SweepArgs args, int64_t chunks, int code_bits) {
  using Memory = FinishMemory<Record, Side>;
  constexpr bool kSide = Memory::kSide;
  Record* const waiting = reinterpret_cast<Record*>(dynamic_memory);
  uint32_t* const sides = reinterpret_cast<uint32_t*>(dynamic_memory + Memory::kSides);
  uint32_t* const table = reinterpret_cast<uint32_t*>(dynamic_memory + Memory::kTable);
  uint2* const cells = reinterpret_cast<uint2*>(dynamic_memory + Memory::kCells);
  __shared__ uint32_t sums[kFinishThreads / 32], skipped;
  const int t = threadIdx.x, code_shift = 32 - code_bits;
  const bool packed = args.sort.packed;
  cudaGridDependencySynchronize();
  int64_t loaded = -1;  // the row whose cells are here
  const int64_t all_chunks = chunks * args.sort.rows;
  for (int64_t chunk = blockIdx.x; chunk < all_chunks; chunk += gridDim.x) {
    const int64_t row = chunk / chunks;
    const RowSpan span = row_span(args.sort, row);
    if (args.space.state[row].role[0][0] == 0) continue;
    const CodeTable& map = args.space.codes[row];
    if (row != loaded) {
      __syncthreads();
      load_cells(cells, map, kFinishThreads);
      __syncthreads();
      loaded = row;
    }
    const Coder coder{cells, map.least, map.range, map.shift};
    const auto code_of = [&](Record record) {
      if constexpr (sizeof(Record) == 8 && !kSide)
        if (packed) return coder.of(static_cast<uint32_t>(record >> 32));
      return coder.of(record);
    };
    const Record* const from = static_cast<const Record*>(args.space.keys[0]) + span.start;
    const uint32_t* const from_side =
        kSide ? static_cast<const uint32_t*>(args.space.side[0]) + span.start : nullptr;
    const int64_t n = span.n, size = (n + chunks - 1) / chunks;
    int64_t at = (chunk - row * chunks) * size;
    const int64_t end = at + size < n ? at + size : n;
    if (at >= end) continue;
    // Buckets that start in the chunk: of codes from `bucket` to `last`.
    uint32_t bucket = at > 0 ? (code_of(from[at - 1]) >> code_shift) + 1 : 0;
    const uint32_t last = code_of(from[end - 1]) >> code_shift;
    while (at < end && bucket <= last) {
      const int count = static_cast<int>(n - at < kWindow ? n - at : kWindow);
      uint32_t to = last;
      if (at + count < n) {  // the last bucket in sight may go on
        const uint32_t seen = code_of(from[at + count - 1]) >> code_shift;
        if (seen <= last) to = seen - 1;
      }
      if (static_cast<int32_t>(to - bucket) < 0) {  // none ends in sight: skips what came before
        to = bucket - 1;
      }
      __syncthreads();
      if (t == 0) skipped = 0;
#pragma unroll
      for (int i = 0; i < kBins / 4 / kFinishThreads; ++i)
        reinterpret_cast<uint4*>(table)[i * kFinishThreads + t] = make_uint4(0, 0, 0, 0);
      __syncthreads();
      const bool none = to + 1 == bucket;
      const BinScale scale(bucket << code_shift, ((to + 1) << code_shift) - 1);
      uint32_t all;
      {
        Record records[kFinishItems];
        uint32_t bins[kFinishItems];  // and the rank there; ~0: not in the window
        uint32_t before = 0;
#pragma unroll
        for (int i = 0; i < kFinishItems; ++i) {
          const int place = i * kFinishThreads + t;
          records[i] = place < count ? from[at + place] : Record(0);
        }
#pragma unroll
        for (int i = 0; i < kFinishItems; ++i) {
          const uint32_t code = code_of(records[i]);
          bins[i] = ~0u;
          if (i * kFinishThreads + t >= count) continue;
          before += code >> code_shift < bucket;
          if (none || !scale.has(code)) continue;
          const uint32_t bin = scale.of(code);
          bins[i] = bin << 16 | atomicAdd(table + bin, 1u);
        }
        before = __reduce_add_sync(~0u, before);
        if (t % 32 == 0 && before) atomicAdd(&skipped, before);
        __syncthreads();
        all = scan_bins(table, sums);
#pragma unroll
        for (int i = 0; i < kFinishItems; ++i) {
          if (bins[i] == ~0u) continue;
          const uint32_t place = (table[bins[i] >> 16] & 0xffff) + (bins[i] & 0xffff);
          waiting[place] = records[i];
          if constexpr (kSide) sides[place] = from_side[at + i * kFinishThreads + t];
        }
      }
      __syncthreads();
      if (all == 0 && skipped == 0) {  // a bucket larger than the window
        if (t == 0) args.space.state[row].unfinished = 1, *args.space.repeat = 1;
        break;
      }
      bool full = false;
      const auto write = [&](auto elements) {
        using Key = typename decltype(elements)::Word;
#pragma unroll 2
        for (int i = t; i < static_cast<int>(all); i += kFinishThreads) {
          const Record record = waiting[i];
          const uint32_t word = table[scale.of(code_of(record))];
          const uint32_t in_bin = word >> 16, first = word & 0xffff;
          uint32_t rank = first, index = 0;
          if constexpr (kSide) index = sides[i];
          if (in_bin > kFullBin) {
            full = true;
            continue;
          }
          for (uint32_t j = first; j < first + in_bin; ++j) {
            const Record other = waiting[j];
            if constexpr (kSide)
              rank += other < record || (other == record && sides[j] < index);
            else
              rank += other < record || (other == record && static_cast<int>(j) < i);
          }
          const int64_t out = span.start + at + skipped + rank;
          Key key = static_cast<Key>(record);
          if constexpr (sizeof(Record) == 8 && sizeof(Key) == 4) {
            index = static_cast<uint32_t>(record);
            key = static_cast<Key>(uint64_t{record} >> 32);
          }
          elements.store(out, key, span.start + index);
          if (args.sort.indices) store_index(args.sort, out, index);
        }
      };
      if constexpr (sizeof(Record) == 4) {
        write(Elements<uint32_t>{args.sort});
      } else {
        if (!kSide && packed)
          write(Elements<uint32_t>{args.sort});
        else
          write(Elements<uint64_t>{args.sort});
      }
      if (full) args.space.state[row].unfinished = 1, *args.space.repeat = 1;
      at += skipped + all;
      bucket = to + 1;
    }
  }
}

}  // namespace
}  // namespace gpuprims
