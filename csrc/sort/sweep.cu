// Rows of any length: one read counts the digits of all passes, then each pass moves every record
// to its place, in one read and one write (Adinets & Merrill, "Onesweep", 2022). A tile's place
// among the others comes from its predecessors by look-back; tiles are taken in order from a
// counter, so that whoever waits, waits for a block that runs.
// The device decides, from the counts: digits in which a row's keys agree are left out, a sorted
// row is copied and a reversed one mirrored, and buffers alternate such that the last pass that is
// left reads from A. 8-byte keys are sorted by as many of their upper digits as set nearly all of
// them apart; what is still out of order then stands close together and is mended in place. Where
// the counts were misleading, a second round sorts by all digits.
#include "common/launch.h"
#include "sort/count.cuh"
#include "sort/mend.cuh"

namespace gpuprims {
namespace {

// How the passes of a round follow each other: `left` of them, the first of which is number
// `before` of all.
struct Round {
  int left, before;
  bool in_place;
  int done = 0;

  // After pass `done` of `left` the records are in the output, or in A if an even number of passes
  // comes between. In place the output is the input and B, which the first pass may not write; an
  // odd last one leaves them in A.
  __device__ __forceinline__ uint8_t target(int pass) const {
    if (in_place) return pass % 2 == 0 ? kToA : pass == left - 1 ? kToOutput : kToB;
    return pass == left - 1 ? kToOutput : (left - 2 - pass) % 2 ? kToB : kToA;
  }
  __device__ __forceinline__ uint8_t next_role() {
    const uint8_t from = done == 0 ? kFromInput : target(done - 1) == kToA ? kFromA : kFromB;
    const uint8_t role = from | target(done) | ((before + done) % 2 ? kOdd : 0);
    ++done;
    return role;
  }
};

// same[p]: how likely it is that two keys agree in digit p; 1: all do.
__device__ void give_roles(const SweepArgs& args, RowState& state, int64_t n, const float* same) {
  const bool whole = args.sort.begin_bit == 0 && args.sort.end_bit == args.sort.bytes * 8;
  int varying = 0;
  for (int p = 0; p < args.passes; ++p) varying += same[p] < 1;
  const bool copy = varying == 0 || (whole && !state.not_sorted);
  if (copy && args.in_place) return;
  if (copy || (whole && !state.not_reversed && !args.in_place)) {
    state.role[0][0] = copy ? kCopy : kMirror;
    args.space.active[0] = 1;
    return;
  }
  int from = 0, to = args.passes;  // the digits that vary are among these
  while (same[from] == 1) ++from;
  while (same[to - 1] == 1) --to;
  if (args.sort.bytes == 8 && args.side == 4 && to - from <= 4 && (whole || !args.sort.values))
    state.narrow = args.sort.begin_bit + from * 8 + 1;
  int lowest = 0;
  if (args.mend &&
      !state.narrow) {  // until fewer than one key in four has another with the same upper digits
    float alike = static_cast<float>(n);
    for (lowest = args.passes; lowest > 0 && alike >= 0.25f;) alike *= same[--lowest];
    bool more = false;
    for (int p = 0; p < lowest; ++p) more |= same[p] < 1;
    if (!more) lowest = 0;
  }
  Round first{0, args.after_codes, args.in_place};
  for (int p = lowest; p < args.passes; ++p) first.left += same[p] < 1;
  Round second{varying, args.after_codes + first.left, false};
  if (args.in_place) state.unfinished = first.left % 2;
  state.window = lowest * 8;
  for (int p = 0; p < args.passes; ++p) {
    if (same[p] == 1) continue;
    if (p >= lowest) {
      state.role[0][p] = first.next_role();
      args.space.active[p] = 1;
    }
    if (lowest == 0) continue;
    state.role[1][p] = second.next_role();
    args.space.active[kMaxPasses + p] = 1;
  }
}

// A block a row: counts become the digits' first places, and roles are given out.
__global__ void __launch_bounds__(kDigits)
    sort_plan_passes(const __grid_constant__ SweepArgs args) {
  __shared__ uint64_t sums[kDigits / 32];
  __shared__ float squares[kDigits / 32], same[kMaxPasses];
  const int t = threadIdx.x, lane = t & 31;
  cudaGridDependencySynchronize();
  if (args.after_codes && !*args.space.left) return;
  const int64_t rows =
      args.space.totals ? (tile_count(args) ? args.space.totals[0] : 0) : row_count(args.sort);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    if (args.after_codes && !args.left(row)) continue;
    const uint64_t n = row_span(args.sort, row).n;
    for (int p = 0; p < args.passes; ++p) {
      uint64_t* const at = args.space.counts + (row * args.passes + p) * kDigits + t;
      const uint64_t mine = *at;
      uint64_t sum = mine;
      float square = static_cast<float>(mine) / static_cast<float>(n);
      square *= square;
      for (int step = 1; step < 32; step *= 2) {
        const uint64_t before = __shfl_sync(~0u, sum, lane - step);
        if (lane >= step) sum += before;
        square += __shfl_xor_sync(~0u, square, step);
      }
      __syncthreads();
      if (lane == 31) sums[t / 32] = sum, squares[t / 32] = square;
      if (t == 0) same[p] = 0;
      __syncthreads();
      if (mine == n) same[p] = 1;
      for (int w = 0; w < t / 32; ++w) sum += sums[w];
      *at = sum - mine;
      __syncthreads();
      if (t != 0 || same[p] == 1) continue;
      for (float other : squares) same[p] += other;
      if (same[p] > 0.999f) same[p] = 0.999f;  // 1 says that all agree
    }
    __syncthreads();
    if (t == 0) give_roles(args, args.space.state[row], n, same);
    __syncthreads();
  }
}

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
    if (role == 0 || (round && !(state.unfinished & ~kLeftByCodes))) continue;
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

// In place: keys that an odd number of passes left in A.
__global__ void __launch_bounds__(kThreads)
    sort_bring_back(const __grid_constant__ SweepArgs args) {
  cudaGridDependencySynchronize();
  for (int64_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    const TilePlace place = tile_place(args, tile);
    if (!args.space.state[place.row].unfinished) continue;
    const int64_t begin = place.in_row * args.tile, left = place.span.n - begin;
    by_width(args.sort, [&](auto elements) {
      using Element = std::remove_cv_t<std::remove_pointer_t<decltype(elements.input())>>;
      const Element* const from = static_cast<const Element*>(args.space.keys[0]);
#pragma unroll 8
      for (int i = threadIdx.x; i < args.tile; i += kThreads)
        if (i < left)
          elements.store(place.span.start + begin + i, from[place.span.start + begin + i], 0);
    });
  }
}

__global__ void __launch_bounds__(kThreads) sort_clear(uint4* memory, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads)
    memory[i] = make_uint4(0, 0, 0, 0);
}

template <class Record, class Side>
cudaError_t run_round(int round, const SweepArgs& args, const SortPlan& plan, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads)};
  shape.smem = PassTile<Record>::bytes(pass_width<Record, Side>());
  shape.dependent = true;
  for (int pass = 0; pass < args.passes; ++pass)
    if (const auto code = launch(sort_pass<Record, Side>, shape, stream, args, round, pass))
      return code;
  return cudaSuccess;
}

template <class Record, class Side>
cudaError_t run_passes(const SweepArgs& args, const SortPlan& plan, cudaStream_t stream) {
  if (const auto code = run_round<Record, Side>(0, args, plan, stream)) return code;
  if (args.in_place) {
    LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads)};
    shape.dependent = true;
    return launch(sort_bring_back, shape, stream, args);
  }
  if constexpr (sizeof(Record) == 8) {
    if (!args.mend) return cudaSuccess;
    const int64_t blocks = plan.grid / sort_tuning::kBlocksPerSm * kMendBlocksPerSm + 1;
    LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kMendThreads)};
    shape.dependent = true;
    if (const auto code = launch(sort_mend, shape, stream, args)) return code;
    return run_round<Record, Side>(1, args, plan, stream);
  }
  return cudaSuccess;
}

template <class Key>
cudaError_t run(const SweepArgs& args, const SortPlan& plan, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kCountThreads)};
  LaunchShape rows{
      dim3(static_cast<unsigned>(std::clamp<int64_t>(args.sort.rows, 1, plan.grid * 2))),
      dim3(kDigits)};
  // Each kernel is started while the one before it ends, and waits for it.
  shape.dependent = rows.dependent = true;
  cudaError_t code;
  if constexpr (sizeof(Key) == 8)
    code = launch(sort_count<Key, uint64_t>, shape, stream, args, args.sort.order64);
  else
    code = launch(sort_count<Key, uint32_t>, shape, stream, args, args.sort.order32);
  if (code != cudaSuccess) return code;
  if ((code = launch(sort_plan_passes, rows, stream, args)) != cudaSuccess) return code;
  if (plan.side == 8) return run_passes<Key, uint64_t>(args, plan, stream);
  if constexpr (sizeof(Key) == 8)
    return plan.side == 4 ? run_passes<Key, uint32_t>(args, plan, stream)
                          : run_passes<Key, None>(args, plan, stream);
  else
    return plan.packed ? run_passes<uint64_t, None>(args, plan, stream)
                       : run_passes<Key, None>(args, plan, stream);
}

}  // namespace

cudaError_t launch_clear(void* memory, int64_t bytes, int grid, cudaStream_t stream) {
  const int64_t count = bytes / 16;
  const int64_t blocks = std::clamp<int64_t>(count / kThreads, 1, grid);
  return launch(sort_clear, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, stream,
                static_cast<uint4*>(memory), count);
}

// The first plan.clear_bytes of the workspace must be zeros, unless passes by codes come first.
cudaError_t launch_sort_sweep(const SortArgs& sort, const SortPlan& plan, const SweepSpace& space,
                              cudaStream_t stream) {
  const SweepArgs args{
      sort,      space,         plan.tiles_per_row, plan.tiles,       plan.tile,       plan.passes,
      plan.side, plan.in_place, plan.mend,          plan.wide_status, plan.code_passes};
  if (plan.code_passes)
    if (const auto code = launch_sort_codes(sort, plan, space, stream)) return code;
  switch (sort.bytes) {
    case 1:
      return run<uint8_t>(args, plan, stream);
    case 2:
      return run<uint16_t>(args, plan, stream);
    case 4:
      return run<uint32_t>(args, plan, stream);
    default:
      return run<uint64_t>(args, plan, stream);
  }
}

}  // namespace gpuprims
