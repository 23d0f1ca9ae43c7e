// A pass of the sweep: every record moves to its digit's place. A tile's place among the others
// comes from its predecessors by look-back; tiles are taken in order from a counter, so that
// whoever waits, waits for a block that runs.
#pragma once
#include "sort/sweep.cuh"

namespace gpuprims {
namespace {

// What a pass does with one tile. In shared memory: in registers, which a thread's records fill, it
// would be spilled.
struct PassTask {
  TilePlace place;
  Digit digit;
  int pass, role, count;      // role 0: there is no tile left
  bool exact;                 // ranks are taken the exact way
  bool again;                 // the tile was done before, and its place is known
  bool packed;                // records are (32-bit key, 32-bit index)
  bool narrow;                // ... of an 8-byte key
  int shift;                  // packed records of 8-byte keys: where their 32 bits lie
  uint64_t rest;              // ... and the other bits, in which all keys agree
  int64_t first_tile, begin;  // of the row; of the tile in the row
  uint64_t rising;            // bits of a record that rise with its place in the sorted tile; 0:
                              // others look whether the ranks were right, or they need not be
};

// Where a digit's records of this tile go, less their rank.
__device__ __forceinline__ int64_t digit_offset(const SweepArgs& args, const PassTask& task,
                                                int digit, uint32_t count, uint32_t start) {
  const bool odd = task.role & kOdd;
  const TilePlace& place = task.place;
  const int64_t earlier = static_cast<int64_t>(
      args.wide_status ? LookBack<uint64_t>(args.space.status, task.first_tile, odd)
                             .before(place.in_row, digit, count)
                       : LookBack<uint32_t>(args.space.status, task.first_tile, odd)
                             .before(place.in_row, digit, count));
  const uint64_t* const counts =
      args.space.counts + (place.row * args.passes + task.pass) * kDigits;
  return static_cast<int64_t>(counts[digit]) + earlier - start;
}

__device__ __forceinline__ int digit_end(const Digit& digit) {
  return digit.low + __popc(digit.mask);
}
// Bits [low, high), of which there are some.
__device__ __forceinline__ uint64_t bits_between(int low, int high) {
  return high <= low ? 0 : ~uint64_t{0} >> (64 - (high - low)) << low;
}

// Record: as it lies in A and B; Side: the index beside it, or None. Returns whether some records
// of a digit are out of order, which optimistic ranks can lead to; then the tile is to be done
// again.
template <class Record, class Side>
__device__ __forceinline__ bool pass_tile(const SweepArgs& args, const PassTask& task,
                                          int64_t* offsets) {
  using T = PassTile<Record>;
  using Word = std::conditional_t<sizeof(Record) == 8, uint64_t, uint32_t>;
  constexpr bool kSide = !std::is_same_v<Side, None>;
  using Index = std::conditional_t<kSide, Side, uint32_t>;
  // A 64-bit record without an index beside it may be a packed one, of narrower keys.
  using Only = std::conditional_t<sizeof(Record) == 8 && !kSide, void, Record>;
  constexpr int kItems = T::kItems;
  const T tile(dynamic_memory, pass_width<Record, Side>());
  const int t = threadIdx.x;
  typename T::Ranks rank;
  Record* const waiting = tile.template waiting<Record>();
  uint32_t mine = 0;  // records of digit t
  {
    Word records[kItems];
    const int count = task.count, source = task.role & 3;
    const int64_t begin = task.begin, start = task.place.span.start;
    if (source == kFromInput) {
      by_width<Only>(args.sort, [&](auto elements) {
        const auto* const from = elements.input() + start + begin;
        using Element = std::remove_cv_t<std::remove_reference_t<decltype(*from)>>;
        load_records<T>(records, count, [&](int i) -> Word { return from[i]; });
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          const Word key = elements.key(static_cast<Element>(records[i]));
          if (T::place(i) >= count) continue;
          records[i] = key;
          if constexpr (sizeof(Record) == 8)
            if (task.packed)
              records[i] = key >> task.shift << 32 | static_cast<uint32_t>(begin + T::place(i));
        }
      });
    } else {
      const Record* const from =
          static_cast<const Record*>(args.space.keys[source == kFromB]) + start + begin;
      load_records<T>(records, count, [&](int i) -> Word { return from[i]; });
    }
    tile.rank(rank, records, task.count, task.digit, !task.exact, [&](int d, uint32_t found) {
      if (task.again) return;  // it has announced them
      mine = found;
      if (args.wide_status)
        LookBack<uint64_t>(args.space.status, task.first_tile, task.role & kOdd)
            .announce(task.place.in_row, d, mine);
      else
        LookBack<uint32_t>(args.space.status, task.first_tile, task.role & kOdd)
            .announce(task.place.in_row, d, mine);
    });
#pragma unroll
    for (int i = 0; i < kItems; ++i) waiting[rank[i]] = static_cast<Record>(records[i]);
  }
  if (t < kDigits && !task.again) offsets[t] = digit_offset(args, task, t, mine, tile.starts[t]);
  __syncthreads();
  const Digit digit{opaque(task.digit.low), task.digit.mask};
  const int count = task.count, source = task.role & 3, target = task.role & 12;
  const int64_t begin = task.begin, start = task.place.span.start;
  // Records of a digit are in the order in which they came if their lower bits and their index say
  // so.
  const Word rising = static_cast<Word>(task.rising);
  bool falls = false;
  uint32_t digits[kSide ? kItems / 4 : 1] = {};
  uint32_t several = 0;  // of this thread's values, those that are known from their index alone
  const auto move_keys = [&](const auto& store) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const int i = j * kThreads + t;
      const Word record = waiting[i];
      const uint32_t d = digit.of(record);
      if constexpr (kSide)
        digits[j / 4] |= d << (j % 4 * 8);
      else if (rising && i > 0 && i < count)
        falls |= (record & rising) < (static_cast<Word>(waiting[i - 1]) & rising);
      if (i < count) store(j, offsets[d] + i, record);
    }
  };
  if (target != kToOutput) {
    Record* const to_keys = static_cast<Record*>(args.space.keys[target == kToB]) + start;
    move_keys([&](int, int64_t to, Word record) { to_keys[to] = static_cast<Record>(record); });
  } else {
    by_width<Only>(args.sort, [&](auto elements) {
      using Key = typename decltype(elements)::Word;
      move_keys([&](int j, int64_t to, Word record) {
        if constexpr (kSide) {
          if (elements.order().several(record))
            several |= 1u << j;
          else
            elements.store(start + to, record, 0);
        } else {
          const uint32_t index = static_cast<uint32_t>(record);
          Key key = static_cast<Key>(record);
          if (task.packed) {
            key = static_cast<Key>(uint64_t{record} >> 32);
            if constexpr (sizeof(Key) == 8) key = key << task.shift | task.rest;
          }
          elements.store(start + to, key, start + index);
          if (task.packed) store_index(args.sort, start + to, index_of(args.sort, start, index));
        }
      });
    });
  }
  if constexpr (kSide) {
    __syncthreads();
    Index* const moving = tile.template waiting<Index>();
    if (source == kFromInput) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) moving[rank[i]] = static_cast<Index>(begin + T::place(i));
    } else {
      const Index* const from = side_of<Index>(args, source == kFromB, start) + begin;
      Index index[kItems];
      load_records<T>(index, count, [&](int i) { return from[i]; });
#pragma unroll
      for (int i = 0; i < kItems; ++i) moving[rank[i]] = index[i];
    }
    __syncthreads();
    Index* const to_side =
        target == kToOutput ? nullptr : side_of<Index>(args, target == kToB, start);
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const int i = j * kThreads + t;
      const Index index = moving[i];
      const int64_t to = offsets[digits[j / 4] >> (j % 4 * 8) & 255] + i;
      if (i >= count) continue;
      if (to_side)
        to_side[to] = index;
      else
        store_index(args.sort, start + to, index_of(args.sort, start, static_cast<int64_t>(index)));
    }
    if (several) copy_several<Record>(args, task.place, several, moving, offsets, digits);
  }
  return falls;
}

// Takes the next tile in which this pass has something to do, or the last one again; one thread.
template <class Record, class Side>
__device__ void take_tile(const SweepArgs& args, int round, int pass, bool again, int64_t& at,
                          PassTask& task) {
  constexpr int kSize = PassTile<Record>::kSize;
  // 8-byte keys whose rows may turn out to need no more than 32 bits and an index.
  constexpr bool kMayPack = sizeof(Record) == 8 && std::is_same_v<Side, uint32_t>;
  const int64_t tiles = tile_count(args);
  while (true) {
    if (!again) at = atomicAdd(&args.space.next[round * kMaxPasses + pass], 1u);
    task.role = 0;
    if (at >= tiles) return;
    task.place = tile_place(args, at);
    const RowState& state = args.space.state[task.place.row];
    const int role = state.role[round][pass];
    if (role == 0 || (round && !(state.unfinished & ~kLeft))) continue;
    const int64_t begin = task.place.in_row * kSize, left = task.place.span.n - begin;
    const bool mended = round == 0 && state.window;  // sort_mend looks at the result
    task.pass = pass, task.role = role, task.again = again;
    task.count = static_cast<int>(left < kSize ? left : kSize);
    task.first_tile = at - task.place.in_row, task.begin = begin;
    task.digit = digit_at(args.sort, pass, args.sort.packed);
    task.packed = args.sort.packed;
    task.narrow = kMayPack && state.narrow;
    task.shift = 0;
    if (task.narrow) {
      task.packed = true;
      task.shift = state.narrow - 1;
      const uint64_t some = args.sort.order64.encode(
          static_cast<const uint64_t*>(args.sort.input)[task.place.span.start]);
      task.rest = some & ~(uint64_t{0xffffffff} << task.shift);
      task.digit.low += 32 - task.shift;
    }
    task.exact = again || args.sort.exact || (args.side && !mended && !task.narrow);
    task.rising = 0;
    const int end = digit_end(task.digit);
    if (task.exact || mended) return;
    if (task.packed)
      task.rising = bits_between(task.narrow ? 32 : args.sort.begin_bit + 32, end) | 0xffffffff;
    else if ((role & 3) != kFromInput)  // keys alone may come in any order into the first pass
      task.rising = bits_between(0, end);
    return;
  }
}

template <class Record, class Side>
__global__ void __launch_bounds__(kThreads, sort_tuning::kBlocksPerSm)
    sort_pass(const __grid_constant__ SweepArgs args, int round, int pass) {
  __shared__ int64_t offsets[kDigits];
  __shared__ int64_t at;
  __shared__ PassTask task;
  cudaGridDependencySynchronize();
  if (!args.space.active[round * kMaxPasses + pass] || (round && !*args.space.repeat)) return;
  bool again = false;  // the last tile is to be done again, the exact way
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) take_tile<Record, Side>(args, round, pass, again, at, task);
    __syncthreads();
    if (task.role == 0) return;
    if (task.role & (kCopy | kMirror)) {
      move_tile(args, task.place, task.begin, task.count, task.role & kMirror);
      continue;
    }
    bool falls;
    if constexpr (sizeof(Record) == 8 && std::is_same_v<Side, uint32_t>)
      falls = task.narrow ? pass_tile<Record, None>(args, task, offsets)
                          : pass_tile<Record, Side>(args, task, offsets);
    else
      falls = pass_tile<Record, Side>(args, task, offsets);
    again = __syncthreads_or(falls);
  }
}

}  // namespace
}  // namespace gpuprims
