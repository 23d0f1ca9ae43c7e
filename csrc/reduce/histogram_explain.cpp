// The plan of histogram and bincount in words, for torch_gpuprims.explain and the log; called
// through ctypes.
#include <cstdio>

#include "reduce/histogram_plan.h"

extern "C" __attribute__((visibility("default"))) void gpuprims_explain_histogram(
    int dtype, int64_t n, int64_t bins, int sms, int smem, char* text, int64_t size) {
  using namespace gpuprims;
  const auto type = static_cast<Dtype>(dtype);
  const HistogramPlan p = plan_histogram(type, n, bins, sms, smem);
  char place[80] = "in global memory";
  if (p.copies > 0)
    std::snprintf(place, sizeof place, "in %d copies of %.1f KB in shared memory", p.copies,
                  bins * 4e-3);
  std::snprintf(text, size,
                "histogram %s %lld, %lld bins -> counted %s, grid %lld x %d threads, moves %.3f MB",
                dtype_name(type), static_cast<long long>(n), static_cast<long long>(bins), place,
                static_cast<long long>(p.blocks), histogram_tuning::kThreads,
                (n * dtype_bytes(type) + bins * 8) / 1e6);
}
