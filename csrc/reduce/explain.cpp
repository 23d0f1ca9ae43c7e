// The plan of a call in words, for torch_gpuprims.explain and the log; called through ctypes.
#include <cstdio>

#include "reduce/plan.h"

namespace gpuprims {
namespace {

static_assert(kRowLanes == 4);  // the words below

void describe(const ReducePlan& p, char* text, int64_t size) {
  switch (p.algo) {
    case ReduceAlgo::packed_rows:
      std::snprintf(text, size, "%d lanes a row", p.lanes);
      break;
    case ReduceAlgo::long_rows:
      std::snprintf(text, size, "%lld chunks of %d a row, %d in a block",
                    static_cast<long long>(p.chunks), kChunk, p.per);
      break;
    default:
      std::snprintf(text, size, "%d threads of %d columns x %d of %d pieces of %d, %s%lld parts",
                    p.columns, p.wide, p.rows * (p.shared ? kRowLanes : 1), p.pieces, kPiece,
                    p.shared ? "4 threads a piece, " : "", static_cast<long long>(p.parts));
  }
}

}  // namespace
}  // namespace gpuprims

// sizes and strides of `rank` dimensions, of which `reduced` says which are reduced; the codes
// behind those of ReduceOp are stats and dot. Writes at most `size` bytes of text into `text`.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_reduce(
    int op, int dtype, int acc, const int64_t* sizes, const int64_t* strides, const bool* reduced,
    int64_t rank, int sms, char* text, int64_t size) {
  using namespace gpuprims;
  const bool stats = op == kReduceOps, dot = op > kReduceOps;
  const bool arg = is_arg(static_cast<ReduceOp>(op));
  const char* const name = stats ? "stats"
                           : dot ? "dot"
                                 : reduce_op_name(static_cast<ReduceOp>(op));
  const auto type = static_cast<Dtype>(dtype);
  ReduceLayout layout;
  if (!make_layout(sizes, strides, rank, reduced, arg, layout)) {
    std::snprintf(text, size, "reduce %s %s -> a contiguous copy first", name, dtype_name(type));
    return;
  }
  ReduceProblem problem;
  problem.dtype = type;
  problem.layout = layout;
  problem.sms = sms;
  problem.family = stats ? ReduceFamily::stats
                   : dot ? ReduceFamily::dot
                         : family_of(static_cast<ReduceOp>(op));
  set_lanes(problem, static_cast<Dtype>(acc), false);
  const ReducePlan p = dot ? plan_dot(problem) : plan_reduce(problem);
  const long long columns = layout.columns, n = layout.n;
  if (p.grid == 0) {
    std::snprintf(text, size, "reduce %s %s %lld of %lld -> nothing to launch", name,
                  dtype_name(type), columns, n);
    return;
  }
  char detail[160] = "";
  describe(p, detail, sizeof detail);
  std::snprintf(text, size,
                "reduce %s %s %lld of %lld -> %s, %s, grid %lld x %d threads, workspace %.3f MB, "
                "moves %.3f MB",
                name, dtype_name(type), columns, n, reduce_algo_name(p.algo), detail,
                static_cast<long long>(p.grid), p.threads, p.workspace / 1e6, p.traffic / 1e6);
}
