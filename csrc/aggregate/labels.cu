// Label propagation and region growing. Traffic of a round: 4 bytes for each neighbour looked at,
// from a table that mostly stays in L2.
#include <algorithm>

#include "aggregate/labels_kernels.h"
#include "common/launch.h"

namespace gpuprims {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ int64_t load(const void* vector, bool wide, int64_t at) {
  return wide ? __ldg(static_cast<const long long*>(vector) + at)
              : static_cast<int64_t>(__ldg(static_cast<const int*>(vector) + at));
}

// Edges of a row; none where offsets are bad, so that nothing is read outside the graph.
__device__ __forceinline__ int64_t degree_of(const LabelArgs& a, int64_t row, int64_t* begin) {
  *begin = load(a.indptr, a.wide_offsets, row);
  const int64_t end = load(a.indptr, a.wide_offsets, row + 1);
  return *begin >= 0 && end > *begin && end <= a.edges ? end - *begin : 0;
}

__device__ __forceinline__ int32_t label_at(const LabelArgs& a, int64_t edge) {
  const int64_t node = load(a.indices, a.wide_indices, edge);
  return node >= 0 && node < a.rows ? __ldg(a.from + node) : kNoLabel;
}

// A warp a row, a lane a neighbour.
__global__ void __launch_bounds__(kThreads) majority_round(const LabelArgs a) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (row >= a.rows) return;
  int64_t begin;
  const int64_t degree = degree_of(a, row, &begin);
  const int count = degree < kSampled ? static_cast<int>(degree) : kSampled;
  const int32_t label =
      lane < count ? label_at(a, sample_at(begin, degree, lane, count)) : kNoLabel;
  const unsigned same = __match_any_sync(~0u, label);
  const int votes = label == kNoLabel ? 0 : __popc(same);
  const int most = __reduce_max_sync(~0u, votes);
  if (most == 0) {
    if (lane == 0) a.to[row] = a.from[row];
    return;
  }
  const uint32_t rank = scrambled(static_cast<uint32_t>(label));
  const uint32_t best = __reduce_max_sync(~0u, votes == most ? rank : 0u);
  if (votes == most && rank == best) a.to[row] = label;  // the winners agree
}

// A thread a row. Without labels to start from they are made: a row's own at multiples of
// `spacing`.
__global__ void __launch_bounds__(kThreads) grow_round(const LabelArgs a, const int64_t spacing) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= a.rows) return;
  if (!a.from) {
    a.to[row] = row % spacing == 0 ? static_cast<int32_t>(row) : kNoLabel;
    return;
  }
  int32_t label = a.from[row];
  if (label == kNoLabel) {
    int64_t begin;
    const int64_t degree = degree_of(a, row, &begin);
    const int count = degree < kSampled ? static_cast<int>(degree) : kSampled;
    for (int s = 0; s < count; ++s) {
      const int32_t other = label_at(a, sample_at(begin, degree, s, count));
      label = other < label ? other : label;
    }
  }
  a.to[row] = label;
}

dim3 blocks_for(int64_t threads) {
  return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
}

}  // namespace

cudaError_t launch_first_labels(Labels method, int32_t* labels, int64_t rows, int64_t spacing,
                                cudaStream_t stream) {
  LabelArgs args{};
  args.rows = rows;
  args.to = labels;
  return launch(grow_round, {blocks_for(rows), dim3(kThreads)}, stream, args,
                method == Labels::majority ? int64_t(1) : spacing);
}

cudaError_t launch_labels(Labels method, const LabelArgs& args, cudaStream_t stream) {
  if (method == Labels::majority)
    return launch(majority_round, {blocks_for(32 * args.rows), dim3(kThreads)}, stream, args);
  return launch(grow_round, {blocks_for(args.rows), dim3(kThreads)}, stream, args, int64_t(1));
}

}  // namespace gpuprims
