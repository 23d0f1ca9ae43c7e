// The forward pass: rows and chunks of hubs (forward_body.cuh), then the hubs.
#include "attention/forward_body.cuh"
#include "common/launch.h"

namespace gpuprims::attention {
namespace {

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
    // In batches whose loads are in flight together: most hubs have less than a dozen chunks, which
    // one by one are a latency each. Beyond the last chunk it is read again, and not added.
    const auto chunk = [&](int64_t c) {
      return partial + (slot + (c < chunks ? c : chunks - 1)) * stride;
    };
    Acc best = -INFINITY;
#pragma unroll 1
    for (int64_t c = 0; c < chunks; c += 16) {
      Acc other[16];
#pragma unroll
      for (int u = 0; u < 16; ++u) other[u] = chunk(c + u)[width + head];
#pragma unroll
      for (int u = 0; u < 16; ++u) best = other[u] > best ? other[u] : best;
    }
    const Acc base = best > -INFINITY ? best : Acc(0);
    Acc sum = 0, weight = 0, kept_sum = 0, kept_weight = 0;
    constexpr int kAtOnce = sizeof(Acc) == 8 ? 4 : 8;
#pragma unroll 1
    for (int64_t c = 0; c < chunks; c += kAtOnce) {
      Acc top[kAtOnce], value[kAtOnce], below[kAtOnce], kept[kAtOnce], kept_below[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const Acc* const from = chunk(c + u);
        top[u] = from[width + head];
        value[u] = from[column];
        below[u] = from[width + a.heads + head];
        kept[u] = a.positive ? from[width + 2 * a.heads + column] : Acc(0);
        kept_below[u] = a.positive ? from[2 * width + 2 * a.heads + head] : Acc(0);
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (c + u >= chunks) break;
        const Acc scale = power2(top[u] - base);
        sum = fused(scale, value[u], sum);
        weight = fused(scale, below[u], weight);
        kept_sum = fused(scale, kept[u], kept_sum);
        kept_weight = fused(scale, kept_below[u], kept_weight);
      }
    }
    const Acc inverse = dropout_scale(a.scores, Acc(1)) / weight;
    const Acc bias = a.bias ? static_cast<const Acc*>(a.bias)[column] : Acc(0);
    store_as(dtype, a.out, first.row * width + column, sum * inverse + bias);
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
