// Launching the sort of a plan's rows: for the sorts, and for topk of large k.
#pragma once
#include "sort/kernels.h"

namespace gpuprims {

inline void set_order(SortArgs& args, Dtype dtype, bool descending, bool lossless) {
  args.bytes = dtype_bytes(dtype);
  switch (args.bytes) {
    case 1:
      return set_order<uint8_t>(args.order32, dtype, descending, lossless);
    case 2:
      return set_order<uint16_t>(args.order32, dtype, descending, lossless);
    case 4:
      return set_order<uint32_t>(args.order32, dtype, descending, lossless);
    default:
      return set_order<uint64_t>(args.order64, dtype, descending, lossless);
  }
}

inline SweepSpace space_at(char* base, const SortPlan& plan, const SortArgs& args,
                           int64_t index_bytes) {
  SweepSpace space;
  space.status = base;
  space.counts = reinterpret_cast<uint64_t*>(base + plan.counts_at);
  space.codes = reinterpret_cast<CodeTable*>(base + plan.codes_at);
  space.splits = reinterpret_cast<RowSplit*>(base + plan.splits_at);
  space.code_counts = reinterpret_cast<uint64_t*>(base + plan.code_counts_at);
  space.state = reinterpret_cast<RowState*>(base + plan.state_at);
  space.next = reinterpret_cast<uint32_t*>(base + plan.next_at);
  space.active = space.next + 2 * kMaxPasses;
  space.repeat = space.next + 4 * kMaxPasses + 16;
  space.left = space.repeat + 1;
  space.code_next = space.left + 1;
  space.spread = {reinterpret_cast<SpreadState*>(base + plan.spread_state_at),
                  reinterpret_cast<uint32_t*>(base + plan.spread_counts_at),
                  reinterpret_cast<uint32_t*>(base + plan.spread_starts_at),
                  reinterpret_cast<uint32_t*>(base + plan.spread_firsts_at),
                  reinterpret_cast<SpreadTile*>(base + plan.spread_tiles_at),
                  reinterpret_cast<uint32_t*>(base + plan.spread_windows_at),
                  reinterpret_cast<uint32_t*>(base + plan.spread_crowded_at)};
  space.keys[0] = base + plan.a_keys_at;
  space.side[0] = base + plan.a_side_at;
  space.keys[1] = plan.b_keys ? base + plan.b_keys_at : plan.packed ? args.indices : args.values;
  space.side[1] = args.indices;
  space.side_step = static_cast<int>(index_bytes);
  return space;
}

// Sorts rows as planned, in the workspace that the plan states.
inline cudaError_t launch_sort_rows(const SortArgs& args, const SortPlan& plan, void* workspace,
                                    int sms, cudaStream_t stream) {
  if (plan.algo == SortAlgo::warp_row) return launch_sort_warp(args, plan, stream);
  if (plan.algo == SortAlgo::block_row) return launch_sort_block(args, plan, stream);
  if (!plan.clears_itself())
    if (const auto code = launch_clear(workspace, plan.clear_bytes, 4 * sms, stream)) return code;
  const SweepSpace space =
      space_at(static_cast<char*>(workspace), plan, args, args.wide_index ? 8 : 4);
  return launch_sort_sweep(args, plan, space, stream);
}

}  // namespace gpuprims
