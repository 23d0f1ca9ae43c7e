// The plan of an attention in words, for torch_gpuprims.explain and the log; called through ctypes.
#include <cstdio>

#include "attention/plan.h"

// `promises` as in the raw op: 1 validated, 8 no row of 64 edges. Writes at most `size` bytes of
// text into `text`.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_attention(
    int dtype, int64_t rows, int64_t edges, int64_t heads, int64_t channels, int promises, int sms,
    char* text, int64_t size) {
  using namespace gpuprims::attention;
  using gpuprims::dtype_bytes;
  const auto type = static_cast<gpuprims::Dtype>(dtype);
  const int64_t bytes = dtype_bytes(type), owned = kStreamBytes / bytes;
  const bool vector = channels * bytes % kLaneBytes == 0;
  const Plan p = plan_rows(type, vector, rows, edges, heads, channels, heads * channels + 2 * heads,
                           promises & 1, promises & 8, sms, true);
  const int64_t lanes = std::min<int64_t>(lanes_per_head(channels, owned), 32);
  char hubs[80] = "no row cut";
  if (p.capacity > 0)
    std::snprintf(hubs, sizeof hubs, "rows from %lld edges cut every %lld",
                  static_cast<long long>(kHubDegree), static_cast<long long>(kChunk));
  std::snprintf(
      text, static_cast<size_t>(size),
      "neighbor_attention %s [%lld rows, %lld edges, %lld heads, %lld channels] -> stream, %lld "
      "lanes a head, runs of %lld by %lld groups a warp, %lld-byte loads, %lld tiles, grid %lld x "
      "%d threads, "
      "%s, workspace %.3f MB, reads %.3f MB of features",
      dtype_name(type), static_cast<long long>(rows), static_cast<long long>(edges),
      static_cast<long long>(heads), static_cast<long long>(channels),
      static_cast<long long>(lanes), static_cast<long long>(p.run_work),
      static_cast<long long>(groups_of(heads, lanes)),
      static_cast<long long>(vector && bytes < 8 ? kLaneBytes : bytes),
      static_cast<long long>(p.tiles),
      static_cast<long long>(p.chunk_blocks + p.run_blocks) * static_cast<long long>(p.tiles),
      kWarps * 32, hubs, static_cast<double>(p.space_bytes) / 1e6,
      static_cast<double>(edges) * static_cast<double>(heads * channels * bytes) / 1e6);
}

// The same of edge_softmax (channels < 0) and gatv2_score, which take the graph a warp a row.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_scores(
    int dtype, int64_t rows, int64_t edges, int64_t heads, int64_t channels, int aligned,
    int promises, int sms, char* text, int64_t size) {
  using namespace gpuprims::attention;
  using gpuprims::dtype_bytes;
  const auto type = static_cast<gpuprims::Dtype>(dtype);
  const int64_t bytes = dtype_bytes(type);
  const bool softmax = channels < 0;
  const bool vector = !softmax && aligned && channels > 0 && channels * bytes % kLaneBytes == 0;
  const Plan p = softmax ? plan_rows(type, false, rows, edges, heads, 1, 0, promises & 1,
                                     promises & 8, sms, false)
                         : plan_rows(type, vector, rows, edges, heads, channels, 0, promises & 1,
                                     (promises & 8) || channels == 0, sms, false);
  char hubs[80] = "no row cut";
  if (p.hub_blocks > 0)
    std::snprintf(hubs, sizeof hubs, "rows from %lld edges to %d blocks of hubs",
                  static_cast<long long>(kHubDegree), p.hub_blocks);
  char shape[64] = "";
  if (!softmax)
    std::snprintf(shape, sizeof shape, ", %lld channels", static_cast<long long>(channels));
  std::snprintf(
      text, static_cast<size_t>(size),
      "%s %s [%lld rows, %lld edges, %lld heads%s] -> %s, a warp a row, %lld-byte loads, %s, "
      "workspace %.3f MB, reads %.3f MB",
      softmax ? "edge_softmax" : "gatv2_score", dtype_name(type), static_cast<long long>(rows),
      static_cast<long long>(edges), static_cast<long long>(heads), shape,
      softmax ? "softmax_rows" : "gatv2_rows",
      static_cast<long long>(vector && bytes < 8 ? kLaneBytes : bytes), hubs,
      static_cast<double>(p.space_bytes) / 1e6,
      static_cast<double>(edges) * static_cast<double>(heads * bytes) *
          static_cast<double>(softmax ? 1 : 2 * channels) / 1e6);
}
