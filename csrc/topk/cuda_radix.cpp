// topk of large k on CUDA: the filter, csrc/sort, and what puts results in their places.
#include "common/cuda_stable.h"
#include "sort/rows.h"
#include "topk/filter.h"

namespace gpuprims {

// args.input is dense where the plan does not filter. `workspace` has the bytes that it states.
cudaError_t launch_topk_radix(const TopkArgs& args, const RadixPlan& plan, void* workspace, int sms,
                              cudaStream_t stream) {
  char* const base = static_cast<char*>(workspace);
  FilterSpace space;
  if (plan.filtered) {
    space.rows = reinterpret_cast<FilterRow*>(base);
    space.bins = reinterpret_cast<uint32_t*>(base + plan.bins_at);
    space.counts = reinterpret_cast<uint2*>(base + plan.counts_at);
    space.values = base + plan.values_at;
    space.columns = reinterpret_cast<uint32_t*>(base + plan.columns_at);
    space.chunk = plan.chunk, space.chunks = plan.chunks, space.bins_per_row = plan.bins;
    const auto code = launch_topk_filter(args, space, stream);
    if (code != cudaSuccess) return code;
  }
  SortArgs sort;
  sort.input = plan.filtered ? space.values : args.input;
  sort.values = plan.spread ? base + plan.sorted_at : args.values;
  sort.indices = plan.spread ? base + plan.positions_at : args.indices;
  sort.rows = args.rows, sort.n = plan.sorted_n, sort.keep = plan.keep;
  sort.end_bit = dtype_bytes(args.dtype) * 8;
  sort.wide_index = args.wide_index;
  sort.packed = plan.sort.packed;
  set_order(sort, args.dtype, args.largest, false);
  const auto code = launch_sort_rows(sort, plan.sort, base + plan.sort_at, sms, stream);
  if (code != cudaSuccess || !(plan.spread || plan.filtered)) return code;
  FilterEmit emit;
  emit.sorted = plan.spread ? sort.values : nullptr;
  emit.positions = sort.indices;
  emit.columns = space.columns;
  emit.values = args.values, emit.indices = args.indices;
  emit.rows = args.rows, emit.k = args.k, emit.inner = args.inner;
  emit.pitch = plan.keep ? args.k : plan.sorted_n;
  return launch_topk_emit(emit, dtype_bytes(args.dtype), args.wide_index, stream);
}

}  // namespace gpuprims
