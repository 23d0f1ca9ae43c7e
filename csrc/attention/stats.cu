// What a destination brings to the gradient of its edges, packed so that an edge needs one load of
// it.
#include "attention/score.cuh"
#include "common/launch.h"

namespace gpuprims::attention {
namespace {

// A group of lanes a destination and head; its lanes are those that walk its channels above.
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
  const T* grad = static_cast<const T*>(a.grad) + row * a.grad_stride + head * a.channels;
  const T* out = static_cast<const T*>(a.out) + (row * a.heads + head) * a.channels;
  Acc dot = 0;
  for (int64_t c = static_cast<int64_t>(part) * kVec; there && c < a.channels;
       c += static_cast<int64_t>(kVec) << part_bits) {
    if (a.vector) {
      const auto g = Packed<T, kVec>::load(grad + c), o = Packed<T, kVec>::load(out + c);
#pragma unroll
      for (int k = 0; k < kVec; ++k) dot = fused(g[k], o[k], dot);
    } else {
      for (int64_t k = c; k < c + kVec && k < a.channels; ++k)
        dot = fused(widen(grad[k]), widen(out[k]), dot);
    }
  }
  for (int distance = 1; distance < 1 << part_bits; distance *= 2)
    dot += __shfl_xor_sync(~0u, dot, distance);
  if (!there || part != 0) return;
  Stats<Acc> stats{0, static_cast<const Acc*>(a.lse)[item], dot, 0};
  if (a.a_dst) stats.a_dst = widen(static_cast<const T*>(a.a_dst)[row * a.a_dst_stride + head]);
  if (a.grad_lse) stats.delta -= static_cast<const Acc*>(a.grad_lse)[item];
  static_cast<Stats<Acc>*>(a.stats)[item] = stats;
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
