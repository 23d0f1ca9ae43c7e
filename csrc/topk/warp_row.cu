// Many rows of some hundred to some thousand floats, largest first: a warp a row, without barriers.
// Rows are whole, aligned vectors, without a mask and not strided; at most 32 winners.
//
// 1. The row is read once. Each vector's best element goes to shared memory, and 64 groups of
//    vectors keep their best: the k-th best of those is a bound that k elements reach.
// 2. Vectors whose best is above the bound are listed, and the first k of those whose best is equal
//    to it: ties need no more, as they are kept in the order of indices.
// 3. Listed vectors are looked at again (they are in L2); of what reaches the bound, rank is the
//    number of better ones.
#include "common/launch.h"
#include "topk/float_lanes.cuh"
#include "topk/plan_short.h"
#include "topk/select.cuh"

namespace gpuprims {
namespace {

constexpr int kWarps = topk_tuning::kWarpThreads / 32, kPairs = topk_tuning::kWarpPairs;

// The bound as a number; NaN is above all others, and is told apart.
struct NumberBound {
  float number;
  bool nans;

  __device__ __forceinline__ explicit NumberBound(uint32_t key) {
    nans = key == ~0u;
    number = INFINITY;
    if (key <= 0xff800000u) number = order_value(key);
  }
  __device__ __forceinline__ bool above(float x) const { return !nans && !(x <= number); }
  __device__ __forceinline__ bool equal(float x) const {
    return nans ? !(x <= number) : x == number;
  }
};

// The best k of `count` pairs to `winners`, in order. Of many, the k-th best of the lanes' best is
// a bound first: pairs of sorted data follow each other, and then it leaves k.
__device__ __forceinline__ void rank_pairs(Narrow* pairs, int count, Narrow* winners, int k,
                                           int lane) {
  if (count > 64) {
    uint32_t best = 0;
#pragma unroll 1
    for (int i = lane; i < count; i += 32) {
      const auto key = static_cast<uint32_t>(pairs[i] >> 32);
      best = key > best ? key : best;
    }
    const uint32_t least = __shfl_sync(~0u, sort_lanes(best), k - 1);
    int kept = 0;
#pragma unroll 1
    for (int from = 0; from < count; from += 32) {
      const Narrow pair = from + lane < count ? pairs[from + lane] : Narrow(0);
      const bool stays = pair && static_cast<uint32_t>(pair >> 32) >= least;
      const unsigned all = __ballot_sync(~0u, stays);
      if (stays) pairs[kept + __popc(all & ((1u << lane) - 1))] = pair;
      kept += __popc(all);
      __syncwarp();
    }
    count = kept;
  }
  if (lane == 0) pairs[count] = 0;
  __syncwarp();
#pragma unroll 1
  for (int i = lane; i < count; i += 64) {  // two pairs a lane
    const Narrow mine[2] = {pairs[i], i + 32 < count ? pairs[i + 32] : Narrow(0)};
    int better[2] = {0, 0};
#pragma unroll 2
    for (int j = 0; j < count; j += 2) {
      const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(pairs + j);
#pragma unroll
      for (int m = 0; m < 2; ++m) better[m] += (two.x > mine[m]) + (two.y > mine[m]);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
      if (mine[m] && better[m] < k) winners[better[m]] = mine[m];
  }
  __syncwarp();
}

// The elements of up to 64 listed vectors that reach the bound, which is no NaN, as pairs; returns
// how many, or -1 where there is no room for them.
template <class T>
__device__ __forceinline__ int pairs_of_few(const T* source, const uint16_t* list, int listed,
                                            float bound, Narrow* pairs, int lane) {
  constexpr int kVector = Vector<T>::kSize;
  Vector<T> some[2];
  int at[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (j * 32 + lane < listed) at[j] = list[j * 32 + lane];
    some[j].raw = load_streaming(source + at[j] * kVector);
  }
  uint32_t hits = 0;
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int e = 0; e < kVector; ++e)
      if (j * 32 + lane < listed && !(widen(some[j].element[e]) < bound))
        hits |= 1u << (j * kVector + e);
  const int own = __popc(hits), up_to = static_cast<int>(lanes_up_to<32>(own, lane));
  const int count = __shfl_sync(~0u, up_to, 31);
  if (count >= kPairs) return -1;
  int slot = up_to - own;
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int e = 0; e < kVector; ++e)
      if (hits >> (j * kVector + e) & 1)
        pairs[slot++] =
            make_pair<Narrow>(order_key(widen(some[j].element[e])), at[j] * kVector + e);
  __syncwarp();
  return count;
}

template <class T>
__device__ __forceinline__ void warp_rows(const TopkArgs& args, int tops_bytes, int warp_bytes) {
  constexpr int kVector = Vector<T>::kSize, kLoads = topk_tuning::kWarpLoads;
  constexpr uint32_t kLow = minus_infinities<T>();
  const int lane = threadIdx.x % 32, k = static_cast<int>(args.k);
  const int vectors = static_cast<int>(args.n) / kVector;
  const unsigned below = (1u << lane) - 1;
  unsigned char* const memory = dynamic_memory + threadIdx.x / 32 * warp_bytes;
  float* const tops = reinterpret_cast<float*>(memory);
  Narrow* const pairs = reinterpret_cast<Narrow*>(memory);  // when tops are done with
  Narrow* const winners = reinterpret_cast<Narrow*>(memory + tops_bytes);
  uint16_t* const list = reinterpret_cast<uint16_t*>(winners + 32);
  for (int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32; row < args.rows;
       row += gridDim.x * int64_t{kWarps}) {
    const T* const source = static_cast<const T*>(args.input) + row * args.in.outer;
    float best[2] = {-INFINITY, -INFINITY};
    const auto take = [&](int v, auto whole) {  // whole: the row has all of these vectors
      const T* const from = source + v * kVector;
      Vector<T> tile[kLoads];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        if (!whole()) tile[u].raw = {kLow, kLow, kLow, kLow};
        if (whole() || v + u * 32 < vectors) tile[u].raw = load_streaming(from + u * 32 * kVector);
      }
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        float top = widen(tile[u].element[0]);
#pragma unroll
        for (int e = 1; e < kVector; ++e) top = larger_nan(top, widen(tile[u].element[e]));
        float& group = best[(u ^ u >> 1 ^ u >> 2) & 1];  // not every other vector
        group = larger_nan(group, top);
        if (whole() || v + u * 32 < vectors) tops[v + u * 32] = top;
      }
    };
    int v = lane;
#pragma unroll 1
    for (; v - lane + 32 * kLoads <= vectors; v += 32 * kLoads) take(v, std::true_type{});
    if (v - lane < vectors) take(v, std::false_type{});
    // Of two sorted runs of 32, the best 32 are those that are better than their mirror images.
    const uint32_t first = sort_lanes(order_key(best[0])), second = sort_lanes(order_key(best[1]));
    const uint32_t mirrored = __shfl_xor_sync(~0u, second, 31);
    uint32_t merged = first > mirrored ? first : mirrored;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const uint32_t other = __shfl_xor_sync(~0u, merged, step);
      const bool larger = !(lane & step);
      merged = larger ? (other > merged ? other : merged) : (other < merged ? other : merged);
    }
    NumberBound bound(__shfl_sync(~0u, merged, k - 1));

    // Bit u: vector u * 32 + lane reaches the bound.
    uint32_t mine = 0;
    v = lane;
#pragma unroll 1
    for (int u = 0; v - lane < vectors; u += kLoads, v += 32 * kLoads) {
      uint32_t some = 0;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {  // what lies behind the tops is the warp's own, too
        const bool reaches = !(tops[v + i * 32] < bound.number);
        if (reaches & (v + i * 32 < vectors)) some |= 1u << i;
      }
      mine |= some << u;
    }
    const int own = __popc(mine), last = static_cast<int>(lanes_up_to<32>(own, lane));
    int listed = __shfl_sync(~0u, last, 31);
    int count = -1;
    if (listed <= 2 * 32 && !bound.nans) {  // as ever but for ties
#pragma unroll 1
      for (int slot = last - own; mine; mine &= mine - 1)
        list[slot++] = static_cast<uint16_t>((__ffs(static_cast<int>(mine)) - 1) * 32 + lane);
      __syncwarp();
      count = pairs_of_few(source, list, listed, bound.number, pairs, lane);
    }
    if (count < 0) {
      int ties = 0;
      listed = 0;
#pragma unroll 4
      for (int from = 0; from < vectors; from += 32) {
        const int v = from + lane;
        const bool there = v < vectors;
        const float top = there ? tops[v] : -INFINITY;
        const bool equal = there && bound.equal(top), above = there && bound.above(top);
        if (!__any_sync(~0u, equal || above)) continue;
        const unsigned same = __ballot_sync(~0u, equal);
        const bool taken = above || (equal && ties + __popc(same & below) < k);
        const unsigned all = __ballot_sync(~0u, taken);
        if (taken) list[listed + __popc(all & below)] = static_cast<uint16_t>(v);
        listed += __popc(all);
        ties += __popc(same);
      }
      __syncwarp();

      count = 0;
      ties = 0;  // elements from here on
#pragma unroll 1
      for (int from = 0; from < listed; from += 32) {
        if (count >= kPairs - 32 * kVector) {  // the best k stay, and raise the bound
          rank_pairs(pairs, count, winners, k, lane);
          if (lane < k) pairs[lane] = winners[lane];
          count = k;
          bound = NumberBound(static_cast<uint32_t>(winners[k - 1] >> 32));
          ties = k;  // what is equal comes later by index
          __syncwarp();
        }
        Vector<T> some;
        int v = 0;
        uint32_t hits = 0, same = 0;
        if (from + lane < listed) {
          v = list[from + lane];
          some.raw = load_streaming(source + v * kVector);
#pragma unroll
          for (int e = 0; e < kVector; ++e) {
            const float x = widen(some.element[e]);
            if (bound.above(x)) hits |= 1u << e;
            if (bound.equal(x)) same |= 1u << e;
          }
        }
        // Of equal elements the first k by index, which is the list's order.
        const int tied = __popc(same), ties_up_to = static_cast<int>(lanes_up_to<32>(tied, lane));
#pragma unroll 1
        for (int room = k - ties - (ties_up_to - tied); same && room > 0; same &= same - 1, --room)
          hits |= same & -same;
        ties += __shfl_sync(~0u, ties_up_to, 31);
        const int mine = __popc(hits), up_to = static_cast<int>(lanes_up_to<32>(mine, lane));
        int slot = count + up_to - mine;
#pragma unroll
        for (int e = 0; e < kVector; ++e)
          if (hits >> e & 1)
            pairs[slot++] = make_pair<Narrow>(order_key(widen(some.element[e])), v * kVector + e);
        count += __shfl_sync(~0u, up_to, 31);
        __syncwarp();
      }
    }
    rank_pairs(pairs, count, winners, k, lane);
    if (lane < k) {
      const Narrow pair = winners[lane];
      const auto index = static_cast<uint32_t>(pair_index(pair));
      const int64_t at = row * k + lane;
      static_cast<T*>(args.values)[at] =
          winner_bits(static_cast<uint32_t>(pair >> 32), source + index);
      if (args.wide_index)
        static_cast<int64_t*>(args.indices)[at] = index;
      else
        static_cast<int32_t*>(args.indices)[at] = static_cast<int32_t>(index);
    }
    __syncwarp();
  }
}

// Both 16-bit floats share a kernel: a branch costs nothing here, and another kernel the build.
template <int kBytes>
__global__ void __launch_bounds__(topk_tuning::kWarpThreads, 8)
    topk_warp(const __grid_constant__ TopkArgs args, int tops_bytes, int warp_bytes) {
  if constexpr (kBytes == 4)
    warp_rows<float>(args, tops_bytes, warp_bytes);
  else if (args.dtype == Dtype::f16)
    warp_rows<Half>(args, tops_bytes, warp_bytes);
  else
    warp_rows<Bfloat>(args, tops_bytes, warp_bytes);
}

}  // namespace

cudaError_t launch_topk_warp(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)),
                          dim3(static_cast<unsigned>(plan.threads)),
                          static_cast<size_t>(plan.smem)};
  const TopkWarpMemory memory = topk_warp_memory(args.dtype, args.n);
  const auto kernel = args.dtype == Dtype::f32 ? topk_warp<4> : topk_warp<2>;
  return launch(kernel, shape, stream, args, memory.tops, memory.bytes);
}

}  // namespace gpuprims
