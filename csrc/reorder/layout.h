// Where packed slots lie, on host and device. Rows stand in `order`; 32 consecutive positions are a
// strip. Padded: slot (i, p) = i * rows + p, every strip as wide as the longest row. Sliced: a
// strip has slots of its own, slot (i, lane) = slices[strip] + i * 32 + lane, as wide as its
// longest row (SELL-32-sigma of Kreutzer et al., SISC 2014, where rows were sorted in windows).
#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define GPUPRIMS_HD __host__ __device__ __forceinline__
#else
#define GPUPRIMS_HD inline
#endif

namespace gpuprims::reorder {

constexpr int kStrip = 32;
// The tree of a row's sum: 32 products in order are a piece, 8 pieces in order a group, and the
// groups in order the row. A function of the row's length alone, so that packed and CSR kernels,
// CPU and GPU, give the same bits. A unit of work is a group of a strip.
constexpr int kPiece = 32;
constexpr int kGroup = 256;

struct Packing {
  const void* indptr = nullptr;     // [rows + 1]
  const int64_t* slices = nullptr;  // [strips + 1]; null: padded
  const void* order = nullptr;      // [rows]: the row at a position; null: the position itself
  const int32_t* units = nullptr;   // [2, unit_count]: strip and group; null: a unit a strip
  bool wide = false;                // indptr and order are int64
  int64_t rows = 0;
  int64_t slots = 0;
  int64_t entries = 0;  // values before packing
  int64_t longest = 0;  // padded: slots a row
  int64_t unit_count = 0;
};

struct Strip {
  int64_t base, stride, width;  // slot (i, lane) = base + i * stride + lane, i < width
};

GPUPRIMS_HD int64_t int_at(const void* vector, bool wide, int64_t at) {
  return wide ? static_cast<const int64_t*>(vector)[at] : static_cast<const int32_t*>(vector)[at];
}

GPUPRIMS_HD int64_t strips_of(int64_t rows) { return (rows + kStrip - 1) / kStrip; }

GPUPRIMS_HD Strip strip_at(const Packing& p, int64_t strip) {
  if (!p.slices) return {strip * kStrip, p.rows, p.longest};
  const int64_t base = p.slices[strip];
  return {base, kStrip, (p.slices[strip + 1] - base) / kStrip};
}

GPUPRIMS_HD int64_t row_at(const Packing& p, int64_t position) {
  return p.order ? int_at(p.order, p.wide, position) : position;
}

}  // namespace gpuprims::reorder
