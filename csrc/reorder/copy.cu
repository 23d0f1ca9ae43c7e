// pack, unpack and gather. A warp has a unit of a packing: 32 rows, up to 256 of their columns.
// Where a slot is a word of at most 8 bytes, rows are read along (a few lanes a row), turned in
// shared memory, and written across: both sides coalesce. Wider slots fill whole sectors by
// themselves and are moved straight. Works on bits, so that five kernels serve all dtypes.
#include <algorithm>

#include "common/launch.h"
#include "reorder/kernels.h"

namespace gpuprims::reorder {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

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

int64_t units_of(const Packing& p) {
  if (p.units) return p.unit_count;
  const int64_t strips = strips_of(p.rows);
  return p.slices ? strips : strips * ((p.longest + kGroup - 1) / kGroup);
}

// Lanes that a row of `n` words takes: a power of two, at most 32.
__device__ __forceinline__ int lanes_for(int64_t n) {
  int lanes = 1;
  while (lanes < n && lanes < 32) lanes *= 2;
  return lanes;
}

template <class Word, bool kPack>
__device__ void turn_tile(const MoveArgs& args, const Strip& strip, int64_t position, int64_t begin,
                          int64_t length, int64_t first, int n, const Pattern& fill, Word* tile) {
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
      if (first + j < length) tile[lane * pitch + j] = from[slot + j * strip.stride];
    __syncwarp();
  }
#pragma unroll 4
  for (int step = 0; step < group; ++step) {
    const int row = step * row_step + lane / group;
    const int64_t at = __shfl_sync(~0u, begin, row) + first + column;
    const int64_t own = __shfl_sync(~0u, length, row);
    const bool there = column < n && first + column < own;
    if (!there) continue;
    if constexpr (kPack)
      tile[row * pitch + column] = from[at];
    else
      to[at] = tile[row * pitch + column];
  }
  __syncwarp();
  if constexpr (kPack) {
    for (int j = 0; j < n; ++j) {
      const Word word = first + j < length ? tile[lane * pitch + j] : fill.word<Word>(0);
      if (written) to[slot + j * strip.stride] = word;
    }
    __syncwarp();
  }
}

// Rows that follow one another are read, or written, as one run.
template <class Word, bool kPack>
__device__ void turn_run(const MoveArgs& args, const Strip& strip, int64_t position, int64_t begin,
                         int64_t length, int64_t run, int n, const Pattern& fill, Word* tile) {
  const auto* const from = static_cast<const Word*>(args.from);
  auto* const to = static_cast<Word*>(args.to);
  const int lane = threadIdx.x % 32;
  const int64_t base = __shfl_sync(~0u, begin, 0);
  const int at = static_cast<int>(begin - base), count = static_cast<int>(run);
  const bool written = args.p.slices || position < args.p.rows;
  const int64_t slot = strip.base + lane;
  if constexpr (kPack) {
#pragma unroll 8
    for (int i = lane; i < count; i += 32) tile[i] = from[base + i];
    __syncwarp();
#pragma unroll 2
    for (int j = 0; j < n; ++j) {
      const Word word = j < length ? tile[at + j] : fill.word<Word>(0);
      if (written) to[slot + j * strip.stride] = word;
    }
  } else {
#pragma unroll 8
    for (int j = 0; j < n; ++j)
      if (j < length) tile[at + j] = from[slot + j * strip.stride];
    __syncwarp();
    for (int i = lane; i < count; i += 32) to[base + i] = tile[i];
  }
  __syncwarp();
}

// Slots of several words, or of 16 bytes: some lanes a slot.
template <class Word, bool kPack>
__device__ void move_straight(const MoveArgs& args, const Strip& strip, int64_t position,
                              int64_t begin, int64_t length, int64_t first, int64_t last,
                              const Pattern& fill) {
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
__device__ void move_unit(const MoveArgs& args, int64_t u, Word* tile, int tile_words) {
  const Pattern fill = kPack ? fill_pattern(args) : Pattern{};
  Strip strip;
  const Unit unit = unit_at(args.p, u, &strip);
  const int64_t position = unit.strip * kStrip + threadIdx.x % 32;
  int64_t begin = 0, length = 0;
  if (position < args.p.rows) {
    const int64_t row = row_at(args.p, position);
    begin = int_at(args.p.indptr, args.p.wide, row);
    length = int_at(args.p.indptr, args.p.wide, row + 1) - begin;
  } else if (!args.p.order) {
    begin = args.p.entries;  // behind the last row, so that the run ends there
  }
  if (args.words > 1 || sizeof(Word) > 8) {
    move_straight<Word, kPack>(args, strip, position, begin, length, unit.first, unit.last, fill);
    return;
  }
  if constexpr (sizeof(Word) <= 8) {
    const int64_t run = __shfl_sync(~0u, begin + length, 31) - __shfl_sync(~0u, begin, 0);
    if (!args.p.order && unit.first == 0 && unit.last == strip.width && run <= tile_words) {
      turn_run<Word, kPack>(args, strip, position, begin, length, run,
                            static_cast<int>(strip.width), fill, tile);
      return;
    }
    const int columns = tile_words / 32 - 1;  // a power of two, and a word between rows
    for (int64_t c = unit.first; c < unit.last; c += columns) {
      const int64_t left = unit.last - c;
      turn_tile<Word, kPack>(args, strip, position, begin, length, c,
                             static_cast<int>(left < columns ? left : columns), fill, tile);
    }
  }
}

// A row of the result takes `group` lanes; four rows are on their way in each.
template <class Word>
__device__ void gather_rows(const MoveArgs& args) {
  const auto* const from = static_cast<const Word*>(args.from);
  auto* const to = static_cast<Word*>(args.to);
  const int group = lanes_for(args.words), each = kThreads / group;
  const int own = threadIdx.x / group, first_word = threadIdx.x % group;
  const Pattern fill = fill_pattern(args);
  constexpr int kRows = 4;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * each * kRows; first < args.count;
       first += static_cast<int64_t>(gridDim.x) * each * kRows) {
    int64_t source[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t i = first + k * each + own;
      source[k] = i < args.count ? int_at(args.index, args.wide_index, i) : -1;
    }
    for (int64_t w = first_word; w < args.words; w += group) {
      Word word[kRows];
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const bool inside = source[k] >= 0 && source[k] < args.source_rows;
        word[k] = inside ? from[source[k] * args.words + w] : Word{};
      }
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const int64_t i = first + k * each + own;
        const bool inside = source[k] >= 0 && source[k] < args.source_rows;
        if (i >= args.count) continue;
        if (!inside && source[k] != -1) word[k] = Pattern{args.bad, args.bad}.word<Word>(w);
        if (source[k] == -1) word[k] = fill.word<Word>(w);
        to[i * args.words + w] = word[k];
      }
    }
  }
}

template <class Word>
__global__ void __launch_bounds__(kThreads, 4)
    reorder_move(const __grid_constant__ MoveArgs args, const int64_t units) {
  constexpr int kTileWords = sizeof(Word) > 8 ? 1 : sizeof(Word) == 8 ? 17 * 32 : 33 * 32;
  __shared__ Word tiles[kWarps][kTileWords];
  if (args.move == Move::gather) {
    gather_rows<Word>(args);
    return;
  }
  if (args.flag && *args.flag) {
    const int64_t rows = args.move == Move::pack ? args.p.slots : args.p.entries;
    auto* const to = static_cast<Word*>(args.to);
    const Pattern bad{args.bad, args.bad};
    for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
         at < rows * args.words; at += static_cast<int64_t>(gridDim.x) * kThreads)
      to[at] = bad.word<Word>(at);
    return;
  }
  Word* const tile = tiles[threadIdx.x / 32];
  const int64_t u = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (u >= units) return;
  if (args.move == Move::pack)
    move_unit<Word, true>(args, u, tile, kTileWords);
  else
    move_unit<Word, false>(args, u, tile, kTileWords);
}

__global__ void __launch_bounds__(kThreads)
    reorder_check(const __grid_constant__ Packing p, const bool with_rows, int* flag) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  bool bad = false;
  if (first == 0) {
    if (p.slices) bad = p.slices[0] != 0 || p.slices[strips_of(p.rows)] != p.slots;
    if (with_rows)
      bad |= int_at(p.indptr, p.wide, 0) != 0 || int_at(p.indptr, p.wide, p.rows) != p.entries;
  }
  for (int64_t at = first; at < p.rows; at += threads) {
    const int64_t row = row_at(p, at);
    if (row < 0 || row >= p.rows) {
      bad = true;
      continue;
    }
    const Strip strip = strip_at(p, at / kStrip);
    if (p.slices) {
      const int64_t size = p.slices[at / kStrip + 1] - p.slices[at / kStrip];
      bad |= size < 0 || size % kStrip != 0;
    }
    if (!with_rows) continue;
    const int64_t length = int_at(p.indptr, p.wide, row + 1) - int_at(p.indptr, p.wide, row);
    bad |= length < 0 || length > strip.width;
    if (p.order) bad |= int_at(p.indptr, p.wide, at + 1) < int_at(p.indptr, p.wide, at);
  }
  if (bad) atomicOr(flag, 1);
}

template <class Word>
cudaError_t start(const MoveArgs& args, cudaStream_t stream) {
  int64_t units = 0, blocks;
  if (args.move == Move::gather) {
    const int64_t rows = std::max<int64_t>(4 * kThreads / std::min<int64_t>(args.words, 32), 1);
    blocks = std::min<int64_t>((args.count + rows - 1) / rows, 1 << 22);
  } else {
    units = units_of(args.p);
    blocks = (units + kWarps - 1) / kWarps;
  }
  if (args.flag) blocks = std::max<int64_t>(blocks, 1);  // somebody fills
  if (blocks == 0) return cudaSuccess;
  return launch(reorder_move<Word>, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, stream,
                args, units);
}

}  // namespace

cudaError_t launch_check(const Packing& p, bool with_rows, int* flag, cudaStream_t stream) {
  const auto code = cudaMemsetAsync(flag, 0, sizeof(int), stream);
  if (code != cudaSuccess) return code;
  const int64_t blocks = std::clamp<int64_t>((p.rows + kThreads - 1) / kThreads, 1, 2048);
  return launch(reorder_check, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, stream, p,
                with_rows, flag);
}

cudaError_t launch_move(const MoveArgs& args, cudaStream_t stream) {
  switch (args.word) {
    case 1:
      return start<uint8_t>(args, stream);
    case 2:
      return start<uint16_t>(args, stream);
    case 4:
      return start<uint32_t>(args, stream);
    case 8:
      return start<uint64_t>(args, stream);
    default:
      return start<Word16>(args, stream);
  }
}

}  // namespace gpuprims::reorder
