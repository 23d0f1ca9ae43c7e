// Looks at the offsets once before they are followed: raises flags, writes the plan.
#include "aggregate/elements.cuh"
#include "common/launch.h"

namespace gpuprims {
namespace {

__global__ void __launch_bounds__(256)
    prepare_rows(const Csr csr, int* flag, int64_t* plan, const bool check_ids) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const PlanLayout at = plan_layout(csr.rows, csr.edges);
  const int64_t units = count_units(csr.rows, csr.edges);
  int bad = 0;
  if (thread == 0 && load_int(csr.indptr, csr.wide_offsets, 0) != 0) bad = kBadOffsets;
  if (thread == 0 && load_int(csr.indptr, csr.wide_offsets, csr.rows) != csr.edges)
    bad = kBadOffsets;
  // Thread `rows` closes the list of starts.
  for (int64_t row = thread; row <= csr.rows; row += threads) {
    const int64_t begin = load_int(csr.indptr, csr.wide_offsets, row);
    const int64_t before = row > 0 ? load_int(csr.indptr, csr.wide_offsets, row - 1) : 0;
    if (before < 0 || begin < before || begin > csr.edges) {
      bad = kBadOffsets;
      continue;
    }
    if (!plan) continue;
    const bool hub = row > 0 && begin - before >= kHubDegree;
    // Where indptr decreases somewhere rows overlap: together their units would be far more than
    // there are. Hubs, whose units are many, take theirs of as many edges as the graph has: the
    // header's second number counts them.
    if (hub) {
      const auto length = static_cast<unsigned long long>(begin - before);
      const auto taken = atomicAdd(reinterpret_cast<unsigned long long*>(plan) + 1, length);
      if (taken + length > static_cast<unsigned long long>(csr.edges)) {
        bad = kBadOffsets;
        continue;
      }
    }
    // The units whose first row this one is: those after the row before, up to its own.
    const int64_t from = row > 0 ? (before + kRowCost * (row - 1)) / kUnit + 1 : 0;
    const int64_t to = row < csr.rows ? (begin + kRowCost * row) / kUnit : units;
    for (int64_t unit = from; unit <= to; ++unit) plan[at.starts + unit] = row;
    if (hub) {
      // The order of hubs in the list differs from run to run; the results do not depend on it.
      const auto slot =
          static_cast<int64_t>(atomicAdd(reinterpret_cast<unsigned long long*>(plan), 1ull));
      if (slot < csr.edges / kHubDegree) plan[at.hubs + slot] = row - 1;
    }
  }
  if (check_ids) {
    for (int64_t edge = thread; edge < csr.edges; edge += threads) {
      const int64_t source = load_int(csr.indices, csr.wide_indices, edge);
      if (static_cast<uint64_t>(source) >= static_cast<uint64_t>(csr.columns)) bad |= kBadIndices;
      if (static_cast<uint64_t>(edge_id(csr, edge)) >= static_cast<uint64_t>(csr.edges))
        bad |= kBadIds;
    }
  }
  if (bad) atomicOr(flag, bad);
}

}  // namespace

cudaError_t launch_prepare(const Csr& csr, int* flag, int64_t* plan, bool check_ids,
                           cudaStream_t stream) {
  auto code = cudaMemsetAsync(flag, 0, kSpaceHeader, stream);
  // All of it: whoever copies a plan reads the slots of hubs that are not there, too.
  const size_t plan_bytes = plan_layout(csr.rows, csr.edges).size * sizeof(int64_t);
  if (code == cudaSuccess && plan) code = cudaMemsetAsync(plan, 0, plan_bytes, stream);
  if (code != cudaSuccess) return code;
  const int64_t blocks = ceil_div(std::max(csr.rows, check_ids ? csr.edges : int64_t(0)) + 1, 256);
  return launch(prepare_rows,
                {dim3(static_cast<unsigned>(std::min<int64_t>(blocks, 2048))), dim3(256)}, stream,
                csr, flag, plan, check_ids);
}

}  // namespace gpuprims
