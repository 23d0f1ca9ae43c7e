// The plan of a segment_topk in words, for torch_gpuprims.explain and the log; called through
// ctypes.
#include <cstdio>

#include "topk/segment_plan.h"

// Writes at most `size` bytes of text into `text`.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_segment_topk(
    int dtype, int64_t n, int64_t segments, int64_t k, int sms, int must_look, int promises,
    char* text, int64_t size) {
  using namespace gpuprims;
  const SegmentPlan p = plan_segment_topk(
      {static_cast<Dtype>(dtype), n, segments, k, sms, 227 << 10, must_look != 0, promises});
  const int used = std::snprintf(text, size, "segment_topk %s [%lld] in %lld segments k=%lld -> ",
                                 dtype_name(static_cast<Dtype>(dtype)), static_cast<long long>(n),
                                 static_cast<long long>(segments), static_cast<long long>(k));
  if (used < 0 || used >= size) return;
  text += used, size -= used;
  if (p.passes == 0) {
    std::snprintf(text, size, "nothing to launch");
    return;
  }
  char detail[200] = "";
  if (p.big + p.medium + p.chunks > 0)
    std::snprintf(detail, sizeof detail,
                  " of up to %d, a block for others, %s of %lld, %lld pass%s", p.small,
                  p.chunks ? "long ones cut in chunks" : "none cut in chunks",
                  static_cast<long long>(p.chunk), static_cast<long long>(p.passes),
                  p.passes == 1 ? "" : "es");
  std::snprintf(text, size, "%sa warp for %d segments%s, workspace %.3f MB, moves %.3f MB",
                p.prepare ? "offsets looked at, " : "", p.group, detail, p.workspace / 1e6,
                p.traffic / 1e6);
}
