// The look at offsets, slices and orders that nobody validated, and the list of long CSR rows.
#include <algorithm>

#include "common/launch.h"
#include "reorder/kernels.h"

namespace gpuprims::reorder {
namespace {

constexpr int kThreads = 256;

// Groups of the row, reserved in one piece; false where there is no room: offsets fall again.
__device__ __forceinline__ bool list_row(const LongRows& rows, int64_t row, int64_t length) {
  const int64_t groups = (length + kGroup - 1) / kGroup;
  if (groups > rows.capacity) return false;
  const int64_t at = atomicAdd(rows.count, static_cast<int>(groups));
  if (at < 0 || at + groups > rows.capacity) return false;
  for (int64_t g = 0; g < groups; ++g) rows.list[at + g] = {row, g};
  return true;
}

__global__ void __launch_bounds__(kThreads)
    reorder_check(const __grid_constant__ Packing p, const bool with_rows,
                  const __grid_constant__ LongRows rows) {
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
      const int64_t from = p.slices[at / kStrip], to = p.slices[at / kStrip + 1];
      // Compared first: differences wrap.
      bad |= from < 0 || to > p.slots || to < from || (to - from) % kStrip != 0;
    }
    if (!with_rows) continue;
    const int64_t length = int_at(p.indptr, p.wide, row + 1) - int_at(p.indptr, p.wide, row);
    bad |= length < 0 || length > strip.width;
    if (p.order) bad |= int_at(p.indptr, p.wide, at + 1) < int_at(p.indptr, p.wide, at);
    if (rows.list && !bad && length > kGroup) bad = !list_row(rows, row, length);
  }
  if (bad) atomicOr(rows.flag, 1);
}

}  // namespace

cudaError_t launch_check(const Packing& p, bool with_rows, const LongRows& rows,
                         cudaStream_t stream) {
  const size_t cleared = (rows.list ? 2 : 1) * sizeof(int);  // the count is behind the flag
  const auto code = cudaMemsetAsync(rows.flag, 0, cleared, stream);
  if (code != cudaSuccess) return code;
  const int64_t blocks = std::clamp<int64_t>((p.rows + kThreads - 1) / kThreads, 1, 2048);
  return launch(reorder_check, {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, stream, p,
                with_rows, rows);
}

}  // namespace gpuprims::reorder
