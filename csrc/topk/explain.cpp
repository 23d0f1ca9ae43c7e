// The plan of a call in words, for torch_gpuprims.explain and the log; called through ctypes.
#include <cstdio>

#include "topk/approx_plan.h"
#include "topk/plan.h"
#include "topk/trial.h"

// Writes at most `size` bytes of text into `text`.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_topk(
    int dtype, int64_t rows, int64_t n, int64_t k, int sms, int forced, int masked, char* text,
    int64_t size) {
  using namespace gpuprims;
  TopkProblem problem{static_cast<Dtype>(dtype),     rows,       n, k, sms,
                      static_cast<TopkAlgo>(forced), masked != 0};
  const bool ordered =
      problem.dtype == Dtype::f32 || problem.dtype == Dtype::f16 || problem.dtype == Dtype::bf16;
  problem.vectors = ordered && !problem.masked && n % topk_vector(problem.dtype) == 0;
  problem.trial = topk_trial();
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
  std::snprintf(text, size,
                "topk %s [%lld, %lld] k=%lld -> %s, %s, grid %lld x %d threads, workspace %.3f MB, "
                "moves %.3f MB",
                dtype_name(static_cast<Dtype>(dtype)), static_cast<long long>(rows),
                static_cast<long long>(n), static_cast<long long>(k), topk_algo_name(p.algo),
                detail, static_cast<long long>(p.grid), p.threads, p.workspace / 1e6,
                p.traffic / 1e6);
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
