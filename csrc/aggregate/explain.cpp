// The plan of an aggregation in words, for torch_gpuprims.explain and the log; called through
// ctypes.
#include <cstdio>

#include "aggregate/choose.h"

// `promises` as in the raw op: 1 validated, 2 no hub. Writes at most `size` bytes of text into
// `text`.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_aggregate(
    int dtype, int64_t rows, int64_t edges, int64_t features, int promises, int sms,
    int64_t sources, int scheduled, char* text, int64_t size) {
  using namespace gpuprims;
  const Dtype type = static_cast<Dtype>(dtype);
  const int64_t width = features * dtype_bytes(type);
  AggregateFacts facts;
  facts.sources = sources;
  facts.checked = facts.planned = promises & 1;
  facts.no_hubs = promises & 2;
  facts.no_long = promises & 8;
  facts.scheduled = scheduled;
  facts.plain = pick_load_bytes(type, 0, width, width) == kLaneBytes;
  facts.sums = facts.plain;
  facts.may_deepen = facts.plain && (type == Dtype::f32 || type == Dtype::bf16);
  facts.narrow = type != Dtype::f64 && width < kLaneBytes;
  facts.sms = sms;
  facts.tuning = read_aggregate_tuning();
  const AggregatePlan p =
      plan_aggregate(type, pick_load_bytes(type, 0, width, width), rows, edges, features, facts);
  const char* const way = p.words ? "words" : p.panels > 0 ? "panels" : "row_stream";
  char hubs[80] = "no row cut";
  if (p.hubs)
    std::snprintf(hubs, sizeof hubs, "rows from %lld edges cut every %lld",
                  static_cast<long long>(kHubDegree), static_cast<long long>(kChunk));
  std::snprintf(
      text, static_cast<size_t>(size),
      "neighbor_aggregate %s [%lld rows, %lld edges, %lld features] -> %s, %d-byte loads, "
      "%d lanes a row, %lld feature tiles, grid %lld x %d threads, %s, %s, workspace %.3f MB, "
      "reads "
      "%.3f MB of features",
      dtype_name(type), static_cast<long long>(rows), static_cast<long long>(edges),
      static_cast<long long>(features), way, p.load_bytes, p.tile_lanes,
      static_cast<long long>(p.tiles), static_cast<long long>(p.blocks * p.tiles), p.warps * 32,
      scheduled ? "rows in schedule order" : "rows as given", hubs,
      static_cast<double>(p.space_bytes) / 1e6,
      static_cast<double>(edges) * static_cast<double>(width) / 1e6);
}
