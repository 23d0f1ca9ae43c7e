// Looks at the offsets once before they are followed: raises flags, lists the chunks of hubs.
#include "aggregate/elements.cuh"
#include "attention/kernels.h"
#include "common/launch.h"

namespace gpuprims::attention {
namespace {

__global__ void __launch_bounds__(256)
    attend_prepare(const Csr csr, const Hubs hubs, const bool check_ids) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  int bad = 0;
  if (thread == 0 && load_int(csr.indptr, csr.wide_offsets, 0) != 0) bad = kBadOffsets;
  if (thread == 0 && load_int(csr.indptr, csr.wide_offsets, csr.rows) != csr.edges)
    bad = kBadOffsets;
  for (int64_t row = thread; row < csr.rows; row += threads) {
    const int64_t begin = load_int(csr.indptr, csr.wide_offsets, row);
    const int64_t end = load_int(csr.indptr, csr.wide_offsets, row + 1);
    if (begin < 0 || end < begin || end > csr.edges) {
      bad = kBadOffsets;
      continue;
    }
    int64_t chunks = 0, at = 0;
    if (hubs.capacity > 0 && end - begin >= kHubDegree) {
      // The order of hubs in the list differs from run to run; the results do not depend on it.
      chunks = (end - begin) / kChunk;
      at = static_cast<int64_t>(atomicAdd(hubs.count, static_cast<unsigned long long>(chunks)));
      if (at + chunks > hubs.capacity) {
        // Rows overlap: indptr decreases somewhere. Their runs would be far more than there are.
        bad = kBadOffsets;
        continue;
      }
    }
    if (hubs.starts) {  // of the runs that begin at this row's end or before, but after its start
      const int64_t after = (begin + kRowCost * row) / hubs.run_work + 1;
      const int64_t upto =
          row + 1 < csr.rows ? (end + kRowCost * (row + 1)) / hubs.run_work : hubs.runs;
      for (int64_t run = after; run <= upto && run <= hubs.runs; ++run) hubs.starts[run] = row + 1;
      if (row == 0) hubs.starts[0] = 0;
    }
    for (int64_t number = 0; number < chunks; ++number) hubs.chunks[at + number] = {row, number};
  }
  for (int64_t edge = thread; check_ids && edge < csr.edges; edge += threads) {
    if (csr.indices && static_cast<uint64_t>(load_int(csr.indices, csr.wide_indices, edge)) >=
                           static_cast<uint64_t>(csr.columns))
      bad |= kBadIndices;
    if (static_cast<uint64_t>(edge_id(csr, edge)) >= static_cast<uint64_t>(csr.edges))
      bad |= kBadIds;
  }
  if (bad) atomicOr(hubs.flag, bad);
}

}  // namespace

cudaError_t launch_prepare(const Csr& csr, const Hubs& hubs, bool check_ids, cudaStream_t stream) {
  const auto code = cudaMemsetAsync(hubs.flag, 0, kSpaceHeader, stream);
  if (code != cudaSuccess) return code;
  const int64_t blocks = ceil_div(std::max(csr.rows, check_ids ? csr.edges : int64_t(0)) + 1, 256);
  return launch(attend_prepare,
                {dim3(static_cast<unsigned>(std::min<int64_t>(blocks, 2048))), dim3(256)}, stream,
                csr, hubs, check_ids);
}

}  // namespace gpuprims::attention
