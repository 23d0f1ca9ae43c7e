// The gradient of attention: a pass by source makes the scores again from a_src and the
// destinations' stats. The gradient in a_dst is that of stats.cu where the forward pass kept the
// part with positive scores; otherwise the gradient in each edge's score is left to softmax.cu,
// which adds them by destination. Without the transposed graph a pass by destination does both.
//
//   ds = alpha * (factor * <grad, x> - delta), delta = <grad, out> - grad_lse
// is the gradient in the score (Dao and others, 2022, for the dense case), factor dropout's.
#pragma once
#include "attention/score.cuh"
#include "attention/stream.cuh"

namespace gpuprims::attention {

// kLean: by source, with nothing that edges bring by their ids and heads within a warp.
template <class T, int kVec, bool kLean>
struct BackwardBody {
  using Acc = typename Math<T>::Acc;
  using Own = Columns<T, kVec, kStreamBytes>;
  using Row = Packed<T, kVec>[Own::kLoads];
  static constexpr int kOwned = Own::kOwned;
  static constexpr int kFlight = Own::kLoads > 2 ? 1 : 4;

  // By source the gathered node brings its stats, by destination its a_src.
  struct Batch {
    Row row[kFlight];
    Acc term[kFlight], lse[kFlight], delta[kFlight];
    unsigned id[kFlight];  // kNone: not asked for, or out of range
    int64_t edge;          // the first one's place in the graph
    unsigned kept;         // by dropout
  };
  struct OfRow {
    Row row;
    Acc term, lse, delta;
  };

  const BackwardArgs& a;
  const Lanes& lanes;
  const Own& own;
  const int head;
  const Rows other, node_at;  // gathered: of the lane's first channel, and of its head
  const Acc slope, scale;
  const Acc up, down;  // what turns positive terms and others into scores, in powers of 2
  int slot;            // of a hub's chunk, or -1
  bool live;           // a row is at hand
  int64_t row_at;      // the row at hand
  OfRow ahead, mine;
  Acc sum[kOwned];  // by source: the gradient in x
  Acc scalar;       // the gradient in a_src or a_dst

  __device__ BackwardBody(const BackwardArgs& args, const Lanes& l, const Own& o)
      : a(args),
        lanes(l),
        own(o),
        head(l.any_head()),
        other(args.other, sizeof(T), o.safe(l, args.channels), args.other_stride, args.csr.columns,
              args.hubs),
        node_at(args.by_source ? args.stats : args.a_src,
                args.by_source ? sizeof(Stats<Acc>) : sizeof(T), head,
                args.by_source ? args.heads : args.a_src_stride, args.csr.columns, args.hubs),
        slope(pinned(static_cast<Acc>(args.scores.slope))),
        scale(dropout_scale(args.scores, Acc(1))),
        up(log2_of_e<Acc>()),
        down(pinned(slope * log2_of_e<Acc>())) {
    row_at = 0;
    ahead = mine = OfRow{};
  }

  __device__ __forceinline__ bool by_source() const { return kLean || a.by_source; }
  __device__ __forceinline__ bool by_id() const { return !kLean && a.scores.by_id; }

  __device__ __forceinline__ Stats<Acc> stats_of(int64_t row) const {
    return load_stats(static_cast<const Stats<Acc>*>(a.stats) + row * a.heads + head);
  }
  __device__ __forceinline__ Acc a_src_of(int64_t row) const {
    if (!a.a_src) return 0;
    return widen(__ldg(static_cast<const T*>(a.a_src) + row * a.a_src_stride + head));
  }

  __device__ __forceinline__ void fetch_row(int64_t row) {
    own.load(ahead.row, static_cast<const T*>(a.own) + row * a.own_stride);
    if (by_source()) ahead.term = a_src_of(row);
  }

  __device__ __forceinline__ void begin_none() {
    scalar = 0;
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = 0;
  }

  __device__ __forceinline__ void begin_row(int64_t row) {
    row_at = row;
    live = true;
#pragma unroll
    for (int i = 0; i < Own::kLoads; ++i) mine.row[i] = ahead.row[i];
    mine.term = ahead.term;
    if (!by_source()) {
      const Stats<Acc> stats = stats_of(row);
      mine.term = stats.a_dst, mine.lse = stats.lse, mine.delta = stats.delta;
    }
    begin_none();
  }

  __device__ __forceinline__ void gather(Batch& batch, const unsigned (&source)[kFlight],
                                         int inside, int64_t edge) const {
    batch.kept = ~0u;
    batch.edge = edge;
#pragma unroll
    for (int u = 0; u < kFlight; ++u) batch.id[u] = kNone;
    if (all_good(source, a.csr.columns)) {
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        own.load_near(batch.row[u], other.template at<T>(source[u]));
      load_terms(batch, source);
    } else {
      unsigned node[kFlight];
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        node[u] = source[u] < static_cast<uint64_t>(a.csr.columns) ? source[u] : 0;
        own.load_near(batch.row[u], other.template at<T>(node[u]));
      }
      load_terms(batch, node);
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        if (source[u] >= static_cast<uint64_t>(a.csr.columns)) batch.term[u] = not_a_number<Acc>();
    }
    if (by_id() && !take_ids(batch, edge))
      add_edge_terms<T>(a.csr, a.scores, a.heads, head, inside, edge, batch);
  }

  __device__ __forceinline__ void load_terms(Batch& batch, const unsigned (&node)[kFlight]) const {
    if (by_source()) {
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        const Stats<Acc> stats = load_stats(node_at.template at<Stats<Acc>>(node[u]));
        batch.term[u] = stats.a_dst, batch.lse[u] = stats.lse, batch.delta[u] = stats.delta;
      }
    } else {
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        batch.term[u] = widen(__ldg(node_at.template at<T>(node[u])));
    }
  }

  // The ids of a whole batch at once, where edges bring nothing else; false where it cannot be.
  __device__ __forceinline__ bool take_ids(Batch& batch, int64_t edge) const {
    if constexpr (kFlight != 4) {
      return false;
    } else {
      const int* const ids = static_cast<const int*>(a.csr.edge_ids);
      if (!ids || !a.ids_alone || edge + kFlight > a.csr.edges) return false;
      load_vector<int, kFlight>(reinterpret_cast<int*>(batch.id), ids + edge);
      unsigned most = batch.id[0];
#pragma unroll
      for (int u = 1; u < kFlight; ++u) most = batch.id[u] > most ? batch.id[u] : most;
      return most < static_cast<uint64_t>(a.csr.edges);
    }
  }

  __device__ __forceinline__ void add_all(const Batch& batch) { add<kFlight>(batch, 0); }
  __device__ __forceinline__ void add_one(const Batch& batch, int u) { add<1>(batch, u); }

  // Takes edges of a batch, in order. The lanes of a warp are together.
  template <int kCount>
  __device__ __forceinline__ void add(const Batch& batch, int first) {
    Acc dot[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      dot[i] = 0;
#pragma unroll
      for (int k = 0; k < kOwned; ++k)
        dot[i] =
            fused(mine.row[k / kVec][k % kVec], batch.row[first + i][k / kVec][k % kVec], dot[i]);
    }
    if (lanes.first) {  // of a head of several tiles: the first one has its scalars
      if (!kLean && a.channels > 32 * kOwned && live) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) dot[i] = rest_of_dot(batch.edge + first + i, dot[i]);
      }
      for (int distance = 1; distance < 1 << lanes.part_bits; distance *= 2)
#pragma unroll
        for (int i = 0; i < kCount; ++i) dot[i] += __shfl_xor_sync(~0u, dot[i], distance);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int u = first + i;
      const Acc raw = batch.term[u] + mine.term;
      const Acc lse = by_source() ? batch.lse[u] : mine.lse;
      const Acc delta = by_source() ? batch.delta[u] : mine.delta;
      const bool positive = raw > 0;
      const Acc alpha = quick_power2(fused(raw, positive ? up : down, -lse));
      const Acc factor = kLean ? Acc(1) : batch.kept >> u & 1 ? scale : Acc(0);
      const Acc score_grad = alpha * fused(factor, dot[i], -delta);
      const Acc raw_grad = positive ? score_grad : score_grad * slope;
      scalar += raw_grad;
      if (by_id() && live && batch.id[u] != kNone) store_edge(batch.id[u], raw_grad);
      const Acc w = alpha * factor;
#pragma unroll
      for (int k = 0; k < kOwned; ++k) sum[k] = fused(w, batch.row[u][k / kVec][k % kVec], sum[k]);
    }
  }

  __device__ __forceinline__ void store_edge(unsigned id, Acc raw_grad) const {
    if (!lanes.owns_scalars()) return;
    if (a.grad_score)
      static_cast<Acc*>(a.grad_score)[static_cast<int64_t>(id) * a.heads + head] = raw_grad;
    if (a.grad_edge)
      static_cast<T*>(a.grad_edge)[static_cast<int64_t>(id) * a.heads + head] = narrow<T>(raw_grad);
  }

  // A head of several tiles: the channels behind the first tile.
  __device__ Acc rest_of_dot(int64_t edge, Acc product) const {
    const int64_t node = load_int(a.csr.indices, a.csr.wide_indices, edge);
    if (static_cast<uint64_t>(node) >= static_cast<uint64_t>(a.csr.columns)) return product;
    const T* const left = static_cast<const T*>(a.own) + row_at * a.own_stride;
    const T* const right = static_cast<const T*>(a.other) + node * a.other_stride;
#pragma unroll 1
    for (int c = own.tile; c < own.left; c += own.tile) {
#pragma unroll 1
      for (int k = 0; k < kOwned; ++k) {
        const int at = c + k / Own::kChunkOwned * own.step + k % Own::kChunkOwned;
        if (at >= own.left) break;
        product = fused(widen(__ldg(left + own.offset + at)), widen(__ldg(right + own.offset + at)),
                        product);
      }
    }
    return product;
  }

  __device__ __forceinline__ void end_row(int64_t row, int) {
    if (slot >= 0) {
      const int64_t width = a.heads * a.channels;
      Acc* const partial =
          static_cast<Acc*>(a.hubs.partial) + static_cast<int64_t>(slot) * (width + a.heads);
      own.write_partial(partial, sum);
      if (lanes.owns_scalars()) partial[width + head] = scalar;
      return;
    }
    if (a.grad_other_sum)
      own.write(static_cast<T*>(a.grad_other_sum) + row * a.heads * a.channels, sum);
    if (a.grad_row && lanes.owns_scalars())
      static_cast<T*>(a.grad_row)[row * a.heads + head] = narrow<T>(scalar);
  }

  __device__ void fill_row(int64_t row) {  // bad offsets
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = not_a_number<Acc>();
    scalar = not_a_number<Acc>();
    slot = -1;
    end_row(row, 0);
  }
};

}  // namespace gpuprims::attention
