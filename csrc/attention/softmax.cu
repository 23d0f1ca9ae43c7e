// Softmax of edges over rows, and its gradient. A warp takes a row, a block a hub; lane s * Hp + h
// (Hp heads, a power of two up to 32) walks the edges s, s + S, .. of head h.
//
// The tree of a sum: a lane adds its edges in order, a butterfly adds lanes (distances Hp .. 16),
// warps of a block are added in order; a hub has kHubDegree edges or more.
#include "attention/lanes.cuh"
#include "common/launch.h"

namespace gpuprims::attention {
namespace {

template <class T>
struct SoftmaxTeam {
  using Acc = typename Math<T>::Acc;
  const SoftmaxArgs& a;
  Acc* shared;  // [32 * kWarps]
  int head_bits;
  int64_t head;
  bool there;  // a lane of a head
  bool block;  // the whole block; a warp otherwise
  int64_t begin, end;

  __device__ int64_t first() const {
    return begin + ((block ? threadIdx.x : threadIdx.x % 32) >> head_bits);
  }
  __device__ int64_t step() const { return (block ? 32 * kWarps : 32) >> head_bits; }

  // Where an edge's element lies, or -1.
  __device__ int64_t place(int64_t edge) const {
    const int64_t id = edge_id(a.csr, edge);
    return static_cast<uint64_t>(id) < static_cast<uint64_t>(a.csr.edges) ? id * a.heads + head
                                                                          : -1;
  }
  __device__ Acc score(int64_t at) const {
    return at < 0 ? not_a_number<Acc>() : widen(__ldg(static_cast<const T*>(a.scores) + at));
  }
  __device__ Acc alpha(int64_t at) const {
    return at < 0 ? not_a_number<Acc>() : widen(__ldg(static_cast<const T*>(a.alpha) + at));
  }

  template <class Combine>
  __device__ Acc over_lanes(Acc value, Combine combine) {
    for (int distance = 1 << head_bits; distance < 32; distance *= 2)
      value = combine(value, __shfl_xor_sync(~0u, value, distance));
    if (!block) return value;
    __syncthreads();
    shared[threadIdx.x] = value;
    __syncthreads();
    const int lane = threadIdx.x & ((1 << head_bits) - 1);
    value = shared[lane];
    for (int warp = 1; warp < kWarps; ++warp) value = combine(value, shared[warp * 32 + lane]);
    return value;
  }

  __device__ void forward() {
    Acc best = -INFINITY;
    for (int64_t e = first(); there && e < end; e += step()) {
      const Acc value = score(place(e));
      best = value > best ? value : best;
    }
    best = over_lanes(best, [](Acc x, Acc y) { return y > x ? y : x; });
    const Acc base = best > -INFINITY ? best : Acc(0);
    Acc sum = 0;
    for (int64_t e = first(); there && e < end; e += step())
      sum += exponential(score(place(e)) - base);
    sum = over_lanes(sum, [](Acc x, Acc y) { return x + y; });
    for (int64_t e = first(); there && e < end; e += step()) {
      const int64_t at = place(e);
      if (at >= 0) static_cast<T*>(a.out)[at] = narrow<T>(exponential(score(at) - base) / sum);
    }
  }

  __device__ void backward() {
    Acc sum = 0;
    for (int64_t e = first(); there && e < end; e += step()) {
      const int64_t at = place(e);
      sum = fused(alpha(at), score(at), sum);
    }
    sum = over_lanes(sum, [](Acc x, Acc y) { return x + y; });
    for (int64_t e = first(); there && e < end; e += step()) {
      const int64_t at = place(e);
      if (at >= 0) static_cast<T*>(a.out)[at] = narrow<T>(alpha(at) * (score(at) - sum));
    }
  }
};

template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    softmax_rows(const __grid_constant__ SoftmaxArgs a, const int hub_blocks) {
  __shared__ typename Math<T>::Acc shared[32 * kWarps];
  if (a.hubs.flag && *a.hubs.flag) return;  // the host has filled the result
  const bool hub = static_cast<int>(blockIdx.x) < hub_blocks;
  for (int64_t tile = static_cast<int64_t>(blockIdx.y) * 32; tile < a.heads;
       tile += gridDim.y * 32) {
    const int held = static_cast<int>(a.heads - tile < 32 ? a.heads - tile : 32);
    const int head_bits = log2_up(held);
    const int lane_head = threadIdx.x & ((1 << head_bits) - 1);
    SoftmaxTeam<T> team{a, shared, head_bits, tile + lane_head, lane_head < held, hub, 0, 0};
    const int64_t items = hub ? static_cast<int64_t>(*a.hubs.count) : a.csr.rows;
    int64_t item = hub ? blockIdx.x
                       : static_cast<int64_t>(blockIdx.x - hub_blocks) * kWarps + threadIdx.x / 32;
    for (; item < items; item += hub_blocks) {
      const int64_t row = hub ? a.hubs.chunks[item].row : item;
      team.begin = load_int(a.csr.indptr, a.csr.wide_offsets, row);
      team.end = load_int(a.csr.indptr, a.csr.wide_offsets, row + 1);
      const bool skip = hub ? a.hubs.chunks[item].number != 0
                            : hub_blocks > 0 && team.end - team.begin >= kHubDegree;
      if (!skip) {
        if (a.alpha)
          team.backward();
        else
          team.forward();
      }
      if (!hub) break;
    }
  }
}

template <class T>
cudaError_t launch_dtype(const Plan& plan, const SoftmaxArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.hub_blocks + plan.row_blocks),
                  static_cast<unsigned>(std::min(ceil_div(args.heads, 32), kMostGridY)));
  return launch(softmax_rows<T>, {grid, dim3(32 * kWarps)}, stream, args, plan.hub_blocks);
}

}  // namespace

cudaError_t launch_softmax(Dtype dtype, const Plan& plan, const SoftmaxArgs& args,
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

}  // namespace gpuprims::attention
