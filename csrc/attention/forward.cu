// Attention in one pass over the edges. Each lane makes the score of its own head, so nothing is
// exchanged between lanes. Weights are exponentials above a reference; it is the row's first score,
// and sums shrink when a score exceeds it by kSlack, so that hardly an edge pays for a running
// maximum (Milakov and Gimelshein, 2018).
#include "attention/score.cuh"
#include "attention/stream.cuh"
#include "common/launch.h"

namespace gpuprims::attention {
namespace {

// Weights stay below exp(kSlack): far from overflow, and what is lost below the reference is
// nothing beside the greatest.
constexpr int kSlack = 8;

template <class T, int kVec>
struct ForwardBody {
  using Acc = typename Math<T>::Acc;
  using Own = Columns<T, kVec, kStreamBytes>;
  static constexpr int kOwned = Own::kOwned;
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
  const Acc slope;
  int slot;  // of a hub's chunk, or -1
  Acc ahead, of_row;
  Acc sum[kOwned];
  Acc weight, base;  // the weights' sum, and the score that weighs 1
  bool fresh;        // no edge of the row has been taken

  __device__ ForwardBody(const ForwardArgs& args, const Lanes& l, const Own& o)
      : a(args),
        lanes(l),
        own(o),
        head(l.any_head()),
        x(args.x, sizeof(T), o.safe(l, args.channels), args.x_stride, args.csr.columns, args.hubs),
        a_src(args.a_src, sizeof(T), head, args.a_src_stride, args.csr.columns, args.hubs),
        slope(static_cast<Acc>(args.scores.slope)) {}

  __device__ __forceinline__ void fetch_row(int64_t row) {
    ahead = a.a_dst ? widen(__ldg(static_cast<const T*>(a.a_dst) + row * a.a_dst_stride + head))
                    : Acc(0);
  }

  __device__ __forceinline__ void begin_row(int64_t) {
    of_row = ahead;
    weight = 0;
    fresh = true;
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = 0;
  }

  __device__ __forceinline__ void gather(Batch& batch, unsigned (&source)[kFlight], unsigned wanted,
                                         int64_t edge) const {
    const unsigned bad = only_good(source, wanted, a.csr.columns);
    batch.kept = ~0u;
#pragma unroll
    for (int u = 0; u < kFlight; ++u) {
      own.load_near(batch.row[u], x.template at<T>(source[u]));
      batch.term[u] = widen(__ldg(a_src.template at<T>(source[u])));
    }
    if (a.scores.by_id) add_edge_terms<T>(a.csr, a.scores, a.heads, head, wanted, edge, batch);
    if (bad) [[unlikely]] {
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        if (bad >> u & 1) batch.term[u] = not_a_number<Acc>();
    }
  }

  // Takes the edges whose bits are in `take`, in order.
  __device__ __forceinline__ void add(const Batch& batch, unsigned take) {
    Acc score[kFlight];
#pragma unroll
    for (int u = 0; u < kFlight; ++u) score[u] = leaky(batch.term[u] + of_row, slope);
    if (fresh && take) {
      fresh = false;
      base = lowest<Acc>();
      const unsigned first = take & (0u - take);
#pragma unroll
      for (int u = 0; u < kFlight; ++u)
        if (first >> u & 1 && score[u] > base) base = score[u];
    }
    Acc most = score[0];  // of edges of other rows too: it does no harm
#pragma unroll
    for (int u = 1; u < kFlight; ++u) most = score[u] > most ? score[u] : most;
    if (most > base + kSlack) [[unlikely]]
      add_scores<true>(batch, take, score);
    else
      add_scores<false>(batch, take, score);
  }

  template <bool kRaise>
  __device__ __forceinline__ void add_scores(const Batch& batch, unsigned take,
                                             const Acc (&score)[kFlight]) {
    Acc factor[kFlight];
    if constexpr (!kRaise) {
#pragma unroll
      for (int u = 0; u < kFlight; ++u) {
        factor[u] = quick_exponential(score[u] - base);
        if (take >> u & 1) weight += factor[u];
      }
      if (a.scores.seed) {
#pragma unroll
        for (int u = 0; u < kFlight; ++u) factor[u] = batch.kept >> u & 1 ? factor[u] : Acc(0);
      }
    }
#pragma unroll
    for (int u = 0; u < kFlight; ++u) {
      if (!(take >> u & 1)) continue;
      if constexpr (kRaise) {
        if (score[u] > base + kSlack) raise(score[u]);
        factor[u] = quick_exponential(score[u] - base);
        weight += factor[u];
        factor[u] = batch.kept >> u & 1 ? factor[u] : Acc(0);
      }
#pragma unroll
      for (int k = 0; k < kOwned; ++k)
        sum[k] = fused(factor[u], batch.row[u][k / kVec][k % kVec], sum[k]);
    }
  }

  __device__ void raise(Acc score) {
    const Acc shrink = quick_exponential(base - score);
    base = score;
    weight *= shrink;
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] *= shrink;
  }

  __device__ __forceinline__ void end_row(int64_t row, int degree) {
    if (slot >= 0) {
      const int64_t width = a.heads * a.channels;
      Acc* const partial =
          static_cast<Acc*>(a.hubs.partial) + static_cast<int64_t>(slot) * (width + 2 * a.heads);
      own.write_partial(partial, sum);
      if (!lanes.owns_scalars()) return;
      partial[width + head] = base;
      partial[width + a.heads + head] = weight;
      return;
    }
    const Acc inverse = quotient(dropout_scale(a.scores, Acc(1)), weight);
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = degree > 0 ? sum[k] * inverse : Acc(0);
    own.write(static_cast<T*>(a.out) + row * a.heads * a.channels, sum);
    if (lanes.owns_scalars())
      static_cast<Acc*>(a.lse)[row * a.heads + head] =
          degree > 0 ? base + logarithm(weight) : Acc(-INFINITY);
  }

  __device__ void fill_row(int64_t row) {  // bad offsets
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = not_a_number<Acc>();
    own.write(static_cast<T*>(a.out) + row * a.heads * a.channels, sum);
    if (lanes.owns_scalars()) static_cast<Acc*>(a.lse)[row * a.heads + head] = not_a_number<Acc>();
  }
};

template <class T, int kVec>
__global__ void __launch_bounds__(32 * kWarps, sizeof(T) == 4 && kVec > 1 ? 5 : 4)
    attend_rows(const __grid_constant__ ForwardArgs a, const int64_t first_tile,
                const int hub_blocks) {
  using Body = ForwardBody<T, kVec>;
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
  const int64_t width = a.heads * a.channels, stride = width + 2 * a.heads;
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
#pragma unroll 8
    for (int64_t c = 0; c < chunks; ++c) {
      const Acc other = own[c * stride + width + head];
      best = other > best ? other : best;
    }
    const Acc base = best > -INFINITY ? best : Acc(0);
    Acc sum = 0, weight = 0;
#pragma unroll(sizeof(Acc) == 8 ? 1 : 4)
    for (int64_t c = 0; c < chunks; ++c) {
      const Acc scale = exponential(own[c * stride + width + head] - base);
      sum = fused(scale, own[c * stride + column], sum);
      weight = fused(scale, own[c * stride + width + a.heads + head], weight);
    }
    store_as(dtype, a.out, first.row * width + column,
             sum * (dropout_scale(a.scores, Acc(1)) / weight));
    if (column % a.channels == 0)
      static_cast<Acc*>(a.lse)[first.row * a.heads + head] = best + logarithm(weight);
  }
}

template <class T, int kVec>
cudaError_t launch_rows(const Plan& plan, const ForwardArgs& args, cudaStream_t stream) {
  for (int64_t tile = 0; tile < plan.tiles; tile += kMostGridY) {
    const dim3 grid(static_cast<unsigned>(plan.chunk_blocks + plan.run_blocks),
                    static_cast<unsigned>(std::min(plan.tiles - tile, kMostGridY)));
    const auto code = launch(attend_rows<T, kVec>, {grid, dim3(32 * kWarps)}, stream, args, tile,
                             static_cast<int>(plan.chunk_blocks));
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

template <class T>
cudaError_t launch_dtype(const Plan& plan, const ForwardArgs& args, cudaStream_t stream) {
  if constexpr (sizeof(T) < 8)  // float64 is not worth a second kernel
    if (plan.vector) return launch_rows<T, 16 / sizeof(T)>(plan, args, stream);
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
