// Rows of any length: one read counts the digits of all passes, then each pass moves every record
// to its place, in one read and one write (Adinets & Merrill, "Onesweep", 2022). A tile's place
// among the others comes from its predecessors by look-back; tiles are taken in order from a
// counter, so that whoever waits, waits for a block that runs.
// The device decides, from the counts: digits in which a row's keys agree are left out, a sorted
// row is copied and a reversed one mirrored, and buffers alternate such that the last pass that is
// left reads from A.
#include "common/launch.h"
#include "sort/sweep.cuh"

namespace gpuprims {
namespace {

// Counts the digits of all passes and looks whether the row is sorted.
template <class Key, class Word>
__global__ void __launch_bounds__(kThreads)
    sort_count(const __grid_constant__ SweepArgs args,
               const __grid_constant__ OrderParams<Word> order) {
  constexpr int kPasses = sizeof(Key);
  __shared__ uint32_t counts[kPasses][kDigits];
  const int t = threadIdx.x, lane = t & 31;
  cudaGridDependencySynchronize();
  const int64_t tiles = tile_count(args);
  const Key* const input = static_cast<const Key*>(args.sort.input);
  const bool keys_alone = !args.sort.indices;
  const bool whole = args.sort.begin_bit == 0 && args.sort.end_bit == kPasses * 8;
  for (int p = 0; p < args.passes; ++p) counts[p][t] = 0;
  __syncthreads();
  // A block's tiles follow each other, so that counts are handed on once a row.
  const int64_t each = (tiles + gridDim.x - 1) / gridDim.x;
  const int64_t first = each * blockIdx.x, end = first + each < tiles ? first + each : tiles;
  for (int64_t tile = first; tile < end; ++tile) {
    const TilePlace place = tile_place(args, tile);
    const int64_t begin = place.in_row * kSweepTile;
    const int count =
        static_cast<int>(place.span.n - begin < kSweepTile ? place.span.n - begin : kSweepTile);
    const Key* const from = input + place.span.start + begin;
    bool falls = false, rises = false;
    constexpr int kBatch = 8;
#pragma unroll 1
    for (int j = 0; j < kItems; j += kBatch) {
      Key raw[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int i = (j + b) * kThreads + t;
        raw[b] = i < count ? from[i] : Key(0);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int i = (j + b) * kThreads + t;
        const bool here = i < count, second = here && (i > 0 || begin > 0);
        const Word key = order.encode(raw[b]);
        Word before = __shfl_sync(~0u, key, lane - 1);
        if (lane == 0 && second) before = order.encode(from[i - 1]);
        falls |= second && key < before;
        rises |= second && (keys_alone ? key > before : key >= before);
        if (!here) continue;
        if (whole) {
#pragma unroll
          for (int p = 0; p < kPasses; ++p)
            atomicAdd(&counts[p][static_cast<uint32_t>(key >> (p * 8)) & 255], 1u);
        } else {
          for (int p = 0; p < args.passes; ++p) {
            const int low = args.sort.begin_bit + p * 8;
            const int width = args.sort.end_bit - low < 8 ? args.sort.end_bit - low : 8;
            const uint32_t mask = width <= 0 ? 0 : (1u << width) - 1;
            const Word shifted = mask ? key >> low : 0;
            atomicAdd(&counts[p][static_cast<uint32_t>(shifted) & mask], 1u);
          }
        }
      }
    }
    RowState* const state = args.space.state + place.row;
    if (__any_sync(~0u, falls) && lane == 0) state->not_sorted = 1;
    if (__any_sync(~0u, rises) && lane == 0) state->not_reversed = 1;
    const bool last = tile + 1 == end ||
                      begin + kSweepTile >= place.span.n;  // of the row, or of this block's part
    if (!last) continue;
    __syncthreads();
    for (int p = 0; p < args.passes; ++p) {
      const uint32_t mine = counts[p][t];
      counts[p][t] = 0;
      if (mine)
        atomicAdd(reinterpret_cast<unsigned long long*>(args.space.counts) +
                      (place.row * args.passes + p) * kDigits + t,
                  static_cast<unsigned long long>(mine));
    }
    __syncthreads();
  }
}

// A block a row: counts become the digits' first places, and roles are given out.
__global__ void __launch_bounds__(kThreads)
    sort_plan_passes(const __grid_constant__ SweepArgs args) {
  __shared__ uint64_t sums[kThreads / 32];
  __shared__ uint32_t constant[kMaxPasses];
  const int t = threadIdx.x, lane = t & 31;
  cudaGridDependencySynchronize();
  const int64_t rows =
      args.space.totals ? (tile_count(args) ? args.space.totals[0] : 0) : row_count(args.sort);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const uint64_t n = row_span(args.sort, row).n;
    if (t < kMaxPasses) constant[t] = 0;
    for (int p = 0; p < args.passes; ++p) {
      __syncthreads();
      uint64_t* const at = args.space.counts + (row * args.passes + p) * kDigits + t;
      const uint64_t mine = *at;
      uint64_t sum = mine;
      for (int step = 1; step < 32; step *= 2) {
        const uint64_t before = __shfl_sync(~0u, sum, lane - step);
        if (lane >= step) sum += before;
      }
      if (lane == 31) sums[t / 32] = sum;
      if (mine == n) constant[p] = 1;
      __syncthreads();
      for (int w = 0; w < t / 32; ++w) sum += sums[w];
      *at = sum - mine;
    }
    __syncthreads();
    if (t == 0) {
      RowState& state = args.space.state[row];
      const bool whole = args.sort.begin_bit == 0 && args.sort.end_bit == args.sort.bytes * 8;
      int left = 0;
      for (int p = 0; p < args.passes; ++p) left += !constant[p];
      const bool copy = left == 0 || (whole && !state.not_sorted);
      const bool mirror = !copy && whole && !state.not_reversed;
      int done = 0;
      for (int p = 0; p < args.passes; ++p) {
        uint8_t role = 0;
        if (copy || mirror) {
          if (p == 0) role = copy ? kCopy : kMirror;
        } else if (!constant[p]) {
          // After pass `done` of `left` the records are in the output, or in A if an even number of
          // passes comes between.
          const auto to = [&](int pass) {
            return pass == left - 1 ? kToOutput : (left - 2 - pass) % 2 ? kToB : kToA;
          };
          role = done == 0 ? kFromInput : to(done - 1) == kToA ? kFromA : kFromB;
          role |= to(done) | (done % 2 ? kOdd : 0);
          ++done;
        }
        state.role[p] = role;
        if (role) args.space.active[p] = 1;
      }
    }
    __syncthreads();
  }
}

struct None {};

// One pass. Record: as it lies in A and B; Side: the index beside it, or None.
template <class Record, class Side>
__global__ void __launch_bounds__(kThreads, 2)
    sort_pass(const __grid_constant__ SweepArgs args, int pass) {
  using Word = std::conditional_t<sizeof(Record) == 8, uint64_t, uint32_t>;
  constexpr bool kSide = !std::is_same_v<Side, None>;
  using Index = std::conditional_t<kSide, Side, uint32_t>;
  // A 64-bit record without an index beside it may be a packed one, of narrower keys.
  using Only = std::conditional_t<sizeof(Record) == 8 && !kSide, void, Record>;
  cudaGridDependencySynchronize();
  if (!args.space.active[pass]) return;
  constexpr int kBatch = 8;
  constexpr int kWidest =
      sizeof(Record) > (kSide ? sizeof(Index) : 0) ? sizeof(Record) : sizeof(Index);
  const T tile(dynamic_memory, kWidest);
  __shared__ int64_t offsets[kDigits];  // where a digit's records of this tile go, less their rank
  __shared__ int64_t next;
  const int t = threadIdx.x;
  const int64_t tiles = tile_count(args);
  const Digit digit = digit_at(args.sort, pass);
  while (true) {
    __syncthreads();
    if (t == 0) next = atomicAdd(&args.space.next[pass], 1u);
    __syncthreads();
    const int64_t at = next;
    if (at >= tiles) return;
    const TilePlace place = tile_place(args, at);
    const int role = args.space.state[place.row].role[pass];
    if (role == 0) continue;
    const int64_t begin = place.in_row * kSweepTile, start = place.span.start;
    const int count =
        static_cast<int>(place.span.n - begin < kSweepTile ? place.span.n - begin : kSweepTile);
    if (role & (kCopy | kMirror)) {
      move_tile(args, place, begin, count, role & kMirror);
      continue;
    }
    const int source = role & 3, target = role & 12;
    Record* const waiting = tile.template waiting<Record>();
    if (source == kFromInput) {
      load_keys<kItems, kBatch, Only>(
          args.sort, start + begin, t, kThreads, count, [&](int i, auto key) {
            waiting[T::template place<Record>(i)] = static_cast<Record>(
                args.sort.packed ? uint64_t{key} << 32 | static_cast<uint32_t>(begin + i) : key);
          });
    } else {
      load_records(tile,
                   static_cast<const Record*>(args.space.keys[source == kFromB]) + start + begin,
                   count);
    }
    if (count < kSweepTile) tile.template fill<Record>(count);
    __syncthreads();
    Ranks<kItems, sizeof(Word) == 8> rank;
    const int64_t first_tile = at - place.in_row;
    uint32_t mine = 0;  // records of digit t
    {
      Word records[kItems];
      tile.template take<Record>(records);
      tile.rank(rank, records, digit, [&](int d, uint32_t found) {
        mine = d == static_cast<int>(digit.mask) ? found - (kSweepTile - count) : found;
        if (args.wide_status)
          LookBack<uint64_t>(args.space.status, first_tile, role & kOdd)
              .announce(place.in_row, d, mine);
        else
          LookBack<uint32_t>(args.space.status, first_tile, role & kOdd)
              .announce(place.in_row, d, mine);
      });
#pragma unroll
      for (int i = 0; i < kItems; ++i) waiting[rank[i]] = static_cast<Record>(records[i]);
    }
    const int64_t earlier = static_cast<int64_t>(
        args.wide_status ? LookBack<uint64_t>(args.space.status, first_tile, role & kOdd)
                               .before(place.in_row, t, mine)
                         : LookBack<uint32_t>(args.space.status, first_tile, role & kOdd)
                               .before(place.in_row, t, mine));
    offsets[t] =
        static_cast<int64_t>(args.space.counts[(place.row * args.passes + pass) * kDigits + t]) +
        earlier - tile.starts[t];
    __syncthreads();
    Record* const to_keys = target == kToOutput
                                ? nullptr
                                : static_cast<Record*>(args.space.keys[target == kToB]) + start;
    uint32_t digits[kSide ? kItems / 4 : 1] = {};
    uint32_t several = 0;  // of this thread's values, those that are known from their index alone
    const auto move_keys = [&](auto&& store) {
    // A batch's records and places first: stores to memory would hold up what is read after them.
#pragma unroll(kSide ? kItems / kBatch : 1)
      for (int j = 0; j < kItems; j += kBatch) {
        Word record[kBatch];
        int64_t to[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) record[b] = waiting[(j + b) * kThreads + t];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const uint32_t d = digit.of(record[b]);
          to[b] = offsets[d] + (j + b) * kThreads + t;
          if constexpr (kSide) digits[(j + b) / 4] |= d << ((j + b) % 4 * 8);
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b)
          if ((j + b) * kThreads + t < count) store(j + b, to[b], record[b]);
      }
    };
    if (to_keys) {
      move_keys([&](int, int64_t to, Word record) { to_keys[to] = static_cast<Record>(record); });
    } else {
      by_width<Only>(args.sort, [&](auto elements) {
        using Key = typename decltype(elements)::Word;
        move_keys([&](int j, int64_t to, Word record) {
          const Key key =
              static_cast<Key>(args.sort.packed ? uint64_t{record} >> 32 : uint64_t{record});
          if constexpr (kSide) {
            if (elements.order().several(key))
              several |= 1u << j;
            else
              elements.store(start + to, key, 0);
          } else {
            elements.store(start + to, key, start + static_cast<uint32_t>(record));
            if (args.sort.packed)
              store_index(args.sort, start + to,
                          index_of(args.sort, start, static_cast<uint32_t>(record)));
          }
        });
      });
    }
    if constexpr (kSide) {
      __syncthreads();
      Index* const moving = tile.template waiting<Index>();
      if (source == kFromInput) {
#pragma unroll
        for (int i = 0; i < kItems; ++i)
          moving[rank[i]] = static_cast<Index>(begin + t * kItems + i);
      } else {
        const Index* const from = side_of<Index>(args, source == kFromB, start) + begin;
        // Consecutive indices of a thread straight from memory: its lines are used whole.
#pragma unroll
        for (int j = 0; j < kItems; j += kBatch) {
          Index index[kBatch];
#pragma unroll
          for (int b = 0; b < kBatch; ++b)
            index[b] = t * kItems + j + b < count ? from[t * kItems + j + b] : 0;
#pragma unroll
          for (int b = 0; b < kBatch; ++b) moving[rank[j + b]] = index[b];
        }
      }
      __syncthreads();
      Index* const to_side =
          target == kToOutput ? nullptr : side_of<Index>(args, target == kToB, start);
#pragma unroll
      for (int j = 0; j < kItems; j += kBatch) {
        Index index[kBatch];
        int64_t to[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          index[b] = moving[(j + b) * kThreads + t];
          to[b] = offsets[digits[(j + b) / 4] >> ((j + b) % 4 * 8) & 255] + (j + b) * kThreads + t;
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if ((j + b) * kThreads + t >= count) continue;
          const int64_t from = static_cast<int64_t>(index[b]);
          if (to_side) {
            to_side[to[b]] = index[b];
            continue;
          }
          store_index(args.sort, start + to[b], index_of(args.sort, start, from));
        }
      }
      if (several) copy_several<Record>(args, place, tile, several, moving, offsets, digits);
    }
  }
}

__global__ void __launch_bounds__(kThreads) sort_clear(uint4* memory, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads)
    memory[i] = make_uint4(0, 0, 0, 0);
}

template <class Record, class Side>
cudaError_t run_passes(const SweepArgs& args, const SortPlan& plan, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads)};
  constexpr int kSide = std::is_same_v<Side, None> ? 0 : sizeof(Side);
  shape.smem = T::bytes(std::max<int>(sizeof(Record), kSide));
  shape.dependent = true;
  for (int pass = 0; pass < args.passes; ++pass)
    if (const auto code = launch(sort_pass<Record, Side>, shape, stream, args, pass)) return code;
  return cudaSuccess;
}

template <class Key>
cudaError_t run(const SweepArgs& args, const SortPlan& plan, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(std::min<int64_t>(plan.grid * 2, plan.tiles))),
                    dim3(kThreads)};
  LaunchShape rows{
      dim3(static_cast<unsigned>(std::clamp<int64_t>(args.sort.rows, 1, plan.grid * 2))),
      dim3(kThreads)};
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

// The first plan.clear_bytes of the workspace must be zeros.
cudaError_t launch_sort_sweep(const SortArgs& sort, const SortPlan& plan, const SweepSpace& space,
                              cudaStream_t stream) {
  const SweepArgs args{sort, space, plan.tiles_per_row, plan.tiles, plan.passes, plan.wide_status};
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
