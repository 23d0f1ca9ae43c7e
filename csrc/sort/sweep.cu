// Rows of any length: one read counts the digits of all passes, then each pass moves every record
// to its place, in one read and one write (Adinets & Merrill, "Onesweep", 2022). A tile's place
// among the others comes from its predecessors by look-back; tiles are taken in order from a
// counter, so that whoever waits, waits for a block that runs.
// The device decides, from the counts: digits in which a row's keys agree are left out, a sorted
// row is copied and a reversed one mirrored, and buffers alternate such that the last pass that is
// left reads from A.
#include "common/launch.h"
#include "sort/count.cuh"

namespace gpuprims {
namespace {

// A block a row: counts become the digits' first places, and roles are given out.
__global__ void __launch_bounds__(kDigits)
    sort_plan_passes(const __grid_constant__ SweepArgs args) {
  __shared__ uint64_t sums[kDigits / 32];
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
__global__ void __launch_bounds__(kThreads, sort_tuning::kBlocksPerSm)
    sort_pass(const __grid_constant__ SweepArgs args, int pass) {
  using T = PassTile<Record>;
  using Word = std::conditional_t<sizeof(Record) == 8, uint64_t, uint32_t>;
  constexpr bool kSide = !std::is_same_v<Side, None>;
  using Index = std::conditional_t<kSide, Side, uint32_t>;
  // A 64-bit record without an index beside it may be a packed one, of narrower keys.
  using Only = std::conditional_t<sizeof(Record) == 8 && !kSide, void, Record>;
  constexpr int kItems = T::kItems;
  cudaGridDependencySynchronize();
  if (!args.space.active[pass]) return;
  const T tile(dynamic_memory, static_cast<int>(std::max(sizeof(Record), kSide ? sizeof(Index) : 0)));
  __shared__ int64_t offsets[kDigits];  // where a digit's records of this tile go, less their rank
  __shared__ int64_t next;
  const int t = threadIdx.x;
  const int64_t tiles = tile_count(args);
  Digit digit = digit_at(args.sort, pass, args.sort.packed);
  while (true) {
    __syncthreads();
    if (t == 0) next = atomicAdd(&args.space.next[pass], 1u);
    __syncthreads();
    const int64_t at = next;
    if (at >= tiles) return;
    const TilePlace place = tile_place(args, at);
    const int role = args.space.state[place.row].role[pass];
    if (role == 0) continue;
    const int64_t begin = place.in_row * T::kSize, start = place.span.start;
    const int count =
        static_cast<int>(place.span.n - begin < T::kSize ? place.span.n - begin : T::kSize);
    if (role & (kCopy | kMirror)) {
      move_tile(args, place, begin, count, role & kMirror);
      continue;
    }
    const int source = role & 3, target = role & 12;
    const bool odd = role & kOdd;
    const int64_t first_tile = at - place.in_row;
    typename T::Ranks rank;
    Record* const waiting = tile.template waiting<Record>();
    uint32_t mine = 0;  // records of digit t
    {
      Word records[kItems];
      constexpr Word kGreatest = static_cast<Record>(~Record(0));
      if (source == kFromInput) {
        by_width<Only>(args.sort, [&](auto elements) {
          const auto* const from = elements.input() + start + begin;
          load_records<T>(records, count, kGreatest, [&](int i) -> Word { return from[i]; });
#pragma unroll
          for (int i = 0; i < kItems; ++i) {
            const Word key = elements.key(
                static_cast<std::remove_cv_t<std::remove_reference_t<decltype(*from)>>>(
                    records[i]));
            if (T::place(i) >= count) continue;
            if constexpr (sizeof(Record) == 8)
              records[i] = args.sort.packed
                               ? key << 32 | static_cast<uint32_t>(begin + T::place(i))
                               : key;
            else
              records[i] = key;
          }
        });
      } else {
        const Record* const from =
            static_cast<const Record*>(args.space.keys[source == kFromB]) + start + begin;
        load_records<T>(records, count, kGreatest, [&](int i) -> Word { return from[i]; });
      }
      tile.rank(rank, records, digit, false, [&](int d, uint32_t found) {
        mine = d == static_cast<int>(digit.mask) ? found - (T::kSize - count) : found;
        if (args.wide_status)
          LookBack<uint64_t>(args.space.status, first_tile, odd).announce(place.in_row, d, mine);
        else
          LookBack<uint32_t>(args.space.status, first_tile, odd).announce(place.in_row, d, mine);
      });
#pragma unroll
      for (int i = 0; i < kItems; ++i) waiting[rank[i]] = static_cast<Record>(records[i]);
    }
    if (t < kDigits) {
      const int64_t earlier = static_cast<int64_t>(
          args.wide_status
              ? LookBack<uint64_t>(args.space.status, first_tile, odd)
                    .before(place.in_row, t, mine)
              : LookBack<uint32_t>(args.space.status, first_tile, odd)
                    .before(place.in_row, t, mine));
      offsets[t] =
          static_cast<int64_t>(args.space.counts[(place.row * args.passes + pass) * kDigits + t]) +
          earlier - tile.starts[t];
    }
    digit.low = opaque(digit.low);
    __syncthreads();
    uint32_t digits[kSide ? kItems / 4 : 1] = {};
    uint32_t several = 0;  // of this thread's values, those that are known from their index alone
    const auto move_keys = [&](const auto& store) {
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        const int i = j * kThreads + t;
        const Word record = waiting[i];
        const uint32_t d = digit.of(record);
        if constexpr (kSide) digits[j / 4] |= d << (j % 4 * 8);
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
          moving[rank[i]] = static_cast<Index>(begin + T::place(i));
      } else {
        const Index* const from = side_of<Index>(args, source == kFromB, start) + begin;
        Index index[kItems];
        load_records<T>(index, count, Index(0), [&](int i) { return from[i]; });
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
          store_index(args.sort, start + to,
                      index_of(args.sort, start, static_cast<int64_t>(index)));
      }
      if (several) copy_several<Record>(args, place, several, moving, offsets, digits);
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
  shape.smem = PassTile<Record>::bytes(std::max<int>(sizeof(Record), kSide));
  shape.dependent = true;
  for (int pass = 0; pass < args.passes; ++pass)
    if (const auto code = launch(sort_pass<Record, Side>, shape, stream, args, pass)) return code;
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

// The first plan.clear_bytes of the workspace must be zeros.
cudaError_t launch_sort_sweep(const SortArgs& sort, const SortPlan& plan, const SweepSpace& space,
                              cudaStream_t stream) {
  const SweepArgs args{sort, space, plan.tiles_per_row, plan.tiles,
                       plan.tile, plan.passes, plan.wide_status};
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
