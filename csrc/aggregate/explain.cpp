// The plan of an aggregation in words, for torch_gpuprims.explain and the log; called through
// ctypes.
#include <cstdio>

#include "aggregate/choose.h"

namespace {

constexpr const char* kReduces[] = {"sum", "mean", "max", "min"};  // the order of enum Reduce

// The body that launch_sum and its like choose.
const char* body_of(const gpuprims::AggregatePlan& plan, bool plain) {
  if (plan.narrow) return "narrow";
  if (plan.small) return "aggregate_small";
  return plain ? "vector_stream" : "row_stream";
}

}  // namespace

// `promises` as in the raw op: 1 validated, 2 no hub; `reduce`: enum Reduce; `address` and `stride`
// of the features, in bytes. Writes at most `size` bytes of text into `text`.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_aggregate(
    int dtype, int64_t rows, int64_t edges, int64_t features, int promises, int sms,
    int64_t sources, int scheduled, int reduce, int weighted, int wide_indices, int64_t address,
    int64_t stride, char* text, int64_t size) {
  using namespace gpuprims;
  const Dtype type = static_cast<Dtype>(dtype);
  const int64_t width = features * dtype_bytes(type);
  const int load = pick_load_bytes(type, static_cast<uint64_t>(address), stride, width);
  const bool sums = reduce < 2 && !weighted;
  // As takes_vectors and takes_narrow (kernels.h) and run (cuda.cpp) say.
  const bool vectors = load == kLaneBytes && !wide_indices && features < (int64_t(1) << 29) &&
                       !(scheduled && rows >> 31);
  AggregateFacts facts;
  facts.sources = sources;
  facts.checked = facts.planned = promises & 1;
  facts.no_hubs = promises & 2;
  facts.no_long = facts.no_hubs && (promises & 8);
  facts.positions = reduce >= 2;
  facts.most_warps = sums && vectors ? kMostRowWarps : kWeightedRowWarps;
  facts.scheduled = scheduled;
  facts.plain = sums && vectors;
  facts.may_deepen = facts.plain && reduce == 0 && type == Dtype::f32;
  facts.narrow =
      sums && type != Dtype::f64 && load < kLaneBytes && width < kLaneBytes && !wide_indices;
  facts.sms = sms;
  facts.tuning = read_aggregate_tuning();
  const AggregatePlan p = plan_aggregate(type, load, rows, edges, features, facts);
  char hubs[80] = "no row cut";
  if (p.hubs)
    std::snprintf(hubs, sizeof hubs, "rows from %lld edges cut every %lld",
                  static_cast<long long>(kHubDegree), static_cast<long long>(kChunk));
  std::snprintf(
      text, static_cast<size_t>(size),
      "neighbor_aggregate %s [%lld rows, %lld edges, %lld features] %s%s -> %s, %d-byte loads, %d "
      "lanes a row, %lld feature tiles, grid %lld x %d threads, %s, %s, workspace %.3f MB, "
      "reads "
      "%.3f MB of features",
      dtype_name(type), static_cast<long long>(rows), static_cast<long long>(edges),
      static_cast<long long>(features), weighted ? "weighted " : "", kReduces[reduce & 3],
      body_of(p, facts.plain), p.narrow ? static_cast<int>(dtype_bytes(type)) : p.load_bytes,
      p.tile_lanes, static_cast<long long>(p.tiles), static_cast<long long>(p.blocks * p.tiles),
      p.warps * 32, scheduled ? "rows in schedule order" : "rows as given", hubs,
      static_cast<double>(p.space_bytes) / 1e6,
      static_cast<double>(edges) * static_cast<double>(width) / 1e6);
}

// The same of sddmm; `address` and `stride`: those of a and b, or-ed.
extern "C" __attribute__((visibility("default"))) void gpuprims_explain_sddmm(
    int dtype, int64_t rows, int64_t edges, int64_t features, int promises, int64_t address,
    int64_t stride, char* text, int64_t size) {
  using namespace gpuprims;
  const Dtype type = static_cast<Dtype>(dtype);
  const int64_t width = features * dtype_bytes(type);
  const int load = pick_load_bytes(type, static_cast<uint64_t>(address), stride, width);
  const SddmmPlan p = plan_sddmm(load, edges, promises & 1);
  std::snprintf(text, static_cast<size_t>(size),
                "sddmm %s [%lld rows, %lld edges, %lld features] -> sddmm_edges, %d-byte loads, "
                "%lld edges a warp, grid %lld x %d threads, workspace %.3f MB, reads %.3f MB of "
                "features",
                dtype_name(type), static_cast<long long>(rows), static_cast<long long>(edges),
                static_cast<long long>(features), p.load_bytes, static_cast<long long>(kSddmmEdges),
                static_cast<long long>(p.blocks), kWarps * 32,
                static_cast<double>(p.space_bytes) / 1e6,
                2 * static_cast<double>(edges) * static_cast<double>(width) / 1e6);
}
