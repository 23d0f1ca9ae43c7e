// Moves of whole units between CSR and packed rows, a warp each; copy.cu has the kernel.
#pragma once
#include "reorder/kernels.h"

namespace gpuprims::reorder {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
template <class Word>
constexpr int kUnits = sizeof(Word) == 8 ? 2 : 4;  // of a warp
template <class Word>
constexpr int kTileWords = sizeof(Word) > 8    ? 1
                           : sizeof(Word) == 8 ? 17 * 32
                                               : 33 * 32;

struct alignas(16) Word16 {
  uint64_t low, high;
};

// 16 bytes of what stands where no value is, over and over: every element's size divides 16.
struct Pattern {
  uint64_t low = 0, high = 0;

  // Word `w` of a slot.
  template <class Word>
  __device__ __forceinline__ Word word(int64_t w) const {
    if constexpr (sizeof(Word) == 16) {
      return {low, high};
    } else {
      const int at = static_cast<int>(w * sizeof(Word)) & 15;
      return static_cast<Word>((at < 8 ? low : high) >> at % 8 * 8);
    }
  }
};

__device__ __forceinline__ Pattern fill_pattern(const MoveArgs& args) {
  Pattern pattern;
  if (!args.fill) return pattern;
  const auto* const element = static_cast<const unsigned char*>(args.fill);
#pragma unroll 1
  for (int b = 0; b < 8; ++b) {
    pattern.low |= static_cast<uint64_t>(element[b % args.element]) << b * 8;
    pattern.high |= static_cast<uint64_t>(element[(b + 8) % args.element]) << b * 8;
  }
  return pattern;
}

struct Unit {
  int64_t strip, first, last;  // columns
};

// Unit `u`, which is below units_of.
__device__ __forceinline__ Unit unit_at(const Packing& p, int64_t u, Strip* strip) {
  Unit unit{u, 0, 0};
  int64_t group = -1;
  if (p.units) {
    unit.strip = p.units[u];
    group = p.units[p.unit_count + u];
  } else if (!p.slices) {
    const int64_t strips = strips_of(p.rows);
    group = u / strips;
    unit.strip = u - group * strips;
  }
  *strip = strip_at(p, unit.strip);
  unit.first = group < 0 ? 0 : group * kGroup;
  const int64_t end = group < 0 ? strip->width : unit.first + kGroup;
  unit.last = end < strip->width ? end : strip->width;
  return unit;
}

// Lanes that a row of `n` words takes: a power of two, at most 32.
__device__ __forceinline__ int lanes_for(int64_t n) {
  int lanes = 1;
  while (lanes < n && lanes < 32) lanes *= 2;
  return lanes;
}

// Copies a word to shared memory; seen after copies_done. Asynchronous where the card can: then a
// warp has all of its loads under way and holds none in registers.
template <class Word>
__device__ __forceinline__ void copy_word(Word* to, const Word* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Word) == 4 || sizeof(Word) == 8) {
    const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from),
                 "n"(static_cast<int>(sizeof(Word)))
                 : "memory");
    return;
  }
#endif
  *to = *from;
}

__device__ __forceinline__ void copies_done() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  __syncwarp();
}

template <class Word, bool kPack>
__device__ void turn_tile(const MoveArgs& args, const Strip& strip, int64_t position, int64_t begin,
                          int64_t length, int64_t first, int n, Word fill, Word* tile) {
  const auto* const from = static_cast<const Word*>(args.from);
  auto* const to = static_cast<Word*>(args.to);
  const int lane = threadIdx.x % 32;
  const int group = lanes_for(n), pitch = group == 1 ? 1 : group + 1;
  const int row_step = 32 / group, column = lane % group;
  const bool written = args.p.slices || position < args.p.rows;
  const int64_t slot = strip.base + first * strip.stride + lane;
  if constexpr (!kPack) {
#pragma unroll 4
    for (int j = 0; j < n; ++j)
      if (first + j < length) copy_word(tile + lane * pitch + j, from + slot + j * strip.stride);
    copies_done();
  }
#pragma unroll 4
  for (int step = 0; step < group; ++step) {
    const int row = step * row_step + lane / group;
    const int64_t at = __shfl_sync(~0u, begin, row) + first + column;
    const int64_t own = __shfl_sync(~0u, length, row);
    const bool there = column < n && first + column < own;
    if (!there) continue;
    if constexpr (kPack)
      copy_word(tile + row * pitch + column, from + at);
    else
      to[at] = tile[row * pitch + column];
  }
  if constexpr (kPack)
    copies_done();
  else
    __syncwarp();
  if constexpr (kPack) {
    for (int j = 0; j < n; ++j) {
      const Word word = first + j < length ? tile[lane * pitch + j] : fill;
      if (written) to[slot + j * strip.stride] = word;
    }
    __syncwarp();
  }
}

// kStrips whole strips at once, whose values fit the tile side by side; false where they do not.
// Rows that follow one another are read (or written) as one run; otherwise some lanes a row.
template <class Word, bool kPack, int kStrips>
__device__ bool move_strips(const MoveArgs& args, int64_t u, int64_t units, Word fill, Word* tile,
                            int tile_words) {
  const Packing& p = args.p;
  if (u + kStrips > units) return false;
  const int lane = threadIdx.x % 32;
  int64_t base[kStrips], begin[kStrips];
  int length[kStrips], width[kStrips], at[kStrips];
  int64_t stride = kStrip, first_strip = 0;
  int64_t first_row = 0;
  bool fits = true, in_order = true;
#pragma unroll
  for (int q = 0; q < kStrips; ++q) {
    Strip strip;
    const Unit unit = unit_at(p, u + q, &strip);
    if (q == 0) first_strip = unit.strip;
    fits &= unit.first == 0 && unit.last == strip.width && unit.strip == first_strip + q &&
            strip.width <= kGroup;
    base[q] = strip.base + lane;
    width[q] = static_cast<int>(unit.last);
    stride = strip.stride;
  }
#pragma unroll
  for (int q = 0; q < kStrips; ++q) {
    const int64_t position = (first_strip + q) * kStrip + lane;
    const int64_t row = position < p.rows ? row_at(p, position) : p.rows;
    if (q == 0) first_row = __shfl_sync(~0u, row, 0);
    in_order &= row == first_row + q * kStrip + lane || position >= p.rows;
    begin[q] = int_at(p.indptr, p.wide, row);
    const int64_t end = int_at(p.indptr, p.wide, row < p.rows ? row + 1 : row);
    length[q] = static_cast<int>(end - begin[q]);
  }
  int total = 0;
#pragma unroll
  for (int q = 0; q < kStrips; ++q) {  // places in the tile
    int sum = length[q];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    at[q] = total + sum - length[q];
    total += __shfl_sync(~0u, sum, 31);
  }
  if (!fits || total > tile_words) return false;
  in_order = __all_sync(~0u, in_order);  // a sort leaves most equal rows where they are
  const auto* const from = static_cast<const Word*>(args.from);
  auto* const to = static_cast<Word*>(args.to);
  // CSR side of the copy, into the tile or out of it.
  const auto each_row = [&](auto copy) {
    if (in_order) {
      const int64_t run = __shfl_sync(~0u, begin[0], 0);
#pragma unroll 4
      for (int i = lane; i < total; i += 32) copy(run + i, i);
      return;
    }
#pragma unroll
    for (int q = 0; q < kStrips; ++q) {
      const int group = lanes_for(width[q]);
      for (int step = 0; step < group; ++step) {
        const int row = step * (32 / group) + lane / group;
        const int64_t source = __shfl_sync(~0u, begin[q], row);
        const int place = __shfl_sync(~0u, at[q], row), count = __shfl_sync(~0u, length[q], row);
        for (int j = lane % group; j < count; j += group) copy(source + j, place + j);
      }
    }
  };
  if constexpr (kPack) {
    each_row([&](int64_t entry, int place) { copy_word(tile + place, from + entry); });
    copies_done();
#pragma unroll
    for (int q = 0; q < kStrips; ++q) {
      const bool written = p.slices || (first_strip + q) * kStrip + lane < p.rows;
      Word* slot = to + base[q];
#pragma unroll 4
      for (int j = 0; j < width[q]; ++j, slot += stride) {
        const Word word = j < length[q] ? tile[at[q] + j] : fill;
        if (written) *slot = word;
      }
    }
  } else {
#pragma unroll
    for (int q = 0; q < kStrips; ++q) {
      const Word* slot = from + base[q];
#pragma unroll 4
      for (int j = 0; j < width[q]; ++j, slot += stride)
        if (j < length[q]) copy_word(tile + at[q] + j, slot);
    }
    copies_done();
    each_row([&](int64_t entry, int place) { to[entry] = tile[place]; });
  }
  __syncwarp();
  return true;
}

// Slots of several words, or of 16 bytes: some lanes a slot.
template <class Word, bool kPack>
__device__ void move_straight(const MoveArgs& args, const Strip& strip, int64_t position,
                              int64_t begin, int64_t length, int64_t first, int64_t last) {
  const Pattern fill = kPack ? fill_pattern(args) : Pattern{};
  const auto* const from = static_cast<const Word*>(args.from);
  auto* const to = static_cast<Word*>(args.to);
  const int lane = threadIdx.x % 32;
  const int group = lanes_for(args.words), row_step = 32 / group;
  for (int64_t j = first; j < last; ++j) {
#pragma unroll 2
    for (int step = 0; step < group; ++step) {
      const int row = step * row_step + lane / group;
      const int64_t source = __shfl_sync(~0u, begin, row) + j;
      const bool there = j < __shfl_sync(~0u, length, row);
      const bool written = args.p.slices || position - lane + row < args.p.rows;
      if (!written) continue;
      const int64_t slot = (strip.base + j * strip.stride + row) * args.words;
      for (int64_t w = lane % group; w < args.words; w += group) {
        if constexpr (kPack)
          to[slot + w] = there ? from[source * args.words + w] : fill.word<Word>(w);
        else if (there)
          to[source * args.words + w] = from[slot + w];
      }
    }
  }
}

template <class Word, bool kPack>
__device__ void move_unit(const MoveArgs& args, int64_t u, Word fill, Word* tile, int tile_words) {
  Strip strip;
  const Unit unit = unit_at(args.p, u, &strip);
  const int64_t position = unit.strip * kStrip + threadIdx.x % 32;
  int64_t begin = 0, length = 0;
  if (position < args.p.rows) {
    const int64_t row = row_at(args.p, position);
    begin = int_at(args.p.indptr, args.p.wide, row);
    length = int_at(args.p.indptr, args.p.wide, row + 1) - begin;
  }
  if (args.words > 1 || sizeof(Word) > 8) {
    move_straight<Word, kPack>(args, strip, position, begin, length, unit.first, unit.last);
    return;
  }
  if constexpr (sizeof(Word) <= 8) {
    const int columns = tile_words / 32 - 1;  // a power of two, and a word between rows
    for (int64_t c = unit.first; c < unit.last; c += columns) {
      const int64_t left = unit.last - c;
      turn_tile<Word, kPack>(args, strip, position, begin, length, c,
                             static_cast<int>(left < columns ? left : columns), fill, tile);
    }
  }
}

// Units from `u` on, those of a warp: as many together as the tile holds.
template <class Word, bool kPack>
__device__ void move_units(const MoveArgs& args, int64_t u, int64_t units, int each, Word* tile,
                           int tile_words) {
  const Word fill = kPack ? fill_pattern(args).template word<Word>(0) : Word{};
  if constexpr (sizeof(Word) <= 8) {
    if (args.words == 1 &&
        move_strips<Word, kPack, kUnits<Word>>(args, u, units, fill, tile, tile_words))
      return;
  }
  for (int64_t last = u + each < units ? u + each : units; u < last; ++u) {
    if constexpr (sizeof(Word) <= 8) {
      if (args.words == 1 && move_strips<Word, kPack, 1>(args, u, units, fill, tile, tile_words))
        continue;
    }
    move_unit<Word, kPack>(args, u, fill, tile, tile_words);
  }
}

}  // namespace
}  // namespace gpuprims::reorder
