// Softmax of edges over rows, its gradient, and plain sums. A team of lanes takes a row, a block a
// hub; lane s * Hp + h (Hp heads, a power of two up to 32) walks the edges s, s + S, .. of head h,
// and keeps the first kHeld of them in registers.
//
// The tree of a sum: a lane adds its edges in order, a butterfly adds lanes (distances Hp, 2 Hp,
// ..), warps of a block are added in order; a hub has kHubDegree edges or more.
#include "attention/lanes.cuh"
#include "common/launch.h"

namespace gpuprims::attention {
namespace {

constexpr int kHeld = 8;
constexpr int kLeastTeam = 16;  // lanes

template <class T>
struct SoftmaxTeam {
  using Acc = typename Math<T>::Acc;
  const SoftmaxArgs& a;
  Acc* shared;  // [32 * kWarps]
  int head_bits, lanes;
  int64_t head;
  bool there;  // a lane of a head
  bool block;  // the whole block; a team otherwise
  int64_t row, begin, end;

  __device__ int64_t first() const {
    return begin + ((block ? threadIdx.x : threadIdx.x & (lanes - 1)) >> head_bits);
  }
  __device__ int64_t step() const { return (block ? 32 * kWarps : lanes) >> head_bits; }

  // Where an edge's element lies, or -1.
  __device__ __forceinline__ int64_t place(int64_t edge) const {
    const int64_t id = edge_id(a.csr, edge);
    return static_cast<uint64_t>(id) < static_cast<uint64_t>(a.csr.edges) ? id * a.heads + head
                                                                          : -1;
  }
  __device__ __forceinline__ Acc value(const void* from, int64_t edge) const {
    const int64_t at = place(edge);
    return at < 0 ? not_a_number<Acc>() : widen(__ldg(static_cast<const T*>(from) + at));
  }
  __device__ __forceinline__ void write(int64_t edge, Acc result) const {
    const int64_t at = place(edge);
    if (at >= 0) static_cast<T*>(a.out)[at] = narrow<T>(result);
  }

  // The lane's edges from number `from` on, `missing` where there is none.
  __device__ __forceinline__ void hold(Acc (&held)[kHeld], const void* from, int64_t edge,
                                       Acc missing) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int64_t e = edge + i * step();
      held[i] = there && e < end ? value(from, e) : missing;
    }
  }
  __device__ int64_t behind() const { return first() + kHeld * step(); }

  template <class Combine>
  __device__ Acc over_lanes(Acc value, Combine combine) {
    for (int distance = 1 << head_bits; distance < lanes; distance *= 2)
      value = combine(value, __shfl_xor_sync(~0u, value, distance));
    if (!block) return value;
    __syncthreads();
    shared[threadIdx.x] = value;
    __syncthreads();
    const int lane = threadIdx.x & ((1 << head_bits) - 1);
    value = shared[lane];
    for (int i = lanes; i < 32 * kWarps; i += lanes) value = combine(value, shared[i + lane]);
    return value;
  }

  __device__ __forceinline__ void forward() {
    const auto greater = [](Acc x, Acc y) { return y > x ? y : x; };
    Acc held[kHeld], best = -INFINITY;
    hold(held, a.scores, first(), -INFINITY);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) best = greater(best, held[i]);
#pragma unroll 4
    for (int64_t e = behind(); there && e < end; e += step())
      best = greater(best, value(a.scores, e));
    best = over_lanes(best, greater);
    const Acc base = best > -INFINITY ? best : Acc(0);
    Acc sum = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[i] = exponential(held[i] - base);
      sum += held[i];
    }
#pragma unroll 4
    for (int64_t e = behind(); there && e < end; e += step())
      sum += exponential(value(a.scores, e) - base);
    sum = over_lanes(sum, [](Acc x, Acc y) { return x + y; });
    const Acc inverse = 1 / sum;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int64_t e = first() + i * step();
      if (there && e < end) write(e, held[i] * inverse);
    }
#pragma unroll 4
    for (int64_t e = behind(); there && e < end; e += step())
      write(e, exponential(value(a.scores, e) - base) * inverse);
  }

  __device__ __forceinline__ void backward() {
    Acc held[kHeld], weight[kHeld], sum = 0;
    hold(held, a.scores, first(), Acc(0));
    hold(weight, a.alpha, first(), Acc(0));
#pragma unroll
    for (int i = 0; i < kHeld; ++i) sum = fused(weight[i], held[i], sum);
#pragma unroll 4
    for (int64_t e = behind(); there && e < end; e += step())
      sum = fused(value(a.alpha, e), value(a.scores, e), sum);
    sum = over_lanes(sum, [](Acc x, Acc y) { return x + y; });
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int64_t e = first() + i * step();
      if (there && e < end) write(e, weight[i] * (held[i] - sum));
    }
#pragma unroll 4
    for (int64_t e = behind(); there && e < end; e += step())
      write(e, value(a.alpha, e) * (value(a.scores, e) - sum));
  }

  __device__ __forceinline__ void add_up() {
    Acc sum = 0;
#pragma unroll 1
    for (int64_t from = first(); there && from < end; from += kHeld * step()) {
      Acc held[kHeld];
      hold(held, a.scores, from, Acc(0));
#pragma unroll
      for (int i = 0; i < kHeld; ++i) sum += held[i];
    }
    sum = over_lanes(sum, [](Acc x, Acc y) { return x + y; });
    const int lane = block ? static_cast<int>(threadIdx.x) : threadIdx.x & (lanes - 1);
    if (there && lane < 1 << head_bits && row >= 0)
      store_as(a.sum_dtype, a.sum, row * a.heads + head, sum);
  }
};

// Lanes of a row's team: at least one a head.
__host__ __device__ inline int team_lanes(int head_bits) {
  return 1 << head_bits > kLeastTeam ? 1 << head_bits : kLeastTeam;
}

template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    softmax_rows(const __grid_constant__ SoftmaxArgs a, const int hub_blocks) {
  __shared__ typename Math<T>::Acc shared[32 * kWarps];
  if (a.hubs.flag && *a.hubs.flag) return;  // the host has filled the result
  const bool hub = static_cast<int>(blockIdx.x) < hub_blocks;
  for (int64_t tile = static_cast<int64_t>(blockIdx.y) * 32; tile < a.heads;
       tile += gridDim.y * 32) {
    const int held = static_cast<int>(a.heads - tile < 32 ? a.heads - tile : 32);
    const int head_bits = log2_up(held), lanes = team_lanes(head_bits);
    const int lane_head = threadIdx.x & ((1 << head_bits) - 1);
    SoftmaxTeam<T> team{a,   shared, head_bits, lanes, tile + lane_head, lane_head < held,
                        hub, 0,      0,         0};
    const int64_t items = hub ? static_cast<int64_t>(*a.hubs.count) : a.csr.rows;
    int64_t item =
        hub ? blockIdx.x
            : (static_cast<int64_t>(blockIdx.x - hub_blocks) * 32 * kWarps + threadIdx.x) / lanes;
    const int64_t last = hub ? items : item + 1;  // every lane of a warp is needed for shuffles
    for (; item < last; item += hub_blocks) {
      team.row = -1, team.begin = team.end = 0;
      if (item < items) {
        const int64_t row = hub ? a.hubs.chunks[item].row : item;
        const int64_t begin = load_int(a.csr.indptr, a.csr.wide_offsets, row);
        const int64_t end = load_int(a.csr.indptr, a.csr.wide_offsets, row + 1);
        const bool skip =
            hub ? a.hubs.chunks[item].number != 0 : hub_blocks > 0 && end - begin >= kHubDegree;
        if (!skip) team.row = row, team.begin = begin, team.end = end;
      }
      if (hub && team.row < 0) continue;
      if (a.sum)
        team.add_up();
      else if (a.alpha)
        team.backward();
      else
        team.forward();
      if (!hub) break;
    }
  }
}

template <class T>
cudaError_t launch_dtype(const Plan& plan, const SoftmaxArgs& args, cudaStream_t stream) {
  int head_bits = 0;
  while (head_bits < 5 && int64_t(1) << head_bits < args.heads) ++head_bits;
  const int64_t blocks = ceil_div(args.csr.rows * team_lanes(head_bits), 32 * kWarps);
  const dim3 grid(static_cast<unsigned>(plan.hub_blocks + blocks),
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
