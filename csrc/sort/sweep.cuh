// Parts of the sweep: a row's role in a pass, where a tile lies, look-back, loads, moves.
#pragma once
#include "sort/tile.cuh"

namespace gpuprims {
namespace {

constexpr int kThreads = sort_tuning::kSweepThreads;

// The tile of a pass over records of so many bytes.
template <class Record>
using PassTile = Tile<sort_tuning::kSweepThreads, sort_tuning::sweep_items(sizeof(Record))>;
// A row's role in a pass: 0 rests.
enum Role : uint8_t {
  kFromInput = 1,
  kFromA = 2,
  kFromB = 3,  // bits 0-1
  kToA = 4,
  kToB = 8,
  kToOutput = 12,  // bits 2-3
  kOdd = 16,       // the number of passes before this one
  kCopy = 32,
  kMirror = 64,
};

struct SweepArgs {
  SortArgs sort;
  SweepSpace space;
  int64_t tiles_per_row;
  int64_t tiles;
  int tile;  // records
  int passes;
  int side;  // bytes of an index beside its key
  bool in_place;
  bool mend;
  bool wide_status;
  bool rest;   // others came before, and the rows that they left are sorted
  int before;  // their passes with look-back

  // Whether they left a row.
  __device__ __forceinline__ bool left(int64_t row) const {
    return space.state[row].unfinished & kLeft;
  }
};

struct None {};

// Bytes of the widest of what passes through a tile's shared memory.
template <class Record, class Side>
constexpr int pass_width() {
  if constexpr (std::is_same_v<Side, None>)
    return sizeof(Record);
  else
    return sizeof(Record) > sizeof(Side) ? sizeof(Record) : sizeof(Side);
}

// Where a tile lies.
struct TilePlace {
  int64_t row;
  int64_t in_row;  // its number in the row
  RowSpan span;
};

__device__ __forceinline__ TilePlace tile_place(const SweepArgs& args, int64_t tile) {
  if (!args.space.tile_row) {
    const int64_t row = tile / args.tiles_per_row;
    return {row, tile - row * args.tiles_per_row, row_span(args.sort, row)};
  }
  const int64_t row = args.space.tile_row[tile];
  return {row, tile - args.space.tile_base[row], row_span(args.sort, row)};
}

__device__ __forceinline__ int64_t tile_count(const SweepArgs& args) {
  if (args.sort.bad && *args.sort.bad) return 0;
  return args.space.totals ? args.space.totals[1] : args.tiles;
}

// A tile's count of a digit, or that of all tiles up to it, with 2 bits that say which. Passes of a
// row take turns in the code of the latter, so that what a pass leaves means nothing to the next
// and need not be cleared.
template <class Status>
struct LookBack {
  static constexpr int kFlag = sizeof(Status) * 8 - 2;
  static constexpr Status kCount = (Status(1) << kFlag) - 1;
  volatile Status* row;  // [tiles of the row][256]
  Status through;        // the flag of a count of all tiles up to this one

  __device__ __forceinline__ LookBack(void* status, int64_t first_tile, bool odd)
      : row(static_cast<volatile Status*>(status) + first_tile * kDigits),
        through(Status(odd ? 3 : 2) << kFlag) {}

  __device__ __forceinline__ void announce(int64_t tile, int digit, uint32_t count) const {
    row[tile * kDigits + digit] = (tile == 0 ? through : Status(1) << kFlag) | count;
  }

  // The count of all tiles before; announces it with this tile's. Several tiles are looked at
  // together: their words come from L2.
  __device__ __forceinline__ Status before(int64_t tile, int digit, uint32_t count) const {
    constexpr int kTogether = 8;
    Status sum = 0;
    bool done = tile == 0;
    for (int64_t at = tile - 1; !done;) {
      Status seen[kTogether];
#pragma unroll
      for (int b = 0; b < kTogether; ++b)
        seen[b] = at >= b ? row[(at - b) * kDigits + digit] : through;
      int passed = 0;  // a word that is not announced yet is looked at again
#pragma unroll
      for (int b = 0; b < kTogether; ++b) {
        const Status flag = seen[b] & ~kCount;
        if (done || passed < b || (flag != through && flag != Status(1) << kFlag)) continue;
        sum += seen[b] & kCount;
        done = flag == through;
        passed = b + 1;
      }
      at -= passed;
    }
    if (tile > 0) row[tile * kDigits + digit] = through | (sum + count);
    return sum;
  }
};

// A sorted row's tile: as it is, or mirrored.
__device__ __noinline__ void move_tile(const SweepArgs& args, const TilePlace& place, int64_t begin,
                                       int count, bool mirror) {
  const int64_t start = place.span.start, last = place.span.n - 1;
  by_width(args.sort, [&](auto elements) {
    const auto* const from = elements.input() + start + begin;
#pragma unroll 1
    for (int j = 0; j * kThreads < count; j += 8) {
      std::remove_cv_t<std::remove_reference_t<decltype(*from)>> raw[8];
#pragma unroll
      for (int b = 0; b < 8; ++b) {
        const int i = (j + b) * kThreads + threadIdx.x;
        raw[b] = i < count ? from[i] : 0;
      }
#pragma unroll
      for (int b = 0; b < 8; ++b) {
        const int i = (j + b) * kThreads + threadIdx.x;
        if (i >= count) break;
        const int64_t was = begin + i, to = start + (mirror ? last - was : was);
        if (args.sort.values)
          static_cast<std::remove_cv_t<std::remove_reference_t<decltype(*from)>>*>(
              args.sort.values)[to] = raw[b];
        if (args.sort.indices) store_index(args.sort, to, index_of(args.sort, start, was));
      }
    }
  });
}

template <class Index>
__device__ __forceinline__ Index* side_of(const SweepArgs& args, bool b, int64_t start) {
  return reinterpret_cast<Index*>(static_cast<unsigned char*>(args.space.side[b]) +
                                  start * (b ? args.space.side_step : int(sizeof(Index))));
}

// This thread's records of a tile; zeros stand behind the row's end.
template <class T, class Word, class Load>
__device__ __forceinline__ void load_records(Word (&records)[T::kItems], int count,
                                             const Load& load) {
  if (count == T::kSize) {
#pragma unroll
    for (int i = 0; i < T::kItems; ++i) records[i] = load(T::place(i));
    return;
  }
#pragma unroll
  for (int i = 0; i < T::kItems; ++i)
    records[i] = T::place(i) < count ? load(T::place(i)) : Word(0);
}

// The values of which the key does not tell the bits; rare, and so out of the way.
template <class Element, class Index, int kWords>
__device__ __noinline__ void copy_several(const SweepArgs& args, const TilePlace& place,
                                          uint32_t several, const Index* moving,
                                          const int64_t* offsets,
                                          const uint32_t (&digits)[kWords]) {
  by_width<Element>(args.sort, [&](auto elements) {
    if (!args.sort.values) return;
#pragma unroll
    for (int j = 0; j < kWords * 4; ++j) {
      if (!(several >> j & 1)) continue;
      const int i = j * kThreads + threadIdx.x;
      const int64_t to = offsets[digits[j / 4] >> (j % 4 * 8) & 255] + i;
      static_cast<Element*>(args.sort.values)[place.span.start + to] =
          elements.input()[place.span.start + static_cast<int64_t>(moving[i])];
    }
  });
}

}  // namespace
}  // namespace gpuprims
