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
constexpr int kLeastTeam = 16;    // lanes
constexpr int kHubThreads = 512;  // of a hub's block

// Lanes of a row's team: at least one a head.
__host__ __device__ inline int team_lanes(int head_bits) {
  return 1 << head_bits > kLeastTeam ? 1 << head_bits : kLeastTeam;
}

// kIds: elements lie by edge id; otherwise by position.
template <class T, bool kIds>
struct SoftmaxTeam {
  using Acc = typename Math<T>::Acc;
  const SoftmaxArgs& a;
  Acc* shared;  // [kHubThreads]
  int head_bits, lanes;
  int64_t head;
  bool there;                    // a lane of a head
  bool block;                    // the whole block; a team otherwise
  int64_t row, begin, first_at;  // first_at: of the row's first element
  unsigned degree, first, step;  // edges are numbered within the row

  __device__ SoftmaxTeam(const SoftmaxArgs& args, Acc* space, int64_t tile, bool hub)
      : a(args), shared(space), block(hub) {
    const int held = static_cast<int>(a.heads - tile < 32 ? a.heads - tile : 32);
    head_bits = log2_up(held);
    lanes = team_lanes(head_bits);
    const int lane_head = threadIdx.x & ((1 << head_bits) - 1);
    head = tile + lane_head;
    there = lane_head < held;
    first = there ? lane() >> head_bits : ~0u >> 1;  // beyond every row
    step = (block ? kHubThreads : lanes) >> head_bits;
  }
  __device__ int lane() const {
    return block ? static_cast<int>(threadIdx.x) : static_cast<int>(threadIdx.x) & (lanes - 1);
  }

  // Where an edge's element lies, or -1.
  __device__ __forceinline__ int64_t place(unsigned number) const {
    if constexpr (!kIds)
      return first_at + static_cast<uint64_t>(number) * static_cast<unsigned>(a.heads);
    const int64_t id = edge_id(a.csr, begin + number);
    return static_cast<uint64_t>(id) < static_cast<uint64_t>(a.csr.edges) ? id * a.heads + head
                                                                          : -1;
  }
  __device__ __forceinline__ Acc value(const void* from, unsigned number) const {
    const int64_t at = place(number);
    return kIds && at < 0 ? not_a_number<Acc>() : widen(__ldg(static_cast<const T*>(from) + at));
  }
  __device__ __forceinline__ void write(unsigned number, Acc result) const {
    const int64_t at = place(number);
    if (!kIds || at >= 0) static_cast<T*>(a.out)[at] = narrow<T>(result);
  }

  // The lane's edges from `number` on, `missing` where there is none.
  __device__ __forceinline__ void hold(Acc (&held)[kHeld], const void* from, unsigned number,
                                       Acc missing) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      held[i] = number + i * step < degree ? value(from, number + i * step) : missing;
  }
  __device__ unsigned behind() const { return first + kHeld * step; }

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
    for (int i = lanes; i < kHubThreads; i += lanes) value = combine(value, shared[i + lane]);
    return value;
  }

  __device__ __forceinline__ void forward() {
    const auto greater = [](Acc x, Acc y) { return y > x ? y : x; };
    Acc held[kHeld], best = -INFINITY;
    hold(held, a.scores, first, -INFINITY);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) best = greater(best, held[i]);
#pragma unroll 8
    for (unsigned e = behind(); e < degree; e += step) best = greater(best, value(a.scores, e));
    best = over_lanes(best, greater);
    const Acc base = best > -INFINITY ? best : Acc(0);
    Acc sum = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[i] = quick_exponential(held[i] - base);
      sum += held[i];
    }
#pragma unroll 8
    for (unsigned e = behind(); e < degree; e += step)
      sum += quick_exponential(value(a.scores, e) - base);
    sum = over_lanes(sum, [](Acc x, Acc y) { return x + y; });
    const Acc inverse = 1 / sum;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (first + i * step < degree) write(first + i * step, held[i] * inverse);
#pragma unroll 8
    for (unsigned e = behind(); e < degree; e += step)
      write(e, quick_exponential(value(a.scores, e) - base) * inverse);
  }

  __device__ __forceinline__ void backward() {
    Acc held[kHeld], weight[kHeld], sum = 0;
    hold(held, a.scores, first, Acc(0));
    hold(weight, a.alpha, first, Acc(0));
#pragma unroll
    for (int i = 0; i < kHeld; ++i) sum = fused(weight[i], held[i], sum);
#pragma unroll 8
    for (unsigned e = behind(); e < degree; e += step)
      sum = fused(value(a.alpha, e), value(a.scores, e), sum);
    sum = over_lanes(sum, [](Acc x, Acc y) { return x + y; });
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (first + i * step < degree) write(first + i * step, weight[i] * (held[i] - sum));
#pragma unroll 8
    for (unsigned e = behind(); e < degree; e += step)
      write(e, value(a.alpha, e) * (value(a.scores, e) - sum));
  }

  __device__ __forceinline__ void add_up() {
    Acc sum = 0;
#pragma unroll 1
    for (unsigned from = first; from < degree; from += kHeld * step) {
      Acc held[kHeld];
      hold(held, a.scores, from, Acc(0));
#pragma unroll
      for (int i = 0; i < kHeld; ++i) sum += held[i];
    }
    sum = over_lanes(sum, [](Acc x, Acc y) { return x + y; });
    if (there && lane() < 1 << head_bits && row >= 0)
      store_as(a.sum_dtype, a.sum, row * a.heads + head, sum);
  }

  // A row a team, or the hubs that a block takes turns with.
  __device__ __forceinline__ void walk(int hub_blocks) {
    const int64_t items = block ? static_cast<int64_t>(*a.hubs.count) : a.csr.rows;
    int64_t item = blockIdx.x;
    if (!block) item = (item * 32 * kWarps + threadIdx.x) / lanes;
    const int64_t last = block ? items : item + 1;  // shuffles need every lane of a warp
#pragma unroll 1
    for (; item < last; item += block ? gridDim.x : 1) {
      row = -1, degree = 0;
      if (item < items) {
        const int64_t at = block ? a.hubs.chunks[item].row : item;
        begin = load_int(a.csr.indptr, a.csr.wide_offsets, at);
        first_at = begin * a.heads + head;
        const int64_t edges = load_int(a.csr.indptr, a.csr.wide_offsets, at + 1) - begin;
        const bool skip =
            block ? a.hubs.chunks[item].number != 0 : hub_blocks > 0 && edges >= kHubDegree;
        if (!skip) row = at, degree = static_cast<unsigned>(edges);
      }
      if (block && row < 0) continue;
      if (a.sum)
        add_up();
      else if (a.alpha)
        backward();
      else
        forward();
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kHubThreads, sizeof(T) == 8 ? 1 : 2)
    softmax_rows(const __grid_constant__ SoftmaxArgs a, const int hub_blocks, const bool hub) {
  __shared__ typename Math<T>::Acc shared[kHubThreads];
  if (a.hubs.flag && *a.hubs.flag) return;  // the host has filled the result
  for (int64_t tile = static_cast<int64_t>(blockIdx.y) * 32; tile < a.heads;
       tile += gridDim.y * 32) {
    if (a.csr.edge_ids)
      SoftmaxTeam<T, true>(a, shared, tile, hub).walk(hub_blocks);
    else
      SoftmaxTeam<T, false>(a, shared, tile, hub).walk(hub_blocks);
  }
}

template <class T>
cudaError_t launch_dtype(const Plan& plan, const SoftmaxArgs& args, cudaStream_t stream) {
  int head_bits = 0;
  while (head_bits < 5 && int64_t(1) << head_bits < args.heads) ++head_bits;
  const int64_t blocks = ceil_div(args.csr.rows * team_lanes(head_bits), 32 * kWarps);
  const auto tiles = static_cast<unsigned>(std::min(ceil_div(args.heads, 32), kMostGridY));
  if (plan.hub_blocks > 0) {
    const auto code = launch(
        softmax_rows<T>, {dim3(static_cast<unsigned>(plan.hub_blocks), tiles), dim3(kHubThreads)},
        stream, args, plan.hub_blocks, true);
    if (code != cudaSuccess) return code;
  }
  return launch(softmax_rows<T>, {dim3(static_cast<unsigned>(blocks), tiles), dim3(32 * kWarps)},
                stream, args, plan.hub_blocks, false);
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
