// The gradient's pass: rows and chunks of hubs (backward_body.cuh), then the hubs.
#include "attention/backward_body.cuh"
#include "common/launch.h"

namespace gpuprims::attention {
namespace {

template <class T, int kVec, bool kLean>
__global__ void __launch_bounds__(32 * kWarps, 4)
    attend_grad_rows(const __grid_constant__ BackwardArgs a, const int64_t first_tile,
                     const int hub_blocks) {
  using Body = BackwardBody<T, kVec, kLean>;
  const bool bad = a.hubs.flag && *a.hubs.flag;
  const Lanes lanes = Lanes::of<Body::kOwned>(first_tile + blockIdx.y, a.heads, a.channels);
  if (!lanes.first && !a.grad_other_sum) return;
  const Columns<T, kVec, kStreamBytes> own(lanes, a.channels);
  Body body(a, lanes, own);
  if (bad)
    fill_all(body, a.csr, lanes);
  else
    walk_all(body, a.csr, a.hubs, lanes, hub_blocks);
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
#pragma unroll 16
    for (int64_t c = 1; c < chunks; ++c) sum += partial[c * stride];
    const int64_t to =
        column < width ? first.row * width + column : first.row * a.heads + column - width;
    store_as(dtype, out, to, sum);
  }
}

template <class T, int kVec, bool kLean = false>
cudaError_t launch_rows(const Plan& plan, const BackwardArgs& args, cudaStream_t stream) {
  for (int64_t tile = 0; tile < plan.tiles; tile += kMostGridY) {
    const dim3 grid(static_cast<unsigned>(plan.chunk_blocks + plan.run_blocks),
                    static_cast<unsigned>(std::min(plan.tiles - tile, kMostGridY)));
    const auto code = launch(attend_grad_rows<T, kVec, kLean>, {grid, dim3(32 * kWarps)}, stream,
                             args, tile, static_cast<int>(plan.chunk_blocks));
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

template <class T>
cudaError_t launch_dtype(const Plan& plan, const BackwardArgs& args, cudaStream_t stream) {
  constexpr int kVec = 16 / sizeof(T);
  if constexpr (sizeof(T) < 8)
    if (plan.vector) {
      if constexpr (sizeof(T) == 4)
        if (args.by_source && !args.scores.by_id && args.channels * sizeof(T) <= 32 * kStreamBytes)
          return launch_rows<T, kVec, true>(plan, args, stream);
      return launch_rows<T, kVec>(plan, args, stream);
    }
  return launch_rows<T, 1>(plan, args, stream);
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

cudaError_t launch_backward(Dtype dtype, const Plan& plan, const BackwardArgs& given,
                            cudaStream_t stream) {
  BackwardArgs args = given;
  args.ids_alone = !args.csr.wide_offsets && !args.scores.a_edge && !args.scores.seed &&
                   reinterpret_cast<uint64_t>(args.csr.edge_ids) % 16 == 0;
  const auto code = launch_all_rows(dtype, plan, args, stream);
  if (code != cudaSuccess || plan.hub_blocks == 0) return code;
  const auto kernel = dtype == Dtype::f64 ? combine_grads<double> : combine_grads<float>;
  return launch(kernel, {dim3(plan.hub_blocks), dim3(32 * kWarps)}, stream, args, dtype);
}

}  // namespace gpuprims::attention
