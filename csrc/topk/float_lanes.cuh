// Rows of floats in registers: 8, 16 or 32 lanes a row, 16 elements a lane, NaN above all. For
// topk_gate and for topk.
//
// The k-th best of the lanes' best logits is a bound that k elements reach, and that only k lanes
// have elements above. It is found on 32-bit tags (a key whose last bits name the lane), which is a
// little lower than by pairs and half as dear. Where ties let
// too many through, settle_ties looks again, at whole keys.
#pragma once
#include "topk/gate_element.cuh"

namespace gpuprims {

namespace t = gate_tuning;

// One row's shared memory: pairs (key, ~index) of candidates, and the winners in order. k - 1 lanes
// may hold better elements than the bound's pair, 16 each, and k is at most 3/4 of the lanes.
template <int kLanes>
struct alignas(16) GateRowMemory {
  static constexpr int kRoom = 12 * kLanes;
  Narrow found[kRoom];
  union {
    Narrow winners[kLanes];
    uint32_t tags[kLanes];  // done with when there are winners
  };
  int count;
};

// Item e of a lane is element (e / kVector * kLanes + lane) * kVector + e % kVector of its row,
// however it was read; items behind the row's end are -inf.
template <class T, int kLanes>
struct GateItems {
  static constexpr int kVector = 16 / sizeof(T);

  static __device__ __forceinline__ int at(int e, int lane) {
    return (e / kVector * kLanes + lane) * kVector + e % kVector;
  }
  template <class Args>
  static __device__ __forceinline__ void load(const Args& args, bool aligned, const T* row,
                                              int lane, float (&x)[t::kItems]) {
    if (aligned) {
      constexpr uint32_t low = minus_infinities<T>();
      Vector<T> tile[t::kItems / kVector];
#pragma unroll
      for (int u = 0; u < t::kItems / kVector; ++u) {
        tile[u].raw = {low, low, low, low};
        if ((u * kLanes + lane) * kVector < args.n)
          tile[u].raw = load_streaming(row + (u * kLanes + lane) * kVector);
      }
#pragma unroll
      for (int e = 0; e < t::kItems; ++e) x[e] = widen(tile[e / kVector].element[e % kVector]);
    } else {
#pragma unroll
      for (int e = 0; e < t::kItems; ++e)
        x[e] = at(e, lane) < args.n ? widen(row[at(e, lane)]) : -INFINITY;
    }
  }
};

// A number that at least k of a row's logits reach (NaN reaches all), or -inf.
template <int kLanes>
__device__ __forceinline__ float lanes_bound(GateRowMemory<kLanes>& memory, float best, int lane,
                                             int shift, int k) {
  const uint32_t tag = (order_key(best) & ~31u) | static_cast<uint32_t>(31 - lane);
  memory.tags[lane] = tag;
  if (lane == 0) memory.count = 0;
  __syncwarp();
  int rank = 0;
#pragma unroll
  for (int i = 0; i < kLanes; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(memory.tags + i);
    rank += (four.x > tag) + (four.y > tag) + (four.z > tag) + (four.w > tag);
  }
  const unsigned holder = __ballot_sync(~0u, rank == k - 1) >> shift;
  uint32_t key = memory.tags[__ffs(static_cast<int>(holder)) - 1] & ~31u;
  if (key < 0x00800000u) return -INFINITY;
  if (key > 0xff800000u) key = 0xff800000u;  // NaNs: +inf lets all of them through
  return order_value(key);
}

// Where the tags' bound is none, or lets too many through: the exact k-th best of the lanes' best
// keys. What is above it passes, and of what is equal to it the first by index, as many as the best
// k have room for: so ties cost some 400 instructions. The row is loaded again, from L2, and
// this is a call: inline, it would cost the usual path registers. Items behind the row's end come
// last by index, and so never pass.
template <class T, int kLanes>
__device__ __noinline__ int settle_ties(GateRowMemory<kLanes>& memory, const T* row, int n,
                                        bool aligned, int lane, int shift, int k) {
  using Items = GateItems<T, kLanes>;
  constexpr int kVector = Items::kVector, kLoads = t::kItems / kVector;
  constexpr int kField = 32 / kLoads;  // bits: a load's equal elements of all lanes, at most 256
  static_assert(kVector * kLanes < 1 << kField);
  float x[t::kItems];
  struct {
    int n;
  } const args{n};
  Items::load(args, aligned, row, lane, x);
  float best = x[0];
#pragma unroll
  for (int e = 1; e < t::kItems; ++e) best = larger_nan(best, x[e]);
  const uint32_t tag = order_key(best);
  __syncwarp();
  memory.tags[lane] = tag;
  if (lane == 0) memory.count = 0;
  __syncwarp();
  int rank = 0;
#pragma unroll 4
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t other = memory.tags[i];
    rank += other > tag || (other == tag && i < lane);
  }
  const unsigned holder = __ballot_sync(~0u, rank == k - 1) >> shift;
  const uint32_t key = memory.tags[__ffs(static_cast<int>(holder)) - 1];
  const bool nans = key == ~0u;  // then nothing is above, and what is greater than inf is equal
  const float bound = nans ? INFINITY : order_value(key);

  uint32_t above = 0, equal = 0;  // bit e: item e
#pragma unroll
  for (int e = 0; e < t::kItems; ++e) {
    above |= !(x[e] <= bound) ? 1u << e : 0;
    equal |= x[e] == bound ? 1u << e : 0;
  }
  if (nans) equal = above, above = 0;
  const auto put = [&](int slot, int e) {  // places alone: fewer registers
    memory.found[slot] = static_cast<Narrow>(Items::at(e, lane));
  };
  int slot = above ? atomicAdd(&memory.count, __popc(above)) : 0;
#pragma unroll 1
  for (; above; above &= above - 1) put(slot++, __ffs(static_cast<int>(above)) - 1);
  uint32_t fields = 0;
#pragma unroll
  for (int l = 0; l < kLoads; ++l)
    fields |= static_cast<uint32_t>(__popc(equal >> l * kVector & ((1u << kVector) - 1)))
              << l * kField;
  uint32_t up_to = fields;
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, up_to, step);
    if (lane >= step) up_to += other;
  }
  const uint32_t all = __shfl_sync(~0u, up_to, shift + kLanes - 1);
  __syncwarp();
  const int more = memory.count;
  slot = more;
#pragma unroll
  for (int l = 0; l < kLoads; ++l) {
    const auto field = [&](uint32_t of) {
      return static_cast<int>(of >> l * kField & ((1u << kField) - 1));
    };
    int to = slot + field(up_to - fields);
    uint32_t bits = equal & ((1u << kVector) - 1) << l * kVector;
#pragma unroll 1
    for (; bits && to < k; bits &= bits - 1) put(to++, __ffs(static_cast<int>(bits)) - 1);
    slot += field(all);
  }
  __syncwarp();
  const int count = more > k ? more : k;
  for (int i = lane; i < count; i += kLanes) {
    const auto at = static_cast<int>(memory.found[i]);
    memory.found[i] = make_pair<Narrow>(order_key(widen(row[at])), at);
  }
  __syncwarp();
  return count;
}

// The row's best k in memory.winners, of those of its elements that reach the bound.
template <class T, int kLanes, class Args>
__device__ __forceinline__ void rank_reaching(GateRowMemory<kLanes>& memory,
                                              const float (&x)[t::kItems], float bound,
                                              const Args& args, bool aligned, const T* row,
                                              int lane, int shift, int k) {
  using Items = GateItems<T, kLanes>;
  int hits = 0;
#pragma unroll
  for (int e = 0; e < t::kItems; ++e) hits += !(x[e] < bound);
  int slot = hits ? atomicAdd(&memory.count, hits) : 0;
  if (hits && slot + hits <= memory.kRoom) {  // in any order: winners are ranked
#pragma unroll
    for (int e = 0; e < t::kItems; ++e) {
      uint32_t bits;
      memcpy(&bits, x + e, sizeof bits);
      if (!(x[e] < bound))
        memory.found[slot++] =
            static_cast<Narrow>(bits) << 32 | static_cast<uint32_t>(~Items::at(e, lane));
    }
  }
  __syncwarp();
  int count = memory.count;
  if (__any_sync(~0u, count > 3 * kLanes || bound == -INFINITY)) {
    count = settle_ties<T, kLanes>(memory, row, static_cast<int>(args.n), aligned, lane, shift, k);
  } else {
    for (int i = lane; i < count; i += kLanes) {
      const Narrow pair = memory.found[i];
      const auto bits = static_cast<uint32_t>(pair >> 32);
      memory.found[i] =
          static_cast<Narrow>(order_key(__uint_as_float(bits))) << 32 | static_cast<uint32_t>(pair);
    }
    __syncwarp();
  }
  for (int i = lane; i < count; i += kLanes) {
    const Narrow pair = memory.found[i];
    int better = 0;
    for (int j = 0; j < count; ++j) better += memory.found[j] > pair;
    if (better < k) memory.winners[better] = pair;
  }
  __syncwarp();
}

}  // namespace gpuprims
