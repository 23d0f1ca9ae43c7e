// Attention in one pass over the edges. Each lane makes the score of its own head, so nothing is
// exchanged between lanes. Scores are in powers of 2; weights are 2^(score - base), base being the
// row's first score, until their sum exceeds kMostWeight at a score above base, which then becomes
// that score: hardly an edge pays for a running maximum (Milakov and Gimelshein, 2018).
//
// For the gradient in a_dst the part of the sum that has positive scores is kept too, and its share
// of the weights (stats.cu).
#pragma once
#include "attention/score.cuh"
#include "attention/stream.cuh"

namespace gpuprims::attention {

// Far from overflow, and what is lost below the base is nothing beside the greatest. Whether the
// base moves follows from the row's edges in order, not from where batches start.
constexpr float kMostWeight = 65536;

// What a kernel may be asked for beside sums: the part with positive scores, edges that bring
// something by their ids.
enum class Asked { nothing, positive, all };

template <class T, int kVec, Asked kAsked>
struct ForwardBody {
  using Acc = typename Math<T>::Acc;
  using Own = Columns<T, kVec, kStreamBytes>;
  static constexpr int kOwned = Own::kOwned;
  static constexpr bool kIds = kAsked == Asked::all;
  static constexpr int kFlight = Own::kLoads > 8              ? 1
                                 : kVec == 1 && sizeof(T) < 8 ? 2
                                 : sizeof(T) == 8             ? 2
                                                              : 4;

  struct Batch {
    Packed<T, kVec> row[kFlight][Own::kLoads];
    Acc term[kFlight];
    unsigned kept;  // by dropout
  };

  const ForwardArgs& a;
  const Lanes& lanes;
  const Own& own;
  const int head;
  const Rows x, a_src;  // of the lane's first channel and head
  const Acc up, down;   // what turns positive terms and others into scores
  int slot;             // of a hub's chunk, or -1
  bool live;            // a row is at hand
  bool fresh;           // no edge of the row has been taken
  Acc ahead, of_row;
  Acc sum[kOwned];
  Acc weight, base;  // the weights' sum, and the score that weighs 1
  Acc kept_sum[kOwned], kept_weight;

  __device__ ForwardBody(const ForwardArgs& args, const Lanes& l, const Own& o)
      : a(args),
        lanes(l),
        own(o),
        head(l.any_head()),
        x(args.x, sizeof(T), o.safe(l, args.channels), args.x_stride, args.csr.columns, args.hubs),
        a_src(args.a_src, sizeof(T), head, args.a_src_stride, args.csr.columns, args.hubs),
        up(log2_of_e<Acc>()),
        down(pinned(static_cast<Acc>(args.scores.slope) * log2_of_e<Acc>())),
        ahead(0) {}

  __device__ __forceinline__ bool keeps() const {
    return kAsked == Asked::all ? a.positive != nullptr : kAsked != Asked::nothing;
  }

  __device__ __forceinline__ void fetch_row(int64_t row) {
    if (a.a_dst) ahead = widen(__ldg(static_cast<const T*>(a.a_dst) + row * a.a_dst_stride + head));
  }

  __device__ __forceinline__ void begin_none() {
    of_row = weight = base = kept_weight = 0;
    fresh = true;
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = 0;
    if (keeps())
#pragma unroll
      for (int k = 0; k < kOwned; ++k) kept_sum[k] = 0;
  }

  __device__ __forceinline__ void begin_row(int64_t) {
    begin_none();
    of_row = ahead;
    live = true;
  }

  __device__ __forceinline__ void gather(Batch& batch, const unsigned (&source)[kFlight],
                                         int inside, int64_t edge) const {
    if (all_good(source, a.csr.columns)) {
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        own.load_near(batch.row[u], x.template at<T>(source[u]));
        batch.term[u] = widen(__ldg(a_src.template at<T>(source[u])));
      }
    } else {
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        const bool good = source[u] < static_cast<uint64_t>(a.csr.columns);
        own.load_near(batch.row[u], x.template at<T>(good ? source[u] : 0));
        batch.term[u] = good ? widen(__ldg(a_src.template at<T>(source[u]))) : not_a_number<Acc>();
      }
    }
    batch.kept = ~0u;
    if (kIds && a.scores.by_id)
      add_edge_terms<T>(a.csr, a.scores, a.heads, head, inside, edge, batch);
  }

  __device__ __forceinline__ Acc score_of(Acc raw) const { return raw * (raw > 0 ? up : down); }

  __device__ __forceinline__ void start_at(Acc score) {
    if (fresh) base = score < lowest<Acc>() ? lowest<Acc>() : score;
    fresh = false;
  }

  // Takes all edges of a batch, in order.
  __device__ __forceinline__ void add_all(const Batch& batch) {
    Acc raw[kFlight], factor[kFlight], total = weight;
#pragma unroll
    for (int u = 0; u < kFlight; ++u) raw[u] = batch.term[u] + of_row;
    start_at(score_of(raw[0]));
#pragma unroll
    for (int u = 0; u < kFlight; ++u) {
      factor[u] = quick_power2(score_of(raw[u]) - base);
      total += factor[u];
    }
    if (total > kMostWeight) [[unlikely]] {
#pragma unroll
      for (int u = 0; u < kFlight; ++u) add_one(batch, u);
      return;
    }
    weight = total;
#pragma unroll
    for (int u = 0; u < kFlight; ++u) add_row(batch, u, raw[u] > 0, factor[u]);
  }

  __device__ __forceinline__ void add_one(const Batch& batch, int u) {
    const Acc raw = batch.term[u] + of_row, score = score_of(raw);
    start_at(score);
    Acc factor = quick_power2(score - base);
    if (weight + factor > kMostWeight && score > base) [[unlikely]] {
      raise(score);
      factor = quick_power2(score - base);
    }
    weight += factor;
    add_row(batch, u, raw > 0, factor);
  }

  __device__ __forceinline__ void add_row(const Batch& batch, int u, bool positive, Acc factor) {
    if (keeps() && positive) kept_weight += factor;
    if (kIds && a.scores.seed && !(batch.kept >> u & 1)) factor = 0;
#pragma unroll
    for (int k = 0; k < kOwned; ++k)
      sum[k] = fused(factor, batch.row[u][k / kVec][k % kVec], sum[k]);
    if (!keeps() || !positive) return;
#pragma unroll
    for (int k = 0; k < kOwned; ++k)
      kept_sum[k] = fused(factor, batch.row[u][k / kVec][k % kVec], kept_sum[k]);
  }

  __device__ __forceinline__ void raise(Acc score) {
    const Acc shrink = quick_power2(base - score);
    base = score;
    weight *= shrink;
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] *= shrink;
    if (!keeps()) return;
    kept_weight *= shrink;
#pragma unroll
    for (int k = 0; k < kOwned; ++k) kept_sum[k] *= shrink;
  }

  __device__ __forceinline__ Acc* kept_row(int64_t row) const {
    return static_cast<Acc*>(a.positive) + row * a.heads * a.channels;
  }

  __device__ __forceinline__ void end_row(int64_t row, int degree) {
    const int64_t width = a.heads * a.channels;
    if (slot >= 0) {
      Acc* const partial =
          static_cast<Acc*>(a.hubs.partial) + static_cast<int64_t>(slot) * a.partial_width();
      own.write_partial(partial, sum);
      if (keeps()) own.write_partial(partial + width + 2 * a.heads, kept_sum);
      if (!lanes.owns_scalars()) return;
      partial[width + head] = base;
      partial[width + a.heads + head] = weight;
      if (keeps()) partial[2 * width + 2 * a.heads + head] = kept_weight;
      return;
    }
    const Acc share = degree > 0 ? quotient(Acc(1), weight) : Acc(0);  // sums of no edges are 0
    const Acc inverse = kIds ? share * dropout_scale(a.scores, Acc(1)) : share;
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] *= inverse;
    if constexpr (sizeof(T) >= 4) {
      if (a.bias) {
        Packed<T, kVec> bias[Own::kLoads];
        own.load(bias, static_cast<const T*>(a.bias));
#pragma unroll
        for (int k = 0; k < kOwned; ++k) sum[k] += bias[k / kVec][k % kVec];
      }
    }
    own.write(static_cast<T*>(a.out) + row * width, sum);
    if (keeps()) {
#pragma unroll
      for (int k = 0; k < kOwned; ++k) kept_sum[k] = degree > 0 ? kept_sum[k] * inverse : Acc(0);
      own.write(kept_row(row), kept_sum);
    }
    if (!lanes.owns_scalars()) return;
    static_cast<Acc*>(a.lse)[row * a.heads + head] =
        degree > 0 ? (base + logarithm2(weight)) * log_of_2<Acc>() : Acc(-INFINITY);
    if (keeps()) static_cast<Acc*>(a.share)[row * a.heads + head] = kept_weight * share;
  }

  __device__ void fill_row(int64_t row) {  // bad offsets
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = not_a_number<Acc>();
    own.write(static_cast<T*>(a.out) + row * a.heads * a.channels, sum);
    if (keeps()) own.write_partial(kept_row(row), sum);
    if (!lanes.owns_scalars()) return;
    static_cast<Acc*>(a.lse)[row * a.heads + head] = not_a_number<Acc>();
    if (keeps()) static_cast<Acc*>(a.share)[row * a.heads + head] = not_a_number<Acc>();
  }
};

}  // namespace gpuprims::attention
