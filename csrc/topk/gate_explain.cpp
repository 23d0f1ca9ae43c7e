// topk_gate's plan of a call in words, for torch_gpuprims.explain and the log; called through
// ctypes.
#include <cstdio>

#include "topk/gate_plan.h"

// Writes at most `size` bytes of text into `text`.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_topk_gate(
    int dtype, int64_t rows, int64_t n, int64_t k, int64_t num_groups, int64_t topk_groups,
    int biased, char* text, int64_t size) {
  using namespace gpuprims;
  const auto tag = static_cast<Dtype>(dtype);
  const GatePlan p = plan_gate({tag, rows, n, k, num_groups, topk_groups, biased != 0});
  const int used = std::snprintf(text, size, "topk_gate %s [%lld, %lld] k=%lld -> ",
                                 dtype_name(tag), static_cast<long long>(rows),
                                 static_cast<long long>(n), static_cast<long long>(k));
  if (used < 0 || used >= size) return;
  if (p.grid == 0)
    std::snprintf(text + used, size - used, "nothing to launch");
  else
    std::snprintf(text + used, size - used,
                  "%s, %d lanes a row, grid %lld x %d threads, workspace 0.000 MB, moves %.3f MB",
                  gate_algo_name(p.algo), p.lanes, static_cast<long long>(p.grid), p.threads,
                  p.traffic / 1e6);
}
