// The plan of a segment_topk in words, for torch_gpuprims.explain and the log; called through
// ctypes.
#include <cstdio>
#include <string>

#include "topk/segment_plan.h"

// Writes at most `size` bytes of text into `text`.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_segment_topk(
    int dtype, int64_t n, int64_t segments, int64_t k, int sms, int must_look, int promises,
    char* text, int64_t size) {
  using namespace gpuprims;
  const SegmentPlan p = plan_segment_topk(
      {static_cast<Dtype>(dtype), n, segments, k, sms, must_look != 0, promises});
  const int used = std::snprintf(
      text, size, "segment_topk %s [%lld] in %lld segments k=%lld -> ",
      dtype_name(static_cast<Dtype>(dtype)), static_cast<long long>(n),
      static_cast<long long>(segments), static_cast<long long>(k));
  if (used < 0 || used >= size) return;
  text += used, size -= used;
  if (p.passes == 0) {
    std::snprintf(text, size, "nothing to launch");
    return;
  }
  if (p.big + p.medium + p.chunks == 0)
    std::snprintf(text, size, "a warp for %d segments, ", p.group);
  else
    std::snprintf(text, size,
                  "a warp for %d segments of up to %d, blocks of 128 up to %lld, blocks of 512, %s, "
                  "%lld pass%s, ",
                  p.group, p.small, static_cast<long long>(p.medium_limit),
                  p.chunks ? "long ones cut" : "none cut", static_cast<long long>(p.passes),
                  p.passes == 1 ? "" : "es");
  const size_t more = std::char_traits<char>::length(text);
  text += more, size -= static_cast<int64_t>(more);
  std::snprintf(text, size, "%schunks of %lld, workspace %.3f MB, moves %.3f MB",
                p.prepare ? "offsets looked at, " : "", static_cast<long long>(p.chunk),
                p.workspace / 1e6, p.traffic / 1e6);
}
