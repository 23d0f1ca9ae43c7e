// What a destination brings to the gradient of its edges, packed so that an edge needs one load of
// it.
#include "attention/score.cuh"
#include "common/launch.h"

namespace gpuprims::attention {
namespace {

// A lane's part of <grad, other>, other being of the type of grad or of the accumulator.
template <class T, class Other>
__device__ __forceinline__ typename Math<T>::Acc part_of_dot(const T* grad, const Other* other,
                                                             int64_t left, bool vector) {
  using Acc = typename Math<T>::Acc;
  constexpr int kVec = kLaneBytes / sizeof(T), kStep = kLaneBytes / sizeof(Other);
  Acc dot = 0;
  if (vector) {
    const auto g = Packed<T, kVec>::load(grad);
#pragma unroll
    for (int i = 0; i < kVec; i += kStep) {
      const auto o = Packed<Other, kStep>::load(other + i);
#pragma unroll
      for (int k = 0; k < kStep; ++k) dot = fused(g[i + k], o[k], dot);
    }
  } else {
    for (int k = 0; k < kVec && k < left; ++k) dot = fused(widen(grad[k]), widen(other[k]), dot);
  }
  return dot;
}

// A group of lanes a destination and head; its lanes are those that walk its channels above.
//
// The gradient in a_dst: over a row, those of the scores add up to grad_lse; a score's is that of
// its terms times the slope where those are not positive. So it is slope * grad_lse
// + (1 - slope) * the sum over edges with positive scores, <grad, positive> - delta * its share.
template <class T>
__global__ void __launch_bounds__(32 * kWarps) attend_stats(const __grid_constant__ StatsArgs a) {
  using Acc = typename Math<T>::Acc;
  constexpr int kVec = kLaneBytes / sizeof(T);
  const int64_t width = lanes_per_head(a.channels, kVec);
  const int part_bits = width > 32 ? 5 : log2_up(static_cast<int>(width));
  const int lane = threadIdx.x % 32, part = lane & ((1 << part_bits) - 1);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t item = (warp << (5 - part_bits)) + (lane >> part_bits);
  const bool there = item < a.rows * a.heads;
  const int64_t row = there ? item / a.heads : 0, head = there ? item - row * a.heads : 0;
  const T* const grad = static_cast<const T*>(a.grad) + row * a.grad_stride + head * a.channels;
  const int64_t at = (row * a.heads + head) * a.channels;
  const T* const out = static_cast<const T*>(a.out) + at;
  const T* const bias = a.bias ? static_cast<const T*>(a.bias) + head * a.channels : nullptr;
  const Acc* const positive = a.grad_dst ? static_cast<const Acc*>(a.positive) + at : nullptr;
  Acc dot = 0, positive_dot = 0;
  for (int64_t c = static_cast<int64_t>(part) * kVec; there && c < a.channels;
       c += static_cast<int64_t>(kVec) << part_bits) {
    dot += part_of_dot<T>(grad + c, out + c, a.channels - c, a.vector);
    if (bias) dot -= part_of_dot<T>(grad + c, bias + c, a.channels - c, a.vector);
    if (positive) positive_dot += part_of_dot<T>(grad + c, positive + c, a.channels - c, a.vector);
  }
  for (int distance = 1; distance < 1 << part_bits; distance *= 2) {
    dot += __shfl_xor_sync(~0u, dot, distance);
    positive_dot += __shfl_xor_sync(~0u, positive_dot, distance);
  }
  if (!there || part != 0) return;
  Stats<Acc> stats{0, static_cast<const Acc*>(a.lse)[item] * log2_of_e<Acc>(), dot, 0};
  if (a.a_dst) stats.a_dst = widen(static_cast<const T*>(a.a_dst)[row * a.a_dst_stride + head]);
  const Acc grad_lse = a.grad_lse ? static_cast<const Acc*>(a.grad_lse)[item] : Acc(0);
  stats.delta -= grad_lse;
  static_cast<Stats<Acc>*>(a.stats)[item] = stats;
  if (!positive) return;
  const Acc share = static_cast<const Acc*>(a.positive)[a.rows * a.heads * a.channels + item];
  const Acc slope = static_cast<Acc>(a.slope);
  const Acc above = fused(-stats.delta, share, positive_dot);
  const Acc all = static_cast<const Acc*>(a.lse)[item] > -INFINITY ? grad_lse : Acc(0);  // no edges
  static_cast<T*>(a.grad_dst)[item] = narrow<T>(fused(slope, all, (Acc(1) - slope) * above));
}

template <class T>
cudaError_t launch_stats_of(const StatsArgs& args, cudaStream_t stream) {
  const int64_t lanes =
      std::min<int64_t>(lanes_per_head(args.channels, kLaneBytes / sizeof(T)), 32);
  const int64_t blocks = ceil_div(args.rows * args.heads * lanes, 32 * kWarps);
  return launch(attend_stats<T>, {dim3(static_cast<unsigned>(blocks)), dim3(32 * kWarps)}, stream,
                args);
}

}  // namespace

cudaError_t launch_stats(Dtype dtype, const StatsArgs& args, cudaStream_t stream) {
  switch (dtype) {
    case Dtype::f32:
      return launch_stats_of<float>(args, stream);
    case Dtype::f64:
      return launch_stats_of<double>(args, stream);
    case Dtype::f16:
      return launch_stats_of<__half>(args, stream);
    case Dtype::bf16:
      return launch_stats_of<__nv_bfloat16>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace gpuprims::attention
