// The plan of a call in words, for torch_gpuprims.explain and the log; called through ctypes.
#include <cstdio>

#include "sort/forced_spread.h"
#include "sort/plan.h"

// Writes at most `size` bytes of text into `text`.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_sort(
    int dtype, int64_t rows, int64_t n, int values, int indices, int index_bits, int begin_bit,
    int end_bit, int sms, int forced, int in_place, int code_bits, int parts, char* text,
    int64_t size) {
  using namespace gpuprims;
  const auto type = static_cast<Dtype>(dtype);
  const SortPlan p =
      plan_sort({type, rows, n, values != 0, indices != 0, index_bits, begin_bit, end_bit, sms,
                 static_cast<SortAlgo>(forced), in_place != 0, code_bits, parts, forced_spread()});
  const char* const op = values && indices ? "sort" : values ? "sort_keys" : "argsort";
  const long long r = rows, length = n;
  if (p.grid == 0) {
    std::snprintf(text, size, "%s %s [%lld, %lld] -> nothing to launch", op, dtype_name(type), r,
                  length);
    return;
  }
  char detail[160] = "";
  if (p.algo == SortAlgo::warp_row)
    std::snprintf(detail, sizeof detail, "%d lane%s a row, %d elements a lane", p.lanes,
                  p.lanes == 1 ? "" : "s", p.items);
  else if (p.algo == SortAlgo::block_row)
    std::snprintf(detail, sizeof detail, "%d elements a thread", p.items);
  else {
    char codes[40] = "";
    if (p.spread_bits) std::snprintf(codes, sizeof codes, "buckets by %d bits or ", p.spread_bits);
    if (p.parts) std::snprintf(codes, sizeof codes, "%d parts a row or ", p.parts);
    if (p.code_passes)
      std::snprintf(codes, sizeof codes, "%d by %d-bit codes or ", p.code_passes, p.code_bits);
    std::snprintf(detail, sizeof detail, "%lld tiles of %d, %sat most %d pass%s, %s",
                  static_cast<long long>(p.tiles), p.tile, codes, p.passes,
                  p.passes == 1 ? "" : "es",
                  p.packed      ? "key and index in 64 bits"
                  : p.side == 8 ? "64-bit index beside the key"
                  : p.side      ? "32-bit index beside the key"
                                : "keys alone");
  }
  std::snprintf(text, size,
                "%s %s [%lld, %lld] -> %s, %s, grid %lld x %d threads, workspace %.3f MB, moves at "
                "most %.3f MB",
                op, dtype_name(type), r, length, sort_algo_name(p.algo), detail,
                static_cast<long long>(p.grid), p.threads, p.workspace / 1e6, p.traffic / 1e6);
}
