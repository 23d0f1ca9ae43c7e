// The gradient of attention, once by destination and once by source: scores are made again from
// a_src and the destinations' stats, and nothing an edge is kept but where a_edge has a gradient.
//
//   ds = alpha * (factor * <grad, x> - delta), delta = <grad, out> - grad_lse
// is the gradient in the score (Dao and others, 2022, for the dense case), factor dropout's.
#include "attention/score.cuh"
#include "common/launch.h"

namespace gpuprims::attention {
namespace {

// The direction, where it is known at compile time: it saves the registers of the other one.
enum class Pass { by_destination, by_source, either };

template <class T, int kVec, Pass kPass>
struct BackwardWarp {
  using Acc = typename Math<T>::Acc;
  using Own = Columns<T, kVec>;
  using Row = Packed<T, kVec>[Own::kLoads];
  static constexpr int kOwned = Own::kOwned;
  static constexpr int kFlight = kVec == 1 ? 2 : attention::kFlight;

  const BackwardArgs& a;
  const Lanes& lanes;
  const Own& own;
  uint64_t seed;
  Acc sum[kOwned];  // by source: the gradient in x
  Acc scalar;       // the gradient in a_src or a_dst: this lane's part for its score head

  // What the gathered node brings: its a_src by destination, its stats by source.
  struct Other {
    Acc a_src;
    Stats<Acc> stats;
  };

  __device__ bool by_source() const {
    return kPass == Pass::by_source || (kPass == Pass::either && a.by_source);
  }
  __device__ const Stats<Acc>* stats_of(int64_t row, int64_t head) const {
    return static_cast<const Stats<Acc>*>(a.stats) + row * a.heads + head;
  }
  __device__ Acc a_src_of(int64_t row, int64_t head) const {
    if (!a.a_src) return 0;
    return widen(__ldg(static_cast<const T*>(a.a_src) + row * a.a_src_stride + head));
  }

  __device__ void walk(int64_t row, int64_t begin, int length) {
    const int64_t head = lanes.head + lanes.score_head();
    const bool has_head = lanes.score_head() < lanes.heads;
    Other of_row{};
    if (has_head && by_source()) of_row.a_src = a_src_of(row, head);
    if (has_head && !by_source()) of_row.stats = *stats_of(row, head);
    Row mine;
    own.load(mine, static_cast<const T*>(a.own) + row * a.own_stride);
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = 0;
    scalar = 0;
    const int batch = lanes.batch(), steps = 1 << lanes.part_bits;
    const int slot = lanes.slot();
    unsigned next = node_of(a.csr, has_head && slot < length, begin + slot);
    for (int base = 0; base < length; base += batch) {
      const int number = base + slot;
      const bool there = has_head && number < length;
      const EdgeScore<T> edge(a.csr, a.scores, a.heads, head, there, begin + number, next);
      Other other = of_row;
      if (edge.node != kNone && by_source()) other.stats = *stats_of(edge.node, head);
      if (edge.node != kNone && !by_source()) other.a_src = a_src_of(edge.node, head);
      next = node_of(a.csr, has_head && number + batch < length, begin + number + batch);
      Acc alpha = 0, factor = 0, slope = 0, dot = 0;
      for (int step = 0; step < steps; step += kFlight) {
        Row loaded[kFlight];
#pragma unroll
        for (int u = 0; u < kFlight; ++u) {
          const unsigned node =
              step + u < steps ? __shfl_sync(~0u, edge.node, lanes.score_lane(step + u)) : kNone;
          if (node != kNone)
            own.load(loaded[u],
                     static_cast<const T*>(a.other) + static_cast<int64_t>(node) * a.other_stride);
          else
#pragma unroll
            for (int i = 0; i < Own::kLoads; ++i) loaded[u][i] = Packed<T, kVec>{};
        }
        if (step == 0 && there) {
          const Acc raw = edge.raw + other.a_src + other.stats.a_dst;
          slope = raw > 0 ? Acc(1) : static_cast<Acc>(a.scores.slope);
          alpha = exponential(raw * slope - other.stats.lse);
          factor = dropout_factor<Acc>(a.scores, seed, edge.at);
        }
#pragma unroll
        for (int u = 0; u < kFlight; ++u) {
          if (step + u >= steps) continue;
          const Acc w = __shfl_sync(~0u, alpha * factor, lanes.score_lane(step + u));
          Acc product = 0;
#pragma unroll
          for (int k = 0; k < kOwned; ++k) {
            const Acc value = loaded[u][k / kVec][k % kVec];
            product = fused(mine[k / kVec][k % kVec], value, product);
            if constexpr (kPass != Pass::by_destination) sum[k] = fused(w, value, sum[k]);
          }
          if (lanes.first) {
            if (a.channels > 32 * kOwned)
              product = rest_of_dot(row, __shfl_sync(~0u, edge.node, lanes.score_lane(step + u)),
                                    product);
            for (int distance = 1; distance < 1 << lanes.part_bits; distance *= 2)
              product += __shfl_xor_sync(~0u, product, distance);
            const Acc whole = __shfl_sync(~0u, product, lanes.feature_lane());
            if (lanes.slot_step() == step + u) dot = whole;
          }
        }
      }
      if (there && lanes.first) {
        const Acc raw_grad = alpha * (factor * dot - other.stats.delta) * slope;
        scalar += raw_grad;
        if (kPass != Pass::by_source && a.grad_edge && edge.at >= 0)
          static_cast<T*>(a.grad_edge)[edge.at] = narrow<T>(raw_grad);
      }
    }
    scalar = add_lanes(scalar, lanes.head_bits);
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = add_lanes(sum[k], lanes.row_bits());
  }

  // A head of several tiles: the channels behind the first tile.
  __device__ Acc rest_of_dot(int64_t row, unsigned node, Acc product) const {
    const T* const left = static_cast<const T*>(a.own) + row * a.own_stride;
    const T* const right =
        static_cast<const T*>(a.other) + static_cast<int64_t>(node) * a.other_stride;
#pragma unroll 1
    for (int c = own.tile; node != kNone && c < own.left; c += own.tile) {
#pragma unroll 1
      for (int k = c; k < c + kOwned && k < own.left; ++k)
        product = fused(widen(__ldg(left + own.offset + k)), widen(__ldg(right + own.offset + k)),
                        product);
    }
    return product;
  }

  __device__ bool owns_scalars() const { return lanes.first && lanes.lane() < lanes.heads; }

  __device__ void store_row(int64_t row) {
    if (kPass != Pass::by_destination && a.grad_other_sum && lanes.group() == 0)
      own.write(static_cast<T*>(a.grad_other_sum) + row * a.heads * a.channels, sum);
    if (a.grad_row && owns_scalars())
      static_cast<T*>(a.grad_row)[row * a.heads + lanes.head + lanes.lane()] = narrow<T>(scalar);
  }

  __device__ void store_partial(int64_t slot) {
    const int64_t width = a.heads * a.channels;
    Acc* const partial = static_cast<Acc*>(a.hubs.partial) + slot * (width + a.heads);
    if (kPass != Pass::by_destination && lanes.group() == 0) own.write_partial(partial, sum);
    if (owns_scalars()) partial[width + lanes.head + lanes.lane()] = scalar;
  }

  __device__ void fill_row(int64_t row) {  // bad offsets
#pragma unroll
    for (int k = 0; k < kOwned; ++k) sum[k] = not_a_number<Acc>();
    scalar = not_a_number<Acc>();
    store_row(row);
  }
};

template <class T, int kVec, Pass kPass>
__global__ void __launch_bounds__(32 * kWarps, blocks_held<T, kVec>(sizeof(T) == 2 ? 4 : 5))
    attend_grad_rows(const __grid_constant__ BackwardArgs a, const int64_t tiles,
                     const int hub_blocks) {
  using Warp = BackwardWarp<T, kVec, kPass>;
  const bool bad = a.hubs.flag && *a.hubs.flag;
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const Lanes lanes = Lanes::of<Warp::kOwned>(tile, a.heads, a.channels);
    if (!lanes.first && !a.grad_other_sum) continue;
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
        warp.store_row(piece.row);
    }
  }
}

// Adds the chunks of a hub in order: a warp a hub and 32 columns, of features and then of heads.
template <class Acc>
__global__ void __launch_bounds__(32 * kWarps)
    combine_grads(const __grid_constant__ BackwardArgs a, const Dtype dtype) {
  if (*a.hubs.flag) return;
  const int64_t width = a.heads * a.channels, stride = width + a.heads;
  const int64_t stripes = (stride + 31) / 32;
  const int64_t items = static_cast<int64_t>(*a.hubs.count) * stripes;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; item < items;
       item += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t slot = item / stripes;
    const int64_t column = item % stripes * 32 + threadIdx.x % 32;
    const Chunk first = a.hubs.chunks[slot];
    void* const out = column < width ? a.grad_other_sum : a.grad_row;
    if (first.number != 0 || column >= stride || !out) continue;
    const int64_t degree = load_int(a.csr.indptr, a.csr.wide_offsets, first.row + 1) -
                           load_int(a.csr.indptr, a.csr.wide_offsets, first.row);
    const int64_t chunks = degree / kChunk;
    const Acc* const partial = static_cast<const Acc*>(a.hubs.partial) + slot * stride + column;
    Acc sum = partial[0];
#pragma unroll 8
    for (int64_t c = 1; c < chunks; ++c) sum += partial[c * stride];
    const int64_t to =
        column < width ? first.row * width + column : first.row * a.heads + column - width;
    store_as(dtype, out, to, sum);
  }
}

template <class T, int kVec, Pass kPass>
cudaError_t launch_rows(const Plan& plan, const BackwardArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.hub_blocks + plan.row_blocks),
                  static_cast<unsigned>(std::min(plan.tiles, kMostGridY)));
  return launch(attend_grad_rows<T, kVec, kPass>, {grid, dim3(32 * kWarps)}, stream, args,
                plan.tiles, plan.hub_blocks);
}

template <class T>
cudaError_t launch_dtype(const Plan& plan, const BackwardArgs& args, cudaStream_t stream) {
  constexpr int kVec = kLaneBytes / sizeof(T);
  if constexpr (sizeof(T) < 8)
    if (plan.vector)
      return args.by_source ? launch_rows<T, kVec, Pass::by_source>(plan, args, stream)
                            : launch_rows<T, kVec, Pass::by_destination>(plan, args, stream);
  return launch_rows<T, 1, Pass::either>(plan, args, stream);
}

cudaError_t launch_all_rows(Dtype dtype, const Plan& plan, const BackwardArgs& args,
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

cudaError_t launch_backward(Dtype dtype, const Plan& plan, const BackwardArgs& args,
                            cudaStream_t stream) {
  const auto code = launch_all_rows(dtype, plan, args, stream);
  if (code != cudaSuccess || plan.hub_blocks == 0) return code;
  const auto kernel = dtype == Dtype::f64 ? combine_grads<double> : combine_grads<float>;
  return launch(kernel, {dim3(plan.hub_blocks), dim3(32 * kWarps)}, stream, args, dtype);
}

}  // namespace gpuprims::attention
