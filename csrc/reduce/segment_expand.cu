// segment_expand: each row of a segment gets the segment's row. A block takes consecutive rows:
// finds the segments of the first and the last by search, brings the offsets between to shared
// memory, and each thread walks a few rows along them. Works on bits, so that four kernels serve
// all dtypes.
#include <algorithm>
#include <bit>

#include "common/launch.h"
#include "reduce/segment_kernels.h"

namespace gpuprims {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;                     // rows a thread walks
constexpr int kMostRows = kThreads * kEach;  // of a block
constexpr int kHeld = 2048;                  // segments a block holds in shared memory

__device__ __forceinline__ int64_t offset_at(const SegmentExpandArgs& args, int64_t at) {
  return args.wide ? static_cast<const int64_t*>(args.indptr)[at]
                   : static_cast<const int32_t*>(args.indptr)[at];
}

// The last segment in [low, high] that begins at or before `row`; within bounds whatever the
// offsets are.
__device__ __forceinline__ int64_t find_segment(const SegmentExpandArgs& args, int64_t row,
                                                int64_t low, int64_t high) {
  while (low < high) {
    const int64_t middle = high - (high - low) / 2;
    if (offset_at(args, middle) <= row)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// The same by a warp, 32 probes at a time.
__device__ __forceinline__ int64_t find_by_warp(const SegmentExpandArgs& args, int64_t row) {
  const int lane = threadIdx.x % 32;
  int64_t low = 0, high = args.segments - 1;
  while (low < high) {
    const int64_t step = (high - low + 31) / 32;
    const int64_t probe = low + (lane + 1) * step;
    const bool before = probe <= high && offset_at(args, probe) <= row;
    const unsigned votes = __ballot_sync(~0u, before);
    const int64_t passed = __popc(votes);
    low += passed * step;
    high = low + step - 1 < high ? low + step - 1 : high;
  }
  return low;
}

__global__ void __launch_bounds__(kThreads) segment_check(const SegmentExpandArgs args) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  bool bad = false;
  if (first == 0) bad = offset_at(args, 0) != 0 || offset_at(args, args.segments) != args.n;
  for (int64_t s = first; s < args.segments; s += threads)
    bad |= offset_at(args, s + 1) < offset_at(args, s);
  if (bad) atomicOr(args.flag, 1);
}

template <class Word>
__global__ void __launch_bounds__(kThreads)
    segment_expand(const __grid_constant__ SegmentExpandArgs args, const int rows,
                   const int width) {
  __shared__ int begins[kHeld];  // of the block's segments, from its first row
  __shared__ uint16_t owner[kMostRows];
  __shared__ int64_t ends[2];
  const int t = threadIdx.x;
  auto* const out = static_cast<Word*>(args.out);
  const auto* const values = static_cast<const Word*>(args.values);
  cudaGridDependencySynchronize();
  if (args.flag && *args.flag) {
    const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
    for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + t; at < args.n * args.features;
         at += threads)
      out[at] = static_cast<Word>(args.filler);
    return;
  }
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * rows; first < args.n;
       first += static_cast<int64_t>(gridDim.x) * rows) {
    const int count = static_cast<int>(args.n - first < rows ? args.n - first : rows);
    if (t < 64) {
      const int64_t found = find_by_warp(args, t < 32 ? first : first + count - 1);
      if (t % 32 == 0) ends[t / 32] = found;
    }
    __syncthreads();
    const int64_t low = ends[0], high = ends[1];
    const bool held = high - low < kHeld;
    if (held) {
      for (int s = t; s <= high - low; s += kThreads) {
        const int64_t begin = offset_at(args, low + s) - first;
        begins[s] = begin < 0 ? 0 : static_cast<int>(begin < count ? begin : count);
      }
      __syncthreads();
      const int each = (count + kThreads - 1) / kThreads, from = t * each;
      if (from < count) {
        int s = 0, last = static_cast<int>(high - low);
        for (int top = last; s < top;) {
          const int middle = top - (top - s) / 2;
          if (begins[middle] <= from)
            s = middle;
          else
            top = middle - 1;
        }
        for (int row = from; row < from + each && row < count; ++row) {
          while (s < last && begins[s + 1] <= row) ++s;
          owner[row] = static_cast<uint16_t>(s);
        }
      }
      __syncthreads();
    }
    // `width` threads a row: a power of two, so that many rows of few columns are written at once.
    const int row_threads = kThreads / width;
    for (int row = t / width; row < count; row += row_threads) {
      // Thousands of empty segments in between: searched row by row.
      const int64_t s = held ? low + owner[row] : find_segment(args, first + row, low, high);
      const Word* const from = values + s * args.features;
      Word* const to = out + (first + row) * args.features;
      for (int64_t c = t % width; c < args.features; c += width) to[c] = from[c];
    }
    __syncthreads();
  }
}

template <class Word>
cudaError_t start(const SegmentExpandArgs& args, cudaStream_t stream) {
  const int64_t fit = kMostRows * 4 / std::max<int64_t>(args.features, 4);
  const int rows = static_cast<int>(std::clamp<int64_t>(fit, 16, kMostRows));
  const int64_t blocks = std::min<int64_t>((args.n + rows - 1) / rows, 1 << 20);
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0,
                          args.flag != nullptr};
  const auto width =
      std::bit_ceil(static_cast<uint64_t>(std::min<int64_t>(args.features, kThreads)));
  return launch(segment_expand<Word>, shape, stream, args, rows, static_cast<int>(width));
}

}  // namespace

cudaError_t launch_segment_check(const SegmentExpandArgs& args, cudaStream_t stream) {
  const auto code = cudaMemsetAsync(args.flag, 0, 64, stream);
  if (code != cudaSuccess) return code;
  const int64_t blocks = std::min<int64_t>((args.segments + kThreads) / kThreads, 2048);
  return launch(segment_check, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, stream, args);
}

cudaError_t launch_segment_expand(const SegmentExpandArgs& args, cudaStream_t stream) {
  switch (args.bytes) {
    case 1:
      return start<uint8_t>(args, stream);
    case 2:
      return start<uint16_t>(args, stream);
    case 4:
      return start<uint32_t>(args, stream);
    default:
      return start<uint64_t>(args, stream);
  }
}

}  // namespace gpuprims
