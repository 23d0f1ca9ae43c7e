// Long rows by codes: a sample spreads the keys nearly equally over 32 bits (codes.cuh), of which
// one or two passes sort by the upper ones, and blocks put in order what stands close together
// (finish.cuh). Rows that this is not for - sorted ones, keys that are equal to many others, a
// sample that misled - are left to the passes by the keys' own digits.
#include "common/launch.h"
#include "sort/count.cuh"
#include "sort/finish.cuh"

namespace gpuprims {
namespace {

// Counts of the digits of codes, and whether a row is sorted.
template <class Key>
__global__ void __launch_bounds__(kCountThreads, 3)
    sort_count_codes(const __grid_constant__ SweepArgs args, int code_bits) {
  using Word = std::conditional_t<sizeof(Key) == 8, uint64_t, uint32_t>;
  __shared__ uint32_t counts[2][kDigits];
  __shared__ __align__(16) uint32_t cells[kCodeCells];
  const int t = threadIdx.x;
  for (int i = t; i < 2 * kDigits; i += kCountThreads) counts[0][i] = 0;
  cudaGridDependencySynchronize();
  const Elements<Key> elements{args.sort};
  const bool keys_alone = !args.sort.indices;
  const int shift = 32 - code_bits;
  const Digit low = code_digit(0, args.passes, code_bits),
              high = code_digit(1, args.passes, code_bits);
  const int64_t each = (args.tiles + gridDim.x - 1) / gridDim.x;
  const int64_t first = each * blockIdx.x;
  const int64_t end = first + each < args.tiles ? first + each : args.tiles;
  for (int64_t tile = first; tile < end;) {
    const TilePlace place = tile_place(args, tile);
    const int64_t n = place.span.n, begin = place.in_row * args.tile;
    int64_t stop = begin + (end - tile) * args.tile;
    if (stop > n) stop = n;
    tile += (stop - begin + args.tile - 1) / args.tile;
    const CodeTable& table = args.space.codes[place.row];
    if (!table.scale) continue;
    load_cells(cells, table, kCountThreads);
    const Coder coder(cells, table);
    __syncthreads();
    const Key* const row = elements.input() + place.span.start;
    Trend trend;
    const auto count = [&](Word key) {
      const uint32_t code = coder.of(key) >> shift;
      atomicAdd(&counts[0][low.of(code)], 1u);
      if (args.passes > 1) atomicAdd(&counts[1][high.of(code)], 1u);
    };
    const auto encode = [&](Key bits) { return elements.key(bits); };
    read_span<Key, Word>(row, begin, stop, keys_alone, encode, count, trend);
    trend.tell(args.space.state[place.row]);
    __syncthreads();
    unsigned long long* const sums = reinterpret_cast<unsigned long long*>(args.space.counts) +
                                     place.row * args.passes * kDigits;
    for (int i = t; i < args.passes * kDigits; i += kCountThreads) {
      const uint32_t found = counts[0][i];
      counts[0][i] = 0;
      if (found) atomicAdd(sums + i, static_cast<unsigned long long>(found));
    }
    __syncthreads();
  }
}

// What a pass does with one tile; in shared memory, as registers are few.
struct CodePass {
  TilePlace place;
  int count;                  // 0: there is no tile left
  bool exact, again;          // ranks are taken the exact way; the tile was done before
  int64_t first_tile, begin;  // of the row; of the tile in the row
  int64_t row;                // whose cells are in shared memory
  Coder::Map map;
};

template <class Record, class Side>
struct CodeMemory {
  using T = PassTile<Record>;
  static constexpr int kCodes = (T::bytes(pass_width<Record, Side>()) + 15) / 16 * 16;
  static constexpr int kCells = kCodes + T::kSize * 2;
  static constexpr int kBytes = kCells + kCodeCells * 4;
};

// As Tile::rank, for records that may come in any order within a digit: one table for the block.
template <class T, class Counted>
__device__ __forceinline__ void rank_freely(const T& tile, typename T::Ranks& rank,
                                            const typename T::Ranks& codes, int count, Digit digit,
                                            const Counted& counted) {
  uint32_t* const table = reinterpret_cast<uint32_t*>(tile.stage);
  const int t = threadIdx.x, lane = t & 31;
  __syncthreads();
  if (t < kDigits) table[t] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < T::kItems; ++i) {
    uint32_t before = T::place(i);
    if (T::place(i) < count) before = atomicAdd(table + digit.of(codes[i]), 1u);
    rank.set(i, before);
  }
  __syncthreads();
  uint32_t own = 0, sum = 0;
  if (t < kDigits) {
    sum = own = table[t];
    counted(t, own);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t before = __shfl_sync(~0u, sum, lane - step);
      if (lane >= step) sum += before;
    }
    if (lane == 31) tile.sums[t / 32] = sum;
  }
  __syncthreads();
  if (t < kDigits) {
    for (int w = 0; w < t / 32; ++w) sum += tile.sums[w];
    tile.starts[t] = table[t] = sum - own;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < T::kItems; ++i)
    if (T::place(i) < count) rank.add(i, table[digit.of(codes[i])]);
  __syncthreads();  // the table may go
}

// Returns whether records are not in the order of their codes, which optimistic ranks can lead to;
// then the tile is to be done again. Of one code they may come in any order.
template <class Record, class Side>
__device__ __forceinline__ bool code_tile(const SweepArgs& args, const CodePass& task, int pass,
                                          int code_shift, Digit digit, const int64_t* firsts,
                                          int64_t* offsets) {
  using T = PassTile<Record>;
  using Memory = CodeMemory<Record, Side>;
  using Word = std::conditional_t<sizeof(Record) == 8, uint64_t, uint32_t>;
  constexpr bool kSide = !std::is_same_v<Side, None>;
  constexpr int kItems = T::kItems;
  const T tile(dynamic_memory, pass_width<Record, Side>());
  const int t = threadIdx.x;
  typename T::Ranks rank;
  Record* const waiting = tile.template waiting<Record>();
  uint16_t* const codes = reinterpret_cast<uint16_t*>(dynamic_memory + Memory::kCodes);
  uint32_t mine = 0;  // records of digit t
  {
    Word records[kItems];
    typename T::Ranks code;
    const Coder coder(reinterpret_cast<const uint32_t*>(dynamic_memory + Memory::kCells), task.map);
    const int count = task.count;
    const int64_t begin = task.begin, start = task.place.span.start;
    if (pass == 0) {
      const auto load = [&](auto elements) {
        const auto* const from = elements.input() + start + begin;
        using Element = std::remove_cv_t<std::remove_reference_t<decltype(*from)>>;
        load_records<T>(records, count, [&](int i) -> Word { return from[i]; });
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          const auto key = elements.key(static_cast<Element>(records[i]));
          code.set(i, coder.of(key) >> code_shift);
          records[i] = key;
          if constexpr (sizeof(Record) == 8 && !kSide)
            if (args.sort.packed)
              records[i] = uint64_t{key} << 32 | static_cast<uint32_t>(begin + T::place(i));
        }
      };
      if (!kSide && args.sort.packed)
        load(Elements<uint32_t>{args.sort});
      else
        load(Elements<uint64_t>{args.sort});
    } else {
      const Record* const from = static_cast<const Record*>(args.space.keys[1]) + start + begin;
      load_records<T>(records, count, [&](int i) -> Word { return from[i]; });
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (sizeof(Record) == 8 && !kSide && args.sort.packed)
          code.set(i, coder.of(static_cast<uint32_t>(uint64_t{records[i]} >> 32)) >> code_shift);
        else
          code.set(i, coder.of(records[i]) >> code_shift);
      }
    }
    const auto counted = [&](int d, uint32_t found) {
      if (task.again) return;  // it has announced them
      mine = found;
      if (args.wide_status)
        LookBack<uint64_t>(args.space.status, task.first_tile, pass % 2)
            .announce(task.place.in_row, d, mine);
      else
        LookBack<uint32_t>(args.space.status, task.first_tile, pass % 2)
            .announce(task.place.in_row, d, mine);
    };
    if (pass == 0)
      rank_freely(tile, rank, code, task.count, digit, counted);
    else
      tile.rank(rank, code, task.count, digit, !task.exact, counted);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      waiting[rank[i]] = static_cast<Record>(records[i]);
      codes[rank[i]] = static_cast<uint16_t>(code[i]);
    }
  }
  if (t < kDigits && !task.again) {
    const int64_t earlier = static_cast<int64_t>(
        args.wide_status ? LookBack<uint64_t>(args.space.status, task.first_tile, pass % 2)
                               .before(task.place.in_row, t, mine)
                         : LookBack<uint32_t>(args.space.status, task.first_tile, pass % 2)
                               .before(task.place.in_row, t, mine));
    offsets[t] = firsts[t] + earlier - tile.starts[t];
  }
  __syncthreads();
  const int count = task.count;
  const bool to_b = pass < args.passes - 1;  // the last pass leaves them in A
  const int64_t start = task.place.span.start;
  Record* const to_keys = static_cast<Record*>(args.space.keys[to_b]) + start;
  bool falls = false;
  uint32_t digits[kSide ? kItems / 4 : 1] = {};
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int i = j * kThreads + t;
    const uint32_t code = codes[i], d = digit.of(code);
    if constexpr (kSide) digits[j / 4] |= d << (j % 4 * 8);
    if (i >= count) continue;
    if (pass > 0 && i > 0) falls |= code < codes[i - 1];
    to_keys[offsets[d] + i] = waiting[i];
  }
  if constexpr (kSide) {
    __syncthreads();
    Side* const moving = tile.template waiting<Side>();
    if (pass == 0) {
#pragma unroll
      for (int i = 0; i < kItems; ++i)
        moving[rank[i]] = static_cast<Side>(task.begin + T::place(i));
    } else {
      const Side* const from = side_of<Side>(args, true, start) + task.begin;
      Side index[kItems];
      load_records<T>(index, count, [&](int i) { return from[i]; });
#pragma unroll
      for (int i = 0; i < kItems; ++i) moving[rank[i]] = index[i];
    }
    __syncthreads();
    Side* const to_side = side_of<Side>(args, to_b, start);
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const int i = j * kThreads + t;
      if (i < count) to_side[offsets[digits[j / 4] >> (j % 4 * 8) & 255] + i] = moving[i];
    }
  }
  return falls;
}

// Counts of a row's digits become their first places; all threads.
__device__ __forceinline__ void first_places(const uint64_t* counts, int64_t* firsts) {
  __shared__ int64_t sums[kDigits / 32];
  const int t = threadIdx.x, lane = t & 31;
  int64_t mine = 0, sum = 0;
  if (t < kDigits) {
    sum = mine = static_cast<int64_t>(counts[t]);
    for (int step = 1; step < 32; step *= 2) {
      const int64_t before = __shfl_sync(~0u, sum, lane - step);
      if (lane >= step) sum += before;
    }
    if (lane == 31) sums[t / 32] = sum;
  }
  __syncthreads();
  if (t >= kDigits) return;
  for (int w = 0; w < t / 32; ++w) sum += sums[w];
  firsts[t] = sum - mine;
}

template <class Record, class Side>
__global__ void __launch_bounds__(kThreads, sort_tuning::kBlocksPerSm)
    sort_pass_codes(const __grid_constant__ SweepArgs args, int pass, int code_bits) {
  using Memory = CodeMemory<Record, Side>;
  __shared__ int64_t firsts[kDigits], offsets[kDigits];
  __shared__ int64_t at;
  __shared__ CodePass task;
  constexpr int kSize = PassTile<Record>::kSize;
  if (threadIdx.x == 0) task.row = -1;
  cudaGridDependencySynchronize();
  if (args.sort.rows == 1 && !coded(args, 0)) return;
  bool again = false;  // the last tile is to be done again, the exact way
  while (true) {
    __syncthreads();
    const int64_t row = task.row;
    __syncthreads();
    if (threadIdx.x == 0) {
      while (true) {
        if (!again) at = atomicAdd(args.space.code_next + pass, 1u);
        task.count = 0;
        if (at >= args.tiles) break;
        task.place = tile_place(args, at);
        if (!coded(args, task.place.row)) continue;
        task.begin = task.place.in_row * kSize;
        const int64_t left = task.place.span.n - task.begin;
        task.count = static_cast<int>(left < kSize ? left : kSize);
        task.first_tile = at - task.place.in_row;
        task.exact = again || args.sort.exact, task.again = again;
        task.row = task.place.row;
        break;
      }
    }
    __syncthreads();
    if (task.count == 0) return;
    if (task.row != row) {
      const CodeTable& table = args.space.codes[task.row];
      load_cells(reinterpret_cast<uint32_t*>(dynamic_memory + Memory::kCells), table, kThreads);
      if (threadIdx.x == 0) task.map = {table.least, table.range, table.shift, table.scale};
      first_places(args.space.counts + (task.row * args.passes + pass) * kDigits, firsts);
      __syncthreads();
    }
    const bool falls =
        code_tile<Record, Side>(args, task, pass, 32 - code_bits,
                                code_digit(pass, args.passes, code_bits), firsts, offsets);
    again = __syncthreads_or(falls);
  }
}

template <class Record, class Side>
cudaError_t run(const SweepArgs& args, const SortPlan& plan, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads)};
  shape.dependent = true;
  shape.smem = CodeMemory<Record, Side>::kBytes;
  for (int pass = 0; pass < args.passes; ++pass)
    if (const auto code =
            launch(sort_pass_codes<Record, Side>, shape, stream, args, pass, plan.code_bits))
      return code;
  const int64_t chunks = args.sort.rows * plan.chunks;
  LaunchShape last{dim3(static_cast<unsigned>(std::min(chunks, plan.grid))), dim3(kFinishThreads)};
  last.dependent = true;
  last.smem = FinishMemory<Record, Side>::kBytes;
  return launch(sort_finish<Record, Side>, last, stream, args, plan.chunks, plan.code_bits);
}

}  // namespace

// By the blocks of sort_sample that do nothing else.
cudaError_t launch_clear(void* memory, int64_t bytes, int grid, cudaStream_t stream) {
  SweepArgs args{};
  args.space.status = memory;
  const int64_t count = bytes / 16;
  const int64_t blocks = std::clamp<int64_t>(count / kThreads, 1, grid);
  return launch(sort_sample, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, stream, args, 0,
                0, 0, count, 1);
}

cudaError_t launch_sort_sample(const SortArgs& sort, const SortPlan& plan, const SweepSpace& space,
                               int ends, cudaStream_t stream) {
  const SweepArgs args{sort, space};
  const int threads = plan.sample_threads, samples = plan.samples;
  const auto samplers = static_cast<int>(std::min<int64_t>(sort.rows, plan.grid * 2));
  const int64_t clear = plan.clear_bytes / 16;
  const auto clearers = std::clamp<int64_t>(clear / (4 * threads), 1, plan.grid);
  LaunchShape shape{dim3(static_cast<unsigned>(samplers + clearers)), dim3(threads)};
  shape.smem = sample_bytes(samples);
  return launch(sort_sample, shape, stream, args, samples, sample_slots(samples), samplers, clear,
                ends);
}

cudaError_t launch_sort_codes(const SortArgs& sort, const SortPlan& plan, const SweepSpace& space,
                              cudaStream_t stream) {
  if (sort.bytes == 4 && !plan.packed) return cudaErrorNotSupported;  // does not pay
  SweepArgs args{
      sort,      space,         plan.tiles_per_row, plan.tiles,      plan.tile, plan.code_passes,
      plan.side, plan.in_place, plan.mend,          plan.wide_status};
  args.space.counts = space.code_counts;
  LaunchShape shape;
  // In long rows of integers up to half of the span is outside of the sample's.
  if (const auto code = launch_sort_sample(sort, plan, space, sort.bytes == 8 ? 2 : 32, stream))
    return code;
  shape.dependent = true;
  shape.grid = dim3(static_cast<unsigned>(plan.grid));
  shape.block = dim3(kCountThreads);
  const auto count = sort.bytes == 8 ? sort_count_codes<uint64_t> : sort_count_codes<uint32_t>;
  if (const auto code = launch(count, shape, stream, args, plan.code_bits)) return code;
  if (plan.side) return run<uint64_t, uint32_t>(args, plan, stream);
  return run<uint64_t, None>(args, plan, stream);
}

}  // namespace gpuprims
