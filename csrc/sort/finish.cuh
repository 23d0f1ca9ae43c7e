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
constexpr uint32_t kFullBin = 255;  // more in a bin are left to others

// A pass's digit of a code.
__device__ __forceinline__ Digit code_digit(int pass, int passes, int code_bits) {
  const int half = passes > 1 ? code_bits / 2 : 0;
  return {pass ? half : 0, (1u << (pass || passes == 1 ? code_bits - half : half)) - 1};
}

template <class Record, class Side>
struct FinishMemory {
  static constexpr bool kSide = !std::is_same_v<Side, None>;
  static constexpr int kBins = kSide ? 4096 : 8192;
  static constexpr int kSides = kWindow * sizeof(Record);
  static constexpr int kInBin = kSides + (kSide ? kWindow * 4 : 0);
  static constexpr int kTable = kInBin + kWindow * 2;
  static constexpr int kCells = kTable + kBins * 4;
  static constexpr int kBytes = kCells + kCodeCells * 4;
};

// Where a window's codes, from `first` to `last`, go among the bins.
template <int kBins>
struct BinScale {
  uint32_t first, span;  // last - first
  uint32_t scale;
  int shift;

  __device__ __forceinline__ BinScale(uint32_t first, uint32_t last)
      : first(first), span(last - first) {
    shift = __clz(static_cast<int>(span | 1));
    scale = static_cast<uint32_t>(kBins * (4294967296.0f / ((span | 1) << shift)));
  }
  __device__ __forceinline__ bool has(uint32_t code) const { return code - first <= span; }
  __device__ __forceinline__ uint32_t of(uint32_t code) const {
    const uint32_t bin = __umulhi((code - first) << shift, scale);
    return bin < kBins ? bin : kBins - 1;
  }
};

// Counts become (first place, count) in 16 bits each. All threads; returns the sum.
template <int kBins>
__device__ __forceinline__ uint32_t scan_bins(uint32_t* table, uint32_t* sums) {
  constexpr int kWarps = kFinishThreads / 32, kEach = kBins / kWarps / 128;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  uint4* const mine = reinterpret_cast<uint4*>(table) + warp * (kBins / kWarps / 4) + lane;
  uint32_t before[kEach], total = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const uint4 word = mine[k * 32];
    before[k] = word.x + word.y + word.z + word.w;
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const uint32_t other = __shfl_sync(~0u, before[k], lane - step);
      if (lane >= step) before[k] += other;
    }
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const uint32_t here = __shfl_sync(~0u, before[k], 31);
    before[k] += total;
    total += here;
  }
  if (lane == 0) sums[warp] = total;
  __syncthreads();
  uint32_t earlier = 0, all = 0;
#pragma unroll 4
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) earlier += sums[w];
    all += sums[w];
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {  // read again: registers are few
    uint4 word = mine[k * 32];
    uint32_t at = earlier + before[k] - (word.x + word.y + word.z + word.w);
    uint32_t size = word.x;
    word.x = at | size << 16, at += size, size = word.y;
    word.y = at | size << 16, at += size, size = word.z;
    word.z = at | size << 16, at += size;
    word.w = at | word.w << 16;
    mine[k * 32] = word;
  }
  __syncthreads();
  return all;
}

// A window's records in their bins, and where its results go.
template <class Record>
struct Binned {
  const Record* records;
  const uint32_t* sides;   // indices beside the keys, or null
  const uint16_t* in_bin;  // a record's number in its bin, and the bin's size above
  int count;
  int64_t start, out;  // of the row; of the window
};

template <class Record, bool kSide, class AnyElements>
__device__ __forceinline__ void write_binned(const SortArgs& args, const AnyElements& elements,
                                             const Binned<Record>& window) {
  using Key = typename AnyElements::Word;
  using Element = std::remove_cv_t<std::remove_pointer_t<decltype(elements.input())>>;
  constexpr bool kPacked = sizeof(Record) > sizeof(Key);  // with an index that tells all apart
  constexpr int kBatch = 2;
  static_assert(kFinishItems % kBatch == 0);
  Element* const values = static_cast<Element*>(args.values) + window.out;
  int64_t* const wide = static_cast<int64_t*>(args.indices) + window.out;
  int32_t* const narrow = static_cast<int32_t*>(args.indices) + window.out;
  const bool has_values = args.values, has_wide = args.indices && args.wide_index,
             has_narrow = args.indices && !args.wide_index;
#pragma unroll 1
  for (int from = threadIdx.x; from < window.count; from += kBatch * kFinishThreads) {
    Record record[kBatch];
    uint32_t index[kBatch];
    int first[kBatch], size[kBatch], rank[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = from + b * kFinishThreads;
      const uint32_t mine = i < window.count ? window.in_bin[i] : 0;
      record[b] = i < window.count ? window.records[i] : Record(0);
      if constexpr (kSide) index[b] = i < window.count ? window.sides[i] : 0;
      rank[b] = first[b] = i - static_cast<int>(mine & 255);
      size[b] = static_cast<int>(mine >> 8);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = from + b * kFinishThreads;
#pragma unroll 1
      for (int j = 0; j < size[b]; j += 2) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = first[b] + j + e;
          const Record other = window.records[at];
          bool less = other < record[b];
          if constexpr (kSide)
            less |= other == record[b] && window.sides[at] < index[b];
          else if constexpr (!kPacked)
            less |= other == record[b] && at < i;
          rank[b] += less && j + e < size[b];
        }
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (from + b * kFinishThreads >= window.count) continue;
      Key key = static_cast<Key>(record[b]);
      if constexpr (kPacked) {
        key = static_cast<Key>(record[b] >> 32);
        index[b] = static_cast<uint32_t>(record[b]);
      } else if constexpr (!kSide) {
        index[b] = 0;
      }
      const auto& order = elements.order();
      if (has_values)
        values[rank[b]] = order.several(key) ? elements.input()[window.start + index[b]]
                                             : static_cast<Element>(order.decode(key));
      if (has_wide) wide[rank[b]] = index[b];
      if (has_narrow) narrow[rank[b]] = static_cast<int32_t>(index[b]);
    }
  }
}

// What a block works on, in shared memory, as registers are few.
struct FinishChunk {
  int64_t start, n, end;  // of the row; its length; where the chunk ends in it
  uint32_t last;          // the last bucket that starts in the chunk
  Coder::Map map;
};
struct FinishWindow {
  int64_t at;        // in the row
  uint32_t bucket;   // the first that is not done
  uint32_t seen;     // the code of the last record in sight
  uint32_t skipped;  // records of buckets before
};

// Takes the window's records into their bins. Returns their number, and in `to` the last bucket.
template <class Memory, class Record, class KeyOf>
__device__ __forceinline__ uint32_t fill_bins(const SweepArgs& args, const FinishChunk& chunk,
                                              FinishWindow& window, int code_bits, uint32_t* sums,
                                              const KeyOf& key_of, uint32_t& to, bool& full) {
  constexpr int kBins = Memory::kBins;
  Record* const waiting = reinterpret_cast<Record*>(dynamic_memory);
  uint16_t* const in_bin = reinterpret_cast<uint16_t*>(dynamic_memory + Memory::kInBin);
  uint32_t* const table = reinterpret_cast<uint32_t*>(dynamic_memory + Memory::kTable);
  const Coder coder(reinterpret_cast<const uint32_t*>(dynamic_memory + Memory::kCells), chunk.map);
  const int t = threadIdx.x, code_shift = 32 - code_bits;
  Record records[kFinishItems];
  uint32_t bins[kFinishItems];  // codes; then bins and the numbers there, ~0: not in the window
  int count;
  {
    const int64_t left = chunk.n - window.at;
    count = static_cast<int>(left < kWindow ? left : kWindow);
    const Record* const from =
        static_cast<const Record*>(args.space.keys[0]) + chunk.start + window.at;
#pragma unroll
    for (int i = 0; i < kFinishItems; ++i) {
      const int place = i * kFinishThreads + t;
      records[i] = place < count ? from[place] : Record(0);
    }
  }
#pragma unroll
  for (int i = 0; i < kBins / 4 / kFinishThreads; ++i)
    reinterpret_cast<uint4*>(table)[i * kFinishThreads + t] = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kFinishItems; ++i) {
    bins[i] = coder.of(key_of(records[i]));
    if (i * kFinishThreads + t == count - 1) window.seen = bins[i] >> code_shift;
  }
  __syncthreads();
  to = chunk.last;
  if (window.at + count < chunk.n && window.seen <= to) to = window.seen - 1;  // it may go on
  const bool none = static_cast<int32_t>(to - window.bucket) < 0;
  if (none) to = window.bucket - 1;  // only what came before is in sight
  const BinScale<kBins> scale(window.bucket << code_shift, ((to + 1) << code_shift) - 1);
  uint32_t before = 0;
#pragma unroll
  for (int i = 0; i < kFinishItems; ++i) {
    const uint32_t code = bins[i];
    bins[i] = ~0u;
    if (i * kFinishThreads + t >= count) continue;
    before += code < scale.first;
    if (none || !scale.has(code)) continue;
    const uint32_t bin = scale.of(code);
    bins[i] = bin << 16 | atomicAdd(table + bin, 1u);
  }
  before = __reduce_add_sync(~0u, before);
  if (t % 32 == 0 && before) atomicAdd(&window.skipped, before);
  __syncthreads();
  const uint32_t all = scan_bins<kBins>(table, sums);
#pragma unroll
  for (int i = 0; i < kFinishItems; ++i) {
    if (bins[i] == ~0u) continue;
    const uint32_t word = table[bins[i] >> 16], number = bins[i] & 0xffff;
    const uint32_t place = (word & 0xffff) + number;
    full |= word >> 16 > kFullBin;
    waiting[place] = records[i];
    in_bin[place] = static_cast<uint16_t>(number | word >> 16 << 8);
    if constexpr (Memory::kSide)
      reinterpret_cast<uint32_t*>(dynamic_memory + Memory::kSides)[place] =
          static_cast<const uint32_t*>(
              args.space.side[0])[chunk.start + window.at + i * kFinishThreads + t];
  }
  full = __syncthreads_or(full);
  if (all == 0 && window.skipped == 0) full = true;  // a bucket larger than the window
  return all;
}

template <class Record, class Side>
__global__ void __launch_bounds__(kFinishThreads, 2)
    sort_finish(const __grid_constant__ SweepArgs args, int64_t chunks, int code_bits) {
  using Memory = FinishMemory<Record, Side>;
  constexpr bool kSide = Memory::kSide;
  uint32_t* const cells = reinterpret_cast<uint32_t*>(dynamic_memory + Memory::kCells);
  __shared__ uint32_t sums[kFinishThreads / 32];
  __shared__ FinishChunk task;
  __shared__ FinishWindow windows[2];
  const auto packed_key = [](Record record) {
    return static_cast<uint32_t>(uint64_t{record} >> 32);
  };
  const auto whole_key = [](Record record) { return record; };
  cudaGridDependencySynchronize();
  int64_t loaded = -1;  // the row whose cells are here
  for (int64_t chunk = blockIdx.x; chunk < chunks * args.sort.rows; chunk += gridDim.x) {
    const int64_t row = chunk / chunks;
    if (!coded(args, row)) {
      if (threadIdx.x == 0) args.space.state[row].unfinished = kLeft, *args.space.left = 1;
      continue;
    }
    __syncthreads();
    if (row != loaded) load_cells(cells, args.space.codes[row], kFinishThreads);
    loaded = row;
    __syncthreads();
    if (threadIdx.x == 0) {
      const RowSpan span = row_span(args.sort, row);
      const int64_t size = (span.n + chunks - 1) / chunks, at = (chunk - row * chunks) * size;
      const CodeTable& map = args.space.codes[row];
      task = {span.start,
              span.n,
              at + size < span.n ? at + size : span.n,
              0,
              {map.least, map.range, map.shift, map.scale}};
      windows[0] = {at, 0, 0, 0};
      if (at < task.end) {
        const Coder coder(cells, task.map);
        const Record* const from = static_cast<const Record*>(args.space.keys[0]) + span.start;
        const auto bucket_of = [&](int64_t i) {
          if constexpr (sizeof(Record) == 8 && !kSide)
            if (args.sort.packed) return coder.of(packed_key(from[i])) >> (32 - code_bits);
          return coder.of(from[i]) >> (32 - code_bits);
        };
        task.last = bucket_of(task.end - 1);
        if (at > 0) windows[0].bucket = bucket_of(at - 1) + 1;
      }
    }
    bool full = false;
    for (int turn = 0;; turn ^= 1) {
      __syncthreads();
      FinishWindow& now = windows[turn];
      if (now.at >= task.end || now.bucket > task.last) break;
      uint32_t to, all;
      if (sizeof(Record) == 8 && !kSide && args.sort.packed)
        all = fill_bins<Memory, Record>(args, task, now, code_bits, sums, packed_key, to, full);
      else
        all = fill_bins<Memory, Record>(args, task, now, code_bits, sums, whole_key, to, full);
      if (full) break;
      const int64_t next = now.at + now.skipped;
      if (threadIdx.x == 0) windows[turn ^ 1] = {next + all, to + 1, 0, 0};
      const Binned<Record> binned{
          reinterpret_cast<const Record*>(dynamic_memory),
          reinterpret_cast<const uint32_t*>(dynamic_memory + Memory::kSides),
          reinterpret_cast<const uint16_t*>(dynamic_memory + Memory::kInBin),
          static_cast<int>(all),
          task.start,
          task.start + next};
      if (!kSide && args.sort.packed)
        write_binned<Record, kSide>(args.sort, Elements<uint32_t>{args.sort}, binned);
      else
        write_binned<Record, kSide>(args.sort, Elements<uint64_t>{args.sort}, binned);
    }
    if (full && threadIdx.x == 0) args.space.state[row].unfinished = kLeft, *args.space.left = 1;
  }
}

}  // namespace
}  // namespace gpuprims
