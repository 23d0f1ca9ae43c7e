// Attention in one pass over the edges. Each lane makes the score of its own head, so nothing is
// exchanged between lanes. Scores are in powers of 2; weights are 2^(score - base), base being the
// row's first score, until their sum exceeds kMostWeight at a score above base, which then becomes
// that score: hardly an edge pays for a running maximum (Milakov and Gimelshein, 2018).
//
// For the gradient in a_dst the part of the sum that has positive scores is kept too, and its share
// of the weights (stats.cu).
#include "attention/score.cuh"
#include "attention/stream.cuh"
#include "common/launch.h"

namespace gpuprims::attention {
namespace {

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
    own.write(static_cast<T*>(a.out) + row * width, sum);
    if (keeps()) {
#pragma unroll
      for (int k = 0; k < kOwned; ++k) kept_sum[k] = degree > 0 ? kept_sum[k] * inverse : Acc(0);
      own.write_wide(kept_row(row), kept_sum);
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

template <class T, int kVec, Asked kAsked>
__global__ void __launch_bounds__(32 * kWarps, kAsked == Asked::nothing ? 5 : 4)
    attend_rows(const __grid_constant__ ForwardArgs a, const int64_t first_tile,
                const int hub_blocks) {
  using Body = ForwardBody<T, kVec, kAsked>;
  const bool bad = a.hubs.flag && *a.hubs.flag;
  const Lanes lanes = Lanes::of<Body::kOwned>(first_tile + blockIdx.y, a.heads, a.channels);
  const Columns<T, kVec, kStreamBytes> own(lanes, a.channels);
  Body body(a, lanes, own);
  if (bad)
    fill_all(body, a.csr, lanes);
  else
    walk_all(body, a.csr, a.hubs, lanes, hub_blocks);
}

// Puts the chunks of a hub together: a warp a hub and 32 channels.
template <class Acc>
__global__ void __launch_bounds__(32 * kWarps)
    combine_attended(const __grid_constant__ ForwardArgs a, const Dtype dtype) {
  if (*a.hubs.flag) return;
  const int64_t width = a.heads * a.channels, stride = a.partial_width();
  const int64_t stripes = (width + 31) / 32;
  const int64_t items = static_cast<int64_t>(*a.hubs.count) * stripes;
  const Acc* partial = static_cast<const Acc*>(a.hubs.partial);
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; item < items;
       item += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t slot = item / stripes;
    const int64_t column = item % stripes * 32 + threadIdx.x % 32;
    const Chunk first = a.hubs.chunks[slot];
    if (first.number != 0 || column >= width) continue;
    const int64_t degree = load_int(a.csr.indptr, a.csr.wide_offsets, first.row + 1) -
                           load_int(a.csr.indptr, a.csr.wide_offsets, first.row);
    const int64_t chunks = degree / kChunk, head = column / a.channels;
    const Acc* const own = partial + slot * stride;
    Acc best = -INFINITY;
#pragma unroll 16
    for (int64_t c = 0; c < chunks; ++c) {
      const Acc other = own[c * stride + width + head];
      best = other > best ? other : best;
    }
    const Acc base = best > -INFINITY ? best : Acc(0);
    Acc sum = 0, weight = 0, kept_sum = 0, kept_weight = 0;
#pragma unroll(sizeof(Acc) == 8 ? 2 : 12)
    for (int64_t c = 0; c < chunks; ++c) {
      const Acc* const from = own + c * stride;
      const Acc scale = power2(from[width + head] - base);
      sum = fused(scale, from[column], sum);
      weight = fused(scale, from[width + a.heads + head], weight);
      if (!a.positive) continue;
      kept_sum = fused(scale, from[width + 2 * a.heads + column], kept_sum);
      kept_weight = fused(scale, from[2 * width + 2 * a.heads + head], kept_weight);
    }
    const Acc inverse = dropout_scale(a.scores, Acc(1)) / weight;
    store_as(dtype, a.out, first.row * width + column, sum * inverse);
    Acc* const kept = static_cast<Acc*>(a.positive);
    if (kept) kept[first.row * width + column] = kept_sum * inverse;
    if (column % a.channels != 0) continue;
    static_cast<Acc*>(a.lse)[first.row * a.heads + head] =
        (best + logarithm2(weight)) * log_of_2<Acc>();
    if (kept) static_cast<Acc*>(a.share)[first.row * a.heads + head] = kept_weight / weight;
  }
}

template <class T, int kVec, Asked kAsked = Asked::all>
cudaError_t launch_rows(const Plan& plan, const ForwardArgs& args, cudaStream_t stream) {
  for (int64_t tile = 0; tile < plan.tiles; tile += kMostGridY) {
    const dim3 grid(static_cast<unsigned>(plan.chunk_blocks + plan.run_blocks),
                    static_cast<unsigned>(std::min(plan.tiles - tile, kMostGridY)));
    const auto code = launch(attend_rows<T, kVec, kAsked>, {grid, dim3(32 * kWarps)}, stream, args,
                             tile, static_cast<int>(plan.chunk_blocks));
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

template <class T>
cudaError_t launch_dtype(const Plan& plan, const ForwardArgs& args, cudaStream_t stream) {
  if constexpr (sizeof(T) < 8)  // float64 is not worth a second kernel
    if (plan.vector) {
      if constexpr (sizeof(T) == 4)  // registers that it does not need are warps
        if (!args.scores.by_id) {
          return args.positive ? launch_rows<T, 4, Asked::positive>(plan, args, stream)
                               : launch_rows<T, 4, Asked::nothing>(plan, args, stream);
        }
      return launch_rows<T, 16 / sizeof(T)>(plan, args, stream);
    }
  return launch_rows<T, 1>(plan, args, stream);
}

cudaError_t launch_all_rows(Dtype dtype, const Plan& plan, const ForwardArgs& args,
                            cudaStream_t stream) {
  switch (dtype) {
    case Dtype::f32:
      return launch_dtype<float>(plan, args, stream);
    case Dtype::f64:
      return launch_dtype<double>(plan, args, stream);
    case Dtype::f16:
      return launch_dtype<__half>(plan, args, stream);
    case Dtype::bf16:
      return launch_dtype<__nv_bfloat16>(plan, args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t launch_forward(Dtype dtype, const Plan& plan, const ForwardArgs& args,
                           cudaStream_t stream) {
  const auto code = launch_all_rows(dtype, plan, args, stream);
  if (code != cudaSuccess || plan.hub_blocks == 0) return code;
  const auto kernel = dtype == Dtype::f64 ? combine_attended<double> : combine_attended<float>;
  return launch(kernel, {dim3(plan.hub_blocks), dim3(32 * kWarps)}, stream, args, dtype);
}

}  // namespace gpuprims::attention
