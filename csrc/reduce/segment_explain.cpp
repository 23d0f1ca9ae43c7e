// The plan of a segment_reduce in words, for torch_gpuprims.explain and the log; called through
// ctypes.
#include <cstdio>

#include "reduce/segment_plan.h"

// Writes at most `size` bytes of text into `text`.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_segment_reduce(
    int dtype, int op, int64_t n, int64_t segments, int64_t features, int vec, int sms,
    int must_look, int promises, char* text, int64_t size) {
  using namespace gpuprims;
  const auto type = static_cast<Dtype>(dtype);
  const auto kind = static_cast<SegmentOp>(op);
  const SegmentReducePlan p =
      plan_segment_reduce({type, kind, n, segments, features, vec, sms, must_look != 0, promises});
  const int used =
      std::snprintf(text, size, "segment_reduce %s of %s [%lld, %lld] in %lld segments -> ",
                    segment_op_name(kind), dtype_name(type), static_cast<long long>(n),
                    static_cast<long long>(features), static_cast<long long>(segments));
  if (used < 0 || used >= size) return;
  text += used, size -= used;
  if (p.nothing) {
    std::snprintf(text, size, "nothing to launch");
    return;
  }
  char how[160];
  if (p.rows)
    std::snprintf(how, sizeof how, "a thread for %d column%s of a segment, %lld blocks", p.vec,
                  p.vec == 1 ? "" : "s", static_cast<long long>(p.row_blocks));
  else
    std::snprintf(how, sizeof how, "tiles of %d segments, %s, %d blocks", p.tile,
                  p.stage ? "short ones through shared memory" : "a warp each", p.blocks);
  char cut[120] = "none cut";
  if (p.lists)
    std::snprintf(cut, sizeof cut, "those longer than %d cut every %d", p.inline_limit, p.piece);
  std::snprintf(text, size, "%s, %s, offsets %s, workspace %.3f MB, moves %.3f MB", how, cut,
                must_look ? "looked at on the way" : "known to be good", p.workspace / 1e6,
                p.traffic / 1e6);
}
