// The plan of a segment_sort in words, for torch_gpuprims.explain and the log; called through
// ctypes.
#include <cstdio>

#include "sort/plan.h"

// Writes at most `size` bytes of text into `text`.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_segment_sort(
    int dtype, int64_t n, int64_t segments, int index_bits, int sms, char* text, int64_t size) {
  using namespace gpuprims;
  const auto type = static_cast<Dtype>(dtype);
  const int64_t key = dtype_bytes(type);
  const auto head = [&](const char* what) {
    return std::snprintf(text, size, "segment_sort %s [%lld] in %lld segments -> %s",
                         dtype_name(type), static_cast<long long>(n),
                         static_cast<long long>(segments), what);
  };
  if (n == 0) {
    head("nothing to launch");
    return;
  }
  const SegmentSortPlan p = plan_segments(
      {type, 1, n, true, true, index_bits, 0, static_cast<int>(key) * 8, sms}, segments);
  char sweep[80] = "";
  if (p.capacity[kSegmentClasses - 1])
    std::snprintf(sweep, sizeof sweep, ", at most %d passes for longer ones", p.sweep.passes);
  const int used = head("");
  if (used < 0 || used >= size) return;
  std::snprintf(text + used, size - used,
                "a warp for segments of up to %lld, a block up to %lld%s, workspace %.3f MB, moves "
                "at most %.3f MB",
                static_cast<long long>(sort_tuning::kWarpRow), static_cast<long long>(kSegmentTile),
                sweep, p.workspace / 1e6,
                (sweep[0] ? p.sweep.traffic : n * (2 * key + index_bits / 8)) / 1e6);
}
