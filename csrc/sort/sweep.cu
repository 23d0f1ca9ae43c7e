// Rows of any length: one read counts the digits of all passes (count.cuh), the device decides what
// they do (plan_passes.cuh), then each pass moves every record to its place, in one read and one
// write (pass.cuh; Adinets & Merrill, "Onesweep", 2022). What the upper digits of 8-byte keys leave
// out of order stands close together and is mended in place (mend.cuh). Where the counts were
// misleading, a second round sorts by all digits.
#include "common/launch.h"
#include "sort/count.cuh"
#include "sort/mend.cuh"
#include "sort/pass.cuh"
#include "sort/plan_passes.cuh"

namespace gpuprims {
namespace {

template <class Record, class Side>
cudaError_t run_round(int round, const SweepArgs& args, const SortPlan& plan, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kThreads)};
  shape.smem = PassTile<Record>::bytes(pass_width<Record, Side>());
  shape.dependent = true;
  for (int pass = 0; pass < args.passes; ++pass)
    if (const auto code = launch(sort_pass<Record, Side>, shape, stream, args, round, pass))
      return code;
  return cudaSuccess;
}

template <class Record, class Side>
cudaError_t run_passes(const SweepArgs& args, const SortPlan& plan, cudaStream_t stream) {
  if (const auto code = run_round<Record, Side>(0, args, plan, stream)) return code;
  if (args.in_place) {
    LaunchShape shape{dim3(static_cast<unsigned>(plan.grid * 2)), dim3(kDigits)};
    shape.dependent = true;
    return launch(sort_plan_passes, shape, stream, args, true);
  }
  if constexpr (sizeof(Record) == 8) {
    if (!args.mend) return cudaSuccess;
    const int64_t blocks = plan.grid / sort_tuning::kBlocksPerSm * kMendBlocksPerSm + 1;
    LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kMendThreads)};
    shape.dependent = true;
    if (const auto code = launch(sort_mend, shape, stream, args)) return code;
    return run_round<Record, Side>(1, args, plan, stream);
  }
  return cudaSuccess;
}

template <class Key>
cudaError_t run(const SweepArgs& args, const SortPlan& plan, cudaStream_t stream) {
  LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(kCountThreads)};
  LaunchShape rows{
      dim3(static_cast<unsigned>(std::clamp<int64_t>(args.sort.rows, 1, plan.grid * 2))),
      dim3(kDigits)};
  // Each kernel is started while the one before it ends, and waits for it.
  shape.dependent = rows.dependent = true;
  cudaError_t code;
  if constexpr (sizeof(Key) == 8)
    code = launch(sort_count<Key, uint64_t>, shape, stream, args, args.sort.order64);
  else if constexpr (sizeof(Key) == 4)
    code = launch(sort_count<Key, uint32_t>, shape, stream, args, args.sort.order32);
  else
    code = launch(sort_count_narrow<uint32_t>, shape, stream, args);
  if (code != cudaSuccess) return code;
  if ((code = launch(sort_plan_passes, rows, stream, args, false)) != cudaSuccess) return code;
  if (plan.side == 8) return run_passes<Key, uint64_t>(args, plan, stream);
  if constexpr (sizeof(Key) == 8)
    return plan.side == 4 ? run_passes<Key, uint32_t>(args, plan, stream)
                          : run_passes<Key, None>(args, plan, stream);
  else
    return plan.packed ? run_passes<uint64_t, None>(args, plan, stream)
                       : run_passes<Key, None>(args, plan, stream);
}

}  // namespace

// The first plan.clear_bytes of the workspace must be zeros, unless plan.clears_itself().
cudaError_t launch_sort_sweep(const SortArgs& sort, const SortPlan& plan, const SweepSpace& space,
                              cudaStream_t stream) {
  const SweepArgs args{sort,
                       space,
                       plan.tiles_per_row,
                       plan.tiles,
                       plan.tile,
                       plan.passes,
                       plan.side,
                       plan.in_place,
                       plan.mend,
                       plan.wide_status,
                       plan.clears_itself(),
                       plan.code_passes};
  if (plan.parts)
    if (const auto code = launch_sort_parts(sort, plan, space, stream)) return code;
  if (plan.spread_bits)
    if (const auto code = launch_sort_spread(sort, plan, space, stream)) return code;
  if (plan.code_passes)
    if (const auto code = launch_sort_codes(sort, plan, space, stream)) return code;
  switch (sort.bytes) {
    case 1:
      return run<uint8_t>(args, plan, stream);
    case 2:
      return run<uint16_t>(args, plan, stream);
    case 4:
      return run<uint32_t>(args, plan, stream);
    default:
      return run<uint64_t>(args, plan, stream);
  }
}

}  // namespace gpuprims
