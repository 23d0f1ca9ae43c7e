// Codes: a monotone map of a row's keys to 32 bits, over which they are spread nearly equally.
// Cells of equal width span the keys; in each the map is a line, of which start and rise are 16
// bits each.
#pragma once
#include "sort/sweep.cuh"

namespace gpuprims {
namespace {

constexpr int kCellBits = 11;
static_assert(kCodeCells == 1 << kCellBits);

// A row's map, its cells in shared memory.
struct Coder {
  struct Map {
    uint64_t least, range;
    int shift;
    uint32_t scale;
  };
  const uint32_t* cells;
  uint64_t least, range;
  int shift;
  uint32_t scale;

  __device__ __forceinline__ Coder(const uint32_t* cells, const Map& map)
      : cells(cells), least(map.least), range(map.range), shift(map.shift), scale(map.scale) {}
  __device__ __forceinline__ Coder(const uint32_t* cells, const CodeTable& table)
      : Coder(cells, Map{table.least, table.range, table.shift, table.scale}) {}

  static __device__ __forceinline__ Map map_of(uint64_t least, uint64_t most) {
    const uint64_t range = most - least;
    const int shift = __clzll(static_cast<long long>(range));
    const uint64_t scale = (~uint64_t{0} >> 1) / ((range << shift >> 32) + 1);
    return {least, range, shift, static_cast<uint32_t>(scale)};
  }

  // 2^32 is the range.
  __device__ __forceinline__ uint32_t place(uint64_t key) const {
    uint64_t above = key > least ? key - least : 0;
    above = above < range ? above : range;
    return __umulhi(static_cast<uint32_t>(above << shift >> 32), scale) << 1;
  }
  __device__ __forceinline__ uint32_t place(uint32_t key) const {
    const uint32_t first = static_cast<uint32_t>(least), last = static_cast<uint32_t>(range);
    uint32_t above = key > first ? key - first : 0;
    above = above < last ? above : last;
    return __umulhi(above << (shift - 32), scale) << 1;
  }
  static __device__ __forceinline__ uint32_t cell(uint32_t place) {
    return place >> (32 - kCellBits);
  }

  template <class Word>
  __device__ __forceinline__ uint32_t of(Word key) const {
    const uint32_t at = place(key), line = cells[cell(at)];
    return (line & 0xffff0000) + __umulhi(at << kCellBits, line << 16);
  }
};

// All threads; the cells may be used after the next barrier.
__device__ __forceinline__ void load_cells(uint32_t* to, const CodeTable& table, int threads) {
  const uint4* const from = reinterpret_cast<const uint4*>(table.cells);
  for (int i = threadIdx.x; i < kCodeCells / 4; i += threads)
    reinterpret_cast<uint4*>(to)[i] = from[i];
}

}  // namespace
}  // namespace gpuprims
