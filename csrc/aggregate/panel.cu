// Short rows of x that does not fit L2: the sources one after another in panels that do, a launch
// each. A group a row adds, in order, the edges before the first one of a later panel, and leaves
// the sum in the result and the count in `taken` to the next launch. So the bits are those of one
// pass, whatever the order of the edges; where a row's sources ascend each of its rows of x is read
// from L2 (64-byte rows, which HBM gives at half its rate). Costs 8 bytes a column and panel more.
#include "aggregate/rows.cuh"

namespace gpuprims {
namespace {

struct Panel {
  unsigned most;  // its last source; the last panel has all
  bool first, last;
};

using PanelGroup = RowGroup<float, 4, Mode::sum, int32_t>;
using Row = Packed<float, 4>;
constexpr int kFlight = 8;

__device__ __forceinline__ void load_sources(unsigned (&source)[kFlight], const Csr& csr,
                                             int64_t at) {
  const auto* const from = static_cast<const unsigned*>(csr.indices) + at;
  if (at + kFlight <= csr.edges) {
    load_vector<unsigned, 4>(source, from);
    load_vector<unsigned, 4>(source + 4, from + 4);
  } else {
#pragma unroll
    for (int u = 0; u < kFlight; ++u) source[u] = at + u < csr.edges ? __ldg(from + u) : 0;
  }
}

// Adds the edges of a row from number `done` on; how many there are in the end.
__device__ __forceinline__ int add_edges(PanelGroup& group, int64_t begin, int done, int degree,
                                         unsigned most) {
  const AggregateArgs& a = group.a;
  const auto columns =
      static_cast<unsigned>(a.csr.columns < (int64_t(1) << 31) ? a.csr.columns : int64_t(1) << 31);
  const auto stride = static_cast<uint32_t>(a.x_stride) * static_cast<uint32_t>(sizeof(float));
  const int64_t base = (begin + done) & -4;
  const int shift =
      static_cast<int>(begin - base);  // slot s of the row's batches is edge s - shift
  int slot = 0;
  unsigned source[kFlight];
  load_sources(source, a.csr, base);
#pragma unroll 1
  while (true) {
    int stop = kFlight, bad = 0;
#pragma unroll
    for (int u = kFlight - 1; u >= 0; --u)
      if (source[u] > most && slot + u >= done + shift) stop = u;
    stop = std::min(stop, degree + shift - slot);
    Row batch[kFlight];
#pragma unroll
    for (int u = 0; u < kFlight; ++u) {
      bool wanted = u < stop && slot + u >= done + shift;
      if (wanted && source[u] >= columns) [[unlikely]]
        wanted = false, bad |= 1 << u;
      batch[u] = Row::load_if(wanted, at_offset(group.x, source[u], stride));
    }
    const bool more = stop == kFlight && slot + kFlight < degree + shift;
    if (more) load_sources(source, a.csr, base + slot + kFlight);
    if (bad != 0) [[unlikely]] {
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        if (bad >> u & 1) batch[u] = Row::not_numbers();
    }
    // What is not wanted adds +0, which changes no sum that began at +0.
#pragma unroll
    for (int u = 0; u < kFlight; ++u) group.add_row<false>(batch[u], 0);
    if (!more) return std::max(slot + stop - shift, done);
    slot += kFlight;
  }
}

__device__ __forceinline__ void store_sum(PanelGroup& group, int64_t row, int degree, bool last) {
  if (last && group.a.reduce == Reduce::mean && degree > 0) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      group.value[k] = quotient(group.value[k], static_cast<float>(degree));
  }
  group.store_row(row, 0, degree);
}

__global__ void __launch_bounds__(32 * kRowWarps, 6)
    aggregate_panel(const __grid_constant__ AggregateArgs a, const Dealing deal,
                    const Panel panel) {
  PanelGroup group(a, 0, deal.tile_lanes);
  const auto offset = [&](int64_t row) { return load_int(a.csr.indptr, a.csr.wide_offsets, row); };
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  const int64_t row = warp * group.lanes.groups + group.lanes.group;
  const bool inside = row < a.csr.rows, leads = threadIdx.x % group.lanes.count == 0;
  const int64_t begin = inside ? offset(row) : 0;
  const int degree = inside ? static_cast<int>(offset(row + 1) - begin) : 0;
  const bool is_long = degree >= deal.long_degree;
  // Whole rows, by the warp, as everywhere.
  unsigned left = panel.first ? __ballot_sync(~0u, is_long && leads) : 0;
#pragma unroll 1
  for (; left != 0; left &= left - 1) {
    const int lane = __ffs(static_cast<int>(left)) - 1;
    const int64_t from = __shfl_sync(~0u, begin, lane);
    const int edges = __shfl_sync(~0u, degree, lane);
    group.reduce_chunk(from, edges, deal.log_ways);
    if (group.lanes.group == 0)
      store_sum(group, warp * group.lanes.groups + lane / group.lanes.count, edges, true);
  }
  const int done = panel.first || !inside || is_long ? 0 : a.cursor[row];
  __syncwarp();  // the group's first lane will write it
  if (!inside || is_long) return;
  group.reset();
  if (!panel.first) {
    if (done == degree && (!panel.last || a.reduce == Reduce::sum)) return;
    if (group.owns(0)) {
      const float4 sum = __ldcs(
          reinterpret_cast<const float4*>(static_cast<const float*>(a.out) + group.place(row, 0)));
      memcpy(group.value, &sum, sizeof(sum));
    }
  }
  const int now = done < degree ? add_edges(group, begin, done, degree, panel.most) : done;
  if (!panel.last && leads) a.cursor[row] = static_cast<unsigned char>(now);
  if (panel.first || panel.last || now != done) store_sum(group, row, degree, panel.last);
}

}  // namespace

cudaError_t launch_panels(const AggregatePlan& plan, const AggregateArgs& args,
                          cudaStream_t stream) {
  for (int panel = 0; panel < plan.panels; ++panel) {
    const bool last = panel + 1 == plan.panels;
    const auto most = static_cast<unsigned>(
        last ? int64_t(~0u) : ceil_div(args.csr.columns, plan.panels) * (panel + 1) - 1);
    const auto code =
        launch(aggregate_panel, {dim3(static_cast<unsigned>(plan.blocks)), dim3(32 * kRowWarps)},
               stream, args, dealing_of(plan, 0), Panel{most, panel == 0, last});
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

}  // namespace gpuprims
