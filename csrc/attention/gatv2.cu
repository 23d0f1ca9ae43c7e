// The scores of GATv2 (Brody, Alon and Yahav, 2022) and their gradients: the rows of both ends are
// added in registers, so no message an edge is stored. The walk is that of forward.cu.
#include "attention/lanes.cuh"
#include "common/launch.h"

namespace gpuprims::attention {
namespace {

// What a kernel makes, where it is known at compile time: it saves registers.
enum class Make { scores, grads, either };

template <class T, int kVec, Make kMake>
struct ScoreWarp {
  using Acc = typename Math<T>::Acc;
  using Own = Columns<T, kVec>;
  using Row = Packed<T, kVec>[Own::kLoads];
  static constexpr int kOwned = Own::kOwned;
  static constexpr bool kSums = kMake != Make::scores;
  static constexpr int kFlight = kVec == 1 || kMake == Make::grads ? 2 : attention::kFlight;

  const Gatv2Args& a;
  const Lanes& lanes;
  const Own& own;
  Acc own_sum[kSums ? kOwned : 1], att_sum[kSums ? kOwned : 1];

  __device__ bool grads() const {
    return kMake == Make::grads || (kMake == Make::either && a.grad);
  }

  __device__ static Acc at(const Row& row, int k) { return row[k / kVec][k % kVec]; }

  __device__ void walk(int64_t row, int64_t begin, int length) {
    const int64_t head = lanes.head + lanes.score_head();
    const bool has_head = lanes.score_head() < lanes.heads;
    const Acc slope = static_cast<Acc>(a.slope);
    Row mine, att;
    own.load(mine, static_cast<const T*>(a.own) + row * a.own_stride);
    own.load(att, static_cast<const T*>(a.att));
    if constexpr (kSums) {
#pragma unroll
      for (int k = 0; k < kOwned; ++k) own_sum[k] = att_sum[k] = 0;
    }
    const int batch = lanes.batch(), steps = 1 << lanes.part_bits;
    unsigned next = node_of(a.csr, has_head && lanes.slot() < length, begin + lanes.slot());
    for (int base = 0; base < length; base += batch) {
      const int number = base + lanes.slot();
      const bool there = has_head && number < length;
      unsigned node = next;
      next = node_of(a.csr, has_head && number + batch < length, begin + number + batch);
      int64_t id = there ? edge_id(a.csr, begin + number) : -1;
      if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(a.csr.edges)) id = -1, node = kNone;
      Acc dot = 0;
      if (grads() && there)
        dot = id < 0 ? not_a_number<Acc>()
                     : widen(__ldg(static_cast<const T*>(a.grad) + id * a.heads + head));
      for (int step = 0; step < steps; step += kFlight) {
        Row other[kFlight], extra[kFlight];
        unsigned nodes[kFlight];
        int64_t ids[kFlight];
#pragma unroll
        for (int u = 0; u < kFlight; ++u) {
          const int from = lanes.score_lane(step + u < steps ? step + u : 0);
          nodes[u] = __shfl_sync(~0u, node, from);
          ids[u] = a.edge || a.grad_edge ? __shfl_sync(~0u, id, from) : 0;
          if (step + u >= steps) nodes[u] = kNone;
          load_row(other[u], a.other, nodes[u] != kNone, nodes[u], a.other_stride);
          load_row(extra[u], a.edge, a.edge && nodes[u] != kNone, ids[u], a.heads * a.channels);
        }
#pragma unroll
        for (int u = 0; u < kFlight; ++u) {
          if (step + u >= steps) continue;
          if (grads()) {
            const Acc g = __shfl_sync(~0u, dot, lanes.score_lane(step + u));
            if constexpr (kSums)
              if (nodes[u] != kNone) take_grad(mine, att, other[u], extra[u], ids[u], g, slope);
          } else {
            Acc product = 0;
#pragma unroll
            for (int k = 0; k < kOwned; ++k)
              product =
                  fused(at(att, k), leaky(at(mine, k) + at(other[u], k) + at(extra[u], k), slope),
                        product);
            if (a.channels > 32 * kOwned) product = rest_of_score(row, nodes[u], ids[u], product);
            for (int distance = 1; distance < 1 << lanes.part_bits; distance *= 2)
              product += __shfl_xor_sync(~0u, product, distance);
            const Acc whole = __shfl_sync(~0u, product, lanes.feature_lane());
            if (lanes.slot_step() == step + u) dot = whole;
          }
        }
      }
      if (!grads() && there && id >= 0)
        static_cast<T*>(a.scores)[id * a.heads + head] =
            node == kNone ? not_a_number<T>() : narrow<T>(dot);
    }
    if constexpr (kSums) {
      if (!grads()) return;
#pragma unroll
      for (int k = 0; k < kOwned; ++k) {
        own_sum[k] = add_lanes(own_sum[k], lanes.row_bits());
        att_sum[k] = add_lanes(att_sum[k], lanes.row_bits());
      }
    }
  }

  __device__ void load_row(Row& into, const void* from, bool there, int64_t row,
                           int64_t stride) const {
    if (there) {
      own.load(into, static_cast<const T*>(from) + row * stride);
    } else {
#pragma unroll
      for (int i = 0; i < Own::kLoads; ++i) into[i] = Packed<T, kVec>{};
    }
  }

  __device__ void take_grad(const Row& mine, const Row& att, const Row& other, const Row& extra,
                            int64_t id, Acc g, Acc slope) {
    Acc through[kOwned];
#pragma unroll
    for (int k = 0; k < kOwned; ++k) {
      const Acc z = at(mine, k) + at(other, k) + at(extra, k);
      through[k] = g * at(att, k) * (z > 0 ? Acc(1) : slope);
      own_sum[k] += through[k];
      att_sum[k] = fused(g, leaky(z, slope), att_sum[k]);
    }
    if (a.grad_edge) own.write(static_cast<T*>(a.grad_edge) + id * a.heads * a.channels, through);
  }

  // A head of several tiles: the channels behind the first tile.
  __device__ Acc rest_of_score(int64_t row, unsigned node, int64_t id, Acc product) const {
    const T* const mine = static_cast<const T*>(a.own) + row * a.own_stride;
    const T* const other =
        static_cast<const T*>(a.other) + static_cast<int64_t>(node) * a.other_stride;
    const T* const extra = static_cast<const T*>(a.edge) + id * a.heads * a.channels;
#pragma unroll 1
    for (int first = own.tile; node != kNone && first < own.left; first += own.tile) {
#pragma unroll 1
      for (int k = first; k < first + kOwned && k < own.left; ++k) {
        const int64_t c = own.offset + k;
        Acc z = widen(__ldg(mine + c)) + widen(__ldg(other + c));
        if (a.edge) z += widen(__ldg(extra + c));
        product = fused(widen(__ldg(static_cast<const T*>(a.att) + c)),
                        leaky(z, static_cast<Acc>(a.slope)), product);
      }
    }
    return product;
  }

  __device__ void store_row(int64_t row) const {
    if constexpr (kSums) {
      if (!grads() || lanes.group() != 0) return;
      const int64_t at = row * a.heads * a.channels;
      if (a.grad_own) own.write(static_cast<T*>(a.grad_own) + at, own_sum);
      if (a.grad_att) own.write(static_cast<T*>(a.grad_att) + at, att_sum);
    }
  }

  __device__ void store_partial(int64_t slot) const {
    if constexpr (kSums) {
      const int64_t width = a.heads * a.channels;
      Acc* const partial = static_cast<Acc*>(a.hubs.partial) + slot * 2 * width;
      if (!grads() || lanes.group() != 0) return;
      own.write_partial(partial, own_sum);
      own.write_partial(partial + width, att_sum);
    }
  }
};

template <class T, int kVec, Make kMake>
__global__ void __launch_bounds__(32 * kWarps, sizeof(T) == 2 && kVec == 1 ? 3 : 4)
    gatv2_rows(const __grid_constant__ Gatv2Args a, const int64_t tiles, const int hub_blocks) {
  using Warp = ScoreWarp<T, kVec, kMake>;
  if (a.hubs.flag && *a.hubs.flag) return;  // the host has filled the results
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const Lanes lanes = Lanes::of<Warp::kOwned>(tile, a.heads, a.channels);
    const Columns<T, kVec> own(lanes, a.channels);
    Warp warp{a, lanes, own};
    if (!warp.grads() && !lanes.first) continue;
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

// Adds the chunks of a hub in order: a warp a hub and 32 columns.
template <class Acc>
__global__ void __launch_bounds__(32 * kWarps)
    combine_gatv2(const __grid_constant__ Gatv2Args a, const Dtype dtype) {
  if (*a.hubs.flag) return;
  const int64_t width = a.heads * a.channels;
  const int64_t stripes = (2 * width + 31) / 32;
  const int64_t items = static_cast<int64_t>(*a.hubs.count) * stripes;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; item < items;
       item += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t slot = item / stripes;
    const int64_t column = item % stripes * 32 + threadIdx.x % 32;
    const Chunk first = a.hubs.chunks[slot];
    void* const out = column < width ? a.grad_own : a.grad_att;
    if (first.number != 0 || column >= 2 * width || !out) continue;
    const int64_t degree = load_int(a.csr.indptr, a.csr.wide_offsets, first.row + 1) -
                           load_int(a.csr.indptr, a.csr.wide_offsets, first.row);
    const Acc* const partial = static_cast<const Acc*>(a.hubs.partial) + slot * 2 * width + column;
    Acc sum = partial[0];
#pragma unroll 8
    for (int64_t c = 1; c < degree / kChunk; ++c) sum += partial[c * 2 * width];
    store_as(dtype, out, first.row * width + column % width, sum);
  }
}

template <class T, int kVec, Make kMake>
cudaError_t launch_rows(const Plan& plan, const Gatv2Args& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.hub_blocks + plan.row_blocks),
                  static_cast<unsigned>(std::min(plan.tiles, kMostGridY)));
  return launch(gatv2_rows<T, kVec, kMake>, {grid, dim3(32 * kWarps)}, stream, args, plan.tiles,
                plan.hub_blocks);
}

template <class T>
cudaError_t launch_dtype(const Plan& plan, const Gatv2Args& args, cudaStream_t stream) {
  constexpr int kVec = kLaneBytes / sizeof(T);
  if constexpr (sizeof(T) < 8)
    if (plan.vector)
      return args.grad ? launch_rows<T, kVec, Make::grads>(plan, args, stream)
                       : launch_rows<T, kVec, Make::scores>(plan, args, stream);
  return launch_rows<T, 1, Make::either>(plan, args, stream);
}

cudaError_t launch_all_rows(Dtype dtype, const Plan& plan, const Gatv2Args& args,
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

cudaError_t launch_gatv2(Dtype dtype, const Plan& plan, const Gatv2Args& args,
                         cudaStream_t stream) {
  const auto code = launch_all_rows(dtype, plan, args, stream);
  if (code != cudaSuccess || plan.hub_blocks == 0 || !args.grad) return code;
  const auto kernel = dtype == Dtype::f64 ? combine_gatv2<double> : combine_gatv2<float>;
  return launch(kernel, {dim3(plan.hub_blocks), dim3(32 * kWarps)}, stream, args, dtype);
}

}  // namespace gpuprims::attention
