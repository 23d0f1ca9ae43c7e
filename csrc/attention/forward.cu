// Attention in one pass over the edges: a running maximum and sum for each row and head (Milakov
// and Gimelshein, 2018), the feature sums rescaled when the maximum of a batch of edges raises it.
#include "attention/score.cuh"
#include "common/launch.h"

namespace gpuprims::attention {
namespace {

template <class T, int kVec>
struct ForwardWarp {
  using Acc = typename Math<T>::Acc;
  using Own = Columns<T, kVec>;
  static constexpr int kOwned = Own::kOwned;

  const ForwardArgs& a;
  const Lanes& lanes;
  const Own& own;
  uint64_t seed;
  Acc sum[kOwned];   // of this lane's channels and group
  Acc best, weight;  // of this lane's score head: the maximum so far, this lane's part of the sum

  __device__ void walk(int64_t row, int64_t begin, int length) {
    const int64_t head = lanes.head + lanes.score_head();
    const bool has_head = lanes.score_head() < lanes.heads;
    const T* a_src = static_cast<const T*>(a.a_src);
    const T* x = static_cast<const T*>(a.x);
    const Acc slope = static_cast<Acc>(a.scores.slope);
    Acc of_row = 0;
    if (a.a_dst && has_head)
      of_row = widen(__ldg(static_cast<const T*>(a.a_dst) + row * a.a_dst_stride + head));
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = 0;
    best = -INFINITY;
    weight = 0;
    const int batch = lanes.batch(), steps = 1 << lanes.part_bits;
    const int slot = lanes.slot();
    unsigned next = node_of(a.csr, has_head && slot < length, begin + slot);
    for (int base = 0; base < length; base += batch) {
      const int number = base + slot;
      const bool there = has_head && number < length;
      EdgeScore<T> edge(a.csr, a.scores, a.heads, head, there, begin + number, next);
      if (a_src && edge.node != kNone)
        edge.raw += widen(__ldg(a_src + static_cast<int64_t>(edge.node) * a.a_src_stride + head));
      // Indices of the next batch arrive while this batch's rows are on their way.
      next = node_of(a.csr, has_head && number + batch < length, begin + number + batch);
      Acc factor = 0;  // of this slot's row in the sum
      for (int step = 0; step < steps; step += kFlight) {
        Packed<T, kVec> loaded[kFlight][Own::kLoads];
#pragma unroll
        for (int u = 0; u < kFlight; ++u) {
          const unsigned node =
              step + u < steps ? __shfl_sync(~0u, edge.node, lanes.score_lane(step + u)) : kNone;
          if (node != kNone)
            own.load(loaded[u], x + static_cast<int64_t>(node) * a.x_stride);
          else
#pragma unroll
            for (int i = 0; i < Own::kLoads; ++i) loaded[u][i] = Packed<T, kVec>{};
        }
        if (step == 0) factor = advance(there, edge, of_row, slope);
#pragma unroll
        for (int u = 0; u < kFlight; ++u) {
          if (step + u >= steps) continue;
          const Acc w = __shfl_sync(~0u, factor, lanes.score_lane(step + u));
#pragma unroll
          for (int k = 0; k < kOwned; ++k) sum[k] = fused(w, loaded[u][k / kVec][k % kVec], sum[k]);
        }
      }
    }
    weight = add_lanes(weight, lanes.head_bits);
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = add_lanes(sum[k], lanes.row_bits());
  }

  // Takes a batch into the running maximum; returns what this slot's row of features weighs.
  __device__ Acc advance(bool there, const EdgeScore<T>& edge, Acc of_row, Acc slope) {
    const Acc score = there ? leaky(edge.raw + of_row, slope) : Acc(-INFINITY);
    Acc most = score;
    for (int distance = 1 << lanes.head_bits; distance < 32; distance *= 2) {
      const Acc other = __shfl_xor_sync(~0u, most, distance);
      most = other > most ? other : most;  // a NaN is passed over here and stays in its factor
    }
    const Acc raised = most > best ? most : best;
    const Acc base = raised > -INFINITY ? raised : Acc(0);
    const Acc shrink = exponential(best - base);
    const Acc factor = there ? exponential(score - base) : Acc(0);
    best = raised;
    weight = fused(weight, shrink, factor);
    const Acc mine = __shfl_sync(~0u, shrink, lanes.own_head());  // slot 0 of this lane's own head
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] *= mine;
    return factor * dropout_factor<Acc>(a.scores, seed, edge.at);
  }

  __device__ void store_row(int64_t row, int length) {
    const Acc whole = __shfl_sync(~0u, weight, lanes.own_head());
    if (lanes.group() == 0) {
#pragma unroll
      for (int k = 0; k < kOwned; ++k) sum[k] = length > 0 ? sum[k] / whole : Acc(0);
      own.write(static_cast<T*>(a.out) + row * a.heads * a.channels, sum);
    }
    if (owns_scalars())
      static_cast<Acc*>(a.lse)[row * a.heads + lanes.head + lanes.lane()] =
          length > 0 ? best + logarithm(weight) : Acc(-INFINITY);
  }

  __device__ void store_partial(int64_t slot) {
    const int64_t width = a.heads * a.channels;
    Acc* const partial = static_cast<Acc*>(a.hubs.partial) + slot * (width + 2 * a.heads);
    if (lanes.group() == 0) own.write_partial(partial, sum);
    if (!owns_scalars()) return;
    partial[width + lanes.head + lanes.lane()] = best;
    partial[width + a.heads + lanes.head + lanes.lane()] = weight;
  }

  __device__ bool owns_scalars() const { return lanes.first && lanes.lane() < lanes.heads; }

  __device__ void fill_row(int64_t row) {  // bad offsets
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = not_a_number<Acc>();
    if (lanes.group() == 0) own.write(static_cast<T*>(a.out) + row * a.heads * a.channels, sum);
    if (owns_scalars())
      static_cast<Acc*>(a.lse)[row * a.heads + lanes.head + lanes.lane()] = not_a_number<Acc>();
  }
};

template <class T, int kVec>
__global__ void __launch_bounds__(32 * kWarps,
                                  blocks_held<T, kVec>(sizeof(T) == 4 && kVec > 1 ? 7 : 6))
    attend_rows(const __grid_constant__ ForwardArgs a, const int64_t tiles, const int hub_blocks) {
  using Warp = ForwardWarp<T, kVec>;
  const bool bad = a.hubs.flag && *a.hubs.flag;
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const Lanes lanes = Lanes::of<Warp::kOwned>(tile, a.heads, a.channels);
    const Columns<T, kVec> own(lanes, a.channels);
    Warp warp{a, lanes, own, seed_of(a.scores)};
    if (bad) {
      const int64_t row = static_cast<int64_t>(blockIdx.x - hub_blocks) * kWarps + threadIdx.x / 32;
      if (static_cast<int>(blockIdx.x) >= hub_blocks && row < a.csr.rows) warp.fill_row(row);
      continue;
    }
    Piece piece;
    for (int64_t round = 0; piece.take(a.csr, a.hubs, hub_blocks, round); ++round) {
      warp.walk(piece.row, piece.begin, piece.length);
      if (piece.hub)
        warp.store_partial(piece.slot);
      else
        warp.store_row(piece.row, piece.length);
    }
  }
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
    store_as(dtype, a.out, first.row * width + column, sum / weight);
    if (column % a.channels == 0)
      static_cast<Acc*>(a.lse)[first.row * a.heads + head] = best + logarithm(weight);
  }
}

template <class T, int kVec>
cudaError_t launch_rows(const Plan& plan, const ForwardArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.hub_blocks + plan.row_blocks),
                  static_cast<unsigned>(std::min(plan.tiles, kMostGridY)));
  return launch(attend_rows<T, kVec>, {grid, dim3(32 * kWarps)}, stream, args, plan.tiles,
                plan.hub_blocks);
}

template <class T>
cudaError_t launch_dtype(const Plan& plan, const ForwardArgs& args, cudaStream_t stream) {
  if constexpr (sizeof(T) < 8)  // float64 is not worth a second kernel
    if (plan.vector) return launch_rows<T, kLaneBytes / sizeof(T)>(plan, args, stream);
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
