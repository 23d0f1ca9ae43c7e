// Rows of floats in registers: 8, 16 or 32 lanes a row, 16 elements a lane, NaN above all. For
// topk_gate and for topk.
//
// The k-th best of the lanes' best logits is a bound that k elements reach, and that only k - 1
// lanes have elements above. Where ties let too many through, settle_ties keeps the first of them.
#pragma once
#include "topk/gate_element.cuh"

namespace gpuprims {

namespace t = gate_tuning;

// The winner's own bits, from its key where that holds them.
template <class T>
__device__ __forceinline__ T winner_bits(uint32_t key, const T* from) {
  T out = T();
  const bool shared = key == ~0u || key == 0x80000000u;  // by NaNs, by zeros
  if (shared || std::is_same_v<T, Half>) return *from;
  const float value = order_value(key);
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (sizeof(T) == 2) bits >>= 16;
  memcpy(&out, &bits, sizeof out);
  return out;
}

// One row's shared memory: pairs (key, ~index) of candidates, and the winners in order. k - 1 lanes
// may hold better elements than the bound, 16 each, and k is at most 3/4 of the lanes.
template <int kLanes>
struct alignas(16) GateRowMemory {
  static constexpr int kRoom = 12 * kLanes;
  Narrow found[kRoom];
  union {
    Narrow winners[kLanes];
    uint32_t best[kLanes];  // keys; done with when there are winners
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

// The k-th best of the lanes' best keys: k of the row's elements reach it, and only those of k - 1
// lanes can be above it.
template <int kLanes>
__device__ __forceinline__ uint32_t lanes_bound(GateRowMemory<kLanes>& memory, float best, int lane,
                                                int shift, int k) {
  const uint32_t key = order_key(best);
  memory.best[lane] = key;
  if (lane == 0) memory.count = 0;
  __syncwarp();
  int rank = 0;  // the same for lanes of the same key
#pragma unroll
  for (int i = 0; i < kLanes; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(memory.best + i);
    rank += (four.x > key) + (four.y > key) + (four.z > key) + (four.w > key);
  }
  constexpr unsigned kRow = kLanes == 32 ? ~0u : (1u << kLanes % 32) - 1;
  unsigned holders = __ballot_sync(~0u, rank == k - 1) >> shift & kRow;
  if (__any_sync(~0u, !holders)) {  // several have the k-th best
    int last = rank < k ? rank : 0;
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      const int other = __shfl_xor_sync(~0u, last, step);
      last = other > last ? other : last;
    }
    holders = __ballot_sync(~0u, rank == last) >> shift;
  }
  return memory.best[__ffs(static_cast<int>(holders)) - 1];
}

// Over a row's lanes: the sum up to this one.
template <int kLanes>
__device__ __forceinline__ uint32_t lanes_up_to(uint32_t value, int lane) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

// Where too many elements reach the bound: those above it pass, and of those equal to it the first
// by index, as many as the best k have room for. Items behind the row's end are -inf and come last
// by index, so none of them passes. Places alone are listed at first: it takes fewer registers.
// Returns how many candidates there are.
template <class T, int kLanes>
__device__ __forceinline__ int settle_ties(GateRowMemory<kLanes>& memory,
                                           const float (&x)[t::kItems], uint32_t key, const T* row,
                                           int lane, int shift, int k) {
  using Items = GateItems<T, kLanes>;
  constexpr int kVector = Items::kVector, kLoads = t::kItems / kVector;
  constexpr int kField = 32 / kLoads;  // bits: a load's equal elements of all lanes, at most 256
  static_assert(kVector * kLanes < 1 << kField);
  const bool nans = key == ~0u;  // then nothing is above, and what is greater than inf is equal
  const float bound = nans ? INFINITY : order_value(key);
  uint32_t above = 0, equal = 0;  // bit e: item e
#pragma unroll
  for (int e = 0; e < t::kItems; ++e) {
    above |= !(x[e] <= bound) ? 1u << e : 0;
    equal |= x[e] == bound ? 1u << e : 0;
  }
  if (nans) equal = above, above = 0;
  const auto put = [&](int slot, int e) {
    memory.found[slot] = static_cast<Narrow>(Items::at(e, lane));
  };
  const int mine = __popc(above);
  const int up_to = static_cast<int>(lanes_up_to<kLanes>(mine, lane));
  const int last = shift + kLanes - 1, more = __shfl_sync(~0u, up_to, last);
#pragma unroll 1
  for (int slot = up_to - mine; above; above &= above - 1)
    put(slot++, __ffs(static_cast<int>(above)) - 1);
  uint32_t fields = 0;
#pragma unroll
  for (int l = 0; l < kLoads; ++l)
    fields |= static_cast<uint32_t>(__popc(equal >> l * kVector & ((1u << kVector) - 1)))
              << l * kField;
  uint32_t before = lanes_up_to<kLanes>(fields, lane);
  uint32_t all = __shfl_sync(~0u, before, last);
  before -= fields;
  int slot = more;
#pragma unroll 1
  for (int l = 0; l < kLoads; ++l) {
    constexpr uint32_t kMask = static_cast<uint32_t>((uint64_t{1} << kField) - 1);
    int to = slot + static_cast<int>(before & kMask);
    uint32_t bits = equal & ((1u << kVector) - 1);
#pragma unroll 1
    for (; bits && to < k; bits &= bits - 1)
      put(to++, l * kVector + __ffs(static_cast<int>(bits)) - 1);
    slot += static_cast<int>(all & kMask);
    before >>= kField, all >>= kField, equal >>= kVector;
  }
  __syncwarp();
  const int count = more > k ? more : k;
#pragma unroll 1
  for (int i = lane; i < count; i += kLanes) {
    const auto at = static_cast<int>(memory.found[i]);
    memory.found[i] = make_pair<Narrow>(order_key(widen(row[at])), at);
  }
  return count;
}

// How many of `count` pairs, and perhaps the one behind them, are above one.
__device__ __forceinline__ int pairs_above(const Narrow* pairs, int count, Narrow pair) {
  int above = 0;
#pragma unroll 1
  for (int j = 0; j < count; j += 2) {
    const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(pairs + j);
    above += (two.x > pair) + (two.y > pair);
  }
  return above;
}

// The row's best k in memory.winners, of those of its elements that reach the bound.
template <class T, int kLanes>
__device__ __forceinline__ void rank_reaching(GateRowMemory<kLanes>& memory,
                                              const float (&x)[t::kItems], uint32_t key,
                                              const T* row, int lane, int shift, int k) {
  using Items = GateItems<T, kLanes>;
  // +inf lets all NaNs through.
  const float bound = key > 0xff800000u ? INFINITY : order_value(key);
  int hits = 0;
#pragma unroll
  for (int e = 0; e < t::kItems; ++e) hits += !(x[e] < bound);
  int slot = hits ? atomicAdd(&memory.count, hits) : 0;  // in any order: winners are ranked
  __syncwarp();
  int count = memory.count;
  // A vector of sorted data has the more winners the more elements it has.
  constexpr int kMany = (sizeof(T) == 2 ? 5 : 3) * kLanes;
  if (__any_sync(~0u, count > kMany || bound == -INFINITY)) {
    count = settle_ties<T, kLanes>(memory, x, key, row, lane, shift, k);
  } else {
    if (hits) {
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
    for (int i = lane; i < count; i += kLanes) {
      const Narrow pair = memory.found[i];
      const auto bits = static_cast<uint32_t>(pair >> 32);
      memory.found[i] =
          static_cast<Narrow>(order_key(__uint_as_float(bits))) << 32 | static_cast<uint32_t>(pair);
    }
  }
  if (lane == 0) memory.found[count] = 0;  // pairs are read by twos
  __syncwarp();
  for (int i = lane; i < count; i += kLanes) {
    const Narrow pair = memory.found[i];
    const int better = pairs_above(memory.found, count, pair);
    if (better < k) memory.winners[better] = pair;
  }
  __syncwarp();
}

}  // namespace gpuprims
