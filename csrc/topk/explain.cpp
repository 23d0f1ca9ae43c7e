// The plan of a call in words, for torch_gpuprims.explain and the log; called through ctypes.
#include <cstdio>

#include "topk/approx_plan.h"
#include "topk/plan.h"

// Writes at most `size` bytes of text into `text`. apart: 0 where rows lie one after another, 1
// where there are gaps between them, which sorts of whole rows do not take, 2 where no kernel takes
// them; mask_apart: nor the mask. What else there is to know of the layout is in `vectors`.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_topk(
    int dtype, int64_t rows, int64_t n, int64_t k, int64_t inner, int sms, int forced, int masked,
    int index_bits, int vectors, int apart, int mask_apart, char* text, int64_t size) {
  using namespace gpuprims;
  TopkProblem problem{static_cast<Dtype>(dtype),     rows,       n, k, sms,
                      static_cast<TopkAlgo>(forced), masked != 0};
  problem.inner = inner;
  problem.index_bits = index_bits;
  problem.vectors = vectors != 0;
  const TopkPlan p = plan_topk(problem);
  if (p.grid == 0) {
    std::snprintf(text, size, "topk %s [%lld, %lld] k=%lld -> nothing to launch",
                  dtype_name(static_cast<Dtype>(dtype)), static_cast<long long>(rows),
                  static_cast<long long>(n), static_cast<long long>(k));
    return;
  }
  char detail[160] = "";
  if (p.algo == TopkAlgo::lanes || p.algo == TopkAlgo::thread_row)
    std::snprintf(detail, sizeof detail, "%d lane%s a row", p.lanes, p.lanes == 1 ? "" : "s");
  else if (p.algo == TopkAlgo::warp_row)
    std::snprintf(detail, sizeof detail, "a warp a row");
  else if (p.algo == TopkAlgo::cluster_row)
    std::snprintf(detail, sizeof detail, "%d block%s a row", p.splits, p.splits == 1 ? "" : "s");
  else if (p.algo == TopkAlgo::part_row)
    std::snprintf(detail, sizeof detail, "%d part%s a row", p.splits, p.splits == 1 ? "" : "s");
  else if (p.algo == TopkAlgo::count_row)
    std::snprintf(detail, sizeof detail, "%d elements a block", p.tile);
  else if (p.algo == TopkAlgo::sort)
    std::snprintf(detail, sizeof detail, "tiles of %d", p.tile);
  else if (p.algo == TopkAlgo::radix)
    std::snprintf(detail, sizeof detail, "%s",
                  p.filtered ? "the best k selected, then sorted" : "rows sorted whole");
  else
    std::snprintf(detail, sizeof detail, "%d blocks a row, bound: rank %d of %d group maxima%s",
                  p.splits, p.rank, p.groups, p.splits > 1 ? " of the row" : "");
  const bool sorts_rows = p.algo == TopkAlgo::radix && !p.filtered;
  const bool copied = apart > 1 || (apart == 1 && sorts_rows);
  const double copies =
      static_cast<double>(rows) * n * (copied * dtype_bytes(problem.dtype) + (mask_apart != 0));
  std::snprintf(text, size,
                "topk %s [%lld, %lld] k=%lld -> %s, %s, grid %lld x %d threads, %sworkspace %.3f "
                "MB, moves %.3f MB",
                dtype_name(static_cast<Dtype>(dtype)), static_cast<long long>(rows),
                static_cast<long long>(n), static_cast<long long>(k), topk_algo_name(p.algo),
                detail, static_cast<long long>(p.grid), p.threads,
                copies > 0 ? "rows copied first, " : "", (p.workspace + copies) / 1e6,
                (p.traffic + 2 * copies) / 1e6);
}

// The same for approx_topk, of rows of n.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_approx_topk(
    int dtype, int64_t rows, int64_t n, int64_t k, double recall_target, int mode, char* text,
    int64_t size) {
  using namespace gpuprims;
  const ApproxPlan p =
      plan_approx(static_cast<Dtype>(dtype), n, k, recall_target, static_cast<ApproxMode>(mode));
  const char* const name = dtype_name(static_cast<Dtype>(dtype));
  if (p.buckets == 0)
    std::snprintf(text, size, "approx_topk %s [%lld, %lld] k=%lld -> exact", name,
                  static_cast<long long>(rows), static_cast<long long>(n),
                  static_cast<long long>(k));
  else
    std::snprintf(text, size,
                  "approx_topk %s [%lld, %lld] k=%lld -> the best %d of each of %lld buckets, "
                  "expected recall %.4f, workspace %.3f MB",
                  name, static_cast<long long>(rows), static_cast<long long>(n),
                  static_cast<long long>(k), p.keep, static_cast<long long>(p.buckets), p.recall,
                  rows * p.candidates() * (dtype_bytes(static_cast<Dtype>(dtype)) + 4) / 1e6);
}
