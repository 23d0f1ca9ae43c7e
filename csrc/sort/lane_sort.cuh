// Sorts 32-bit words that lie in a warp's registers, kItems a lane, for `lanes` neighbouring lanes
// at a time; lane l ends with those of ranks l kItems and up. Batcher's odd-even merge sort in a
// lane, then bitonic merges in the form whose comparisons all point the same way (Batcher 1968).
//
// What bounds it are the minima and maxima: two warp instructions a clock and multiprocessor. In a
// lane, a stage costs one of them a word, or two thirds where multipliers take a share (Exchange).
// Between lanes it costs two and a shuffle, since the hardware's choice between minimum and maximum
// by predicate is out of the compiler's reach; so only the merges of 2 and 4 lanes shuffle. Those
// of 8, 16 and 32 lanes go through shared memory into a layout in which their stages lie in a lane,
// and back: as many cycles of the shared-memory pipe as shuffles would take (128 for 96 to 160),
// and no other instruction.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace gpuprims {
namespace {

// Puts two words in order. Mixed: the greater one is what the lesser one leaves of the sum, two
// instructions of the multipliers for one of the unit of minima; `one` is 1, which the compiler
// must not know, or it would take the busy unit again.
template <bool kMixed>
struct Exchange {
  uint32_t one, less;

  __device__ __forceinline__ explicit Exchange(uint32_t one) : one(one), less(0u - one) {}
  __device__ __forceinline__ void operator()(uint32_t& a, uint32_t& b, int number) const {
    const uint32_t low = a < b ? a : b;
    if (kMixed && number % 3 != 0) {
      uint32_t sum = a * one + b;
      asm("" : "+r"(sum));  // no other order of these two: it would take a third
      b = low * less + sum;
    } else {
      b = a < b ? b : a;
    }
    a = low;
  }
};

// Odd-even merge sort of x[kFirst .. kFirst + kCount).
template <int kFirst, int kCount, int kStep, class Order>
__device__ __forceinline__ void merge_odd_even(uint32_t* x, const Order& in_order) {
  if constexpr (2 * kStep >= kCount) {
    in_order(x[kFirst], x[kFirst + kStep], kFirst);
  } else {
    merge_odd_even<kFirst, kCount, 2 * kStep>(x, in_order);
    merge_odd_even<kFirst + kStep, kCount, 2 * kStep>(x, in_order);
#pragma unroll
    for (int i = kFirst + kStep; i + kStep < kFirst + kCount; i += 2 * kStep)
      in_order(x[i], x[i + kStep], i);
  }
}
template <int kFirst, int kCount, class Order>
__device__ __forceinline__ void sort_odd_even(uint32_t* x, const Order& in_order) {
  if constexpr (kCount > 1) {
    sort_odd_even<kFirst, kCount / 2>(x, in_order);
    sort_odd_even<kFirst + kCount / 2, kCount / 2>(x, in_order);
    merge_odd_even<kFirst, kCount, 1>(x, in_order);
  }
}

// The stages of a bitonic merge at distances kStride to kLast, in a lane.
template <int kItems, int kStride, int kLast, class Order>
__device__ __forceinline__ void merge_stages(uint32_t* x, const Order& in_order) {
#pragma unroll
  for (int i = 0; i < kItems; ++i)
    if (!(i & kStride)) in_order(x[i], x[i | kStride], i);
  if constexpr (kStride > kLast) merge_stages<kItems, kStride / 2, kLast>(x, in_order);
}

template <int kItems, bool kMixed = false>
struct LaneSort {
  static constexpr int kStride = kItems + 4;  // words of a lane in shared memory: no bank conflicts
  static constexpr int kBytes = 32 * kStride * 4;

  uint32_t* words;  // shared memory of this warp
  int lane;
  Exchange<kMixed> in_order;

  // Where the word of a rank (or of any number, kItems a lane) lies.
  static __device__ __forceinline__ int place(int i) { return i + i / kItems * 4; }

  __device__ __forceinline__ void store(const uint32_t (&v)[kItems]) const {
    uint4* const to = reinterpret_cast<uint4*>(words + lane * kStride);
#pragma unroll
    for (int i = 0; i < kItems; i += 4) to[i / 4] = make_uint4(v[i], v[i + 1], v[i + 2], v[i + 3]);
    __syncwarp();
  }
  __device__ __forceinline__ void load(uint32_t (&v)[kItems]) const {
    const uint4* const from = reinterpret_cast<const uint4*>(words + lane * kStride);
#pragma unroll
    for (int i = 0; i < kItems; i += 4) {
      const uint4 four = from[i / 4];
      v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void sort(uint32_t (&v)[kItems], int lanes) const {
    sort_odd_even<0, kItems>(v, in_order);
#pragma unroll 1
    for (int size = 2; size <= lanes; size *= 2) {
      if (size == 2)
        shuffle_merge<2>(v);
      else if (size == 4)
        shuffle_merge<4>(v);
      else if (size == 8)
        merge<8>(v);
      else if (size == 16)
        merge<16>(v);
      else
        merge<32>(v);
      merge_stages<kItems, kItems / 2, 1>(v, in_order);
    }
  }

 private:
  static __device__ __forceinline__ uint32_t one_of(uint32_t a, uint32_t b, bool low) {
    const uint32_t least = a < b ? a : b, most = a < b ? b : a;
    return low ? least : most;
  }

  // Few words a lane are for few rows, whose time is that of fetching instructions.
  template <int kLanes>
  __device__ __forceinline__ void merge(uint32_t (&v)[kItems]) const {
    if constexpr (kItems == 32)
      memory_merge<kLanes>(v);
    else
      shuffle_merge<kLanes>(v);
  }

  // The stages between kLanes lanes; the first compares a word with its mirror image.
  template <int kLanes>
  __device__ __forceinline__ void shuffle_merge(uint32_t (&v)[kItems]) const {
    const bool first = !(lane & kLanes / 2);
#pragma unroll
    for (int i = 0; i < kItems / 2; ++i) {
      const uint32_t a = __shfl_xor_sync(~0u, v[kItems - 1 - i], kLanes - 1);
      const uint32_t b = __shfl_xor_sync(~0u, v[i], kLanes - 1);
      v[i] = one_of(v[i], a, first);
      v[kItems - 1 - i] = one_of(v[kItems - 1 - i], b, first);
    }
#pragma unroll
    for (int mask = kLanes / 4; mask > 0; mask /= 2) {
      const bool low = !(lane & mask);
#pragma unroll
      for (int i = 0; i < kItems; ++i) v[i] = one_of(v[i], __shfl_xor_sync(~0u, v[i], mask), low);
    }
  }

  // The same in another layout: a lane holds kWide neighbouring words of each of kLanes runs of 32.
  // The second half of the runs is read backwards, so that the two rise towards each other.
  template <int kLanes>
  __device__ __forceinline__ void memory_merge(uint32_t (&v)[kItems]) const {
    static_assert(kItems == 32);
    constexpr int kWide = 32 / kLanes;
    const int runs = lane / kLanes * kLanes * kStride, at = lane % kLanes * kWide;
    uint32_t* const ahead = words + runs + at;
    const uint32_t* const back = words + runs + 32 - kWide - at;
    store(v);
#pragma unroll
    for (int h = 0; h < kLanes; ++h) {
      const bool mirrored = h >= kLanes / 2;
      uint32_t some[kWide];
      load_wide<kWide>(some,
                       mirrored ? back + (h ^ (kLanes / 2 - 1)) * kStride : ahead + h * kStride);
#pragma unroll
      for (int w = 0; w < kWide; ++w) v[h * kWide + w] = some[mirrored ? kWide - 1 - w : w];
    }
    merge_stages<kItems, 16, kWide>(v, in_order);
    __syncwarp();
#pragma unroll
    for (int h = 0; h < kLanes; ++h) store_wide<kWide>(ahead + h * kStride, v + h * kWide);
    __syncwarp();
    load(v);
  }

  template <int kWide>
  static __device__ __forceinline__ void load_wide(uint32_t* to, const uint32_t* from) {
    if constexpr (kWide == 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(from);
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else if constexpr (kWide == 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      to[0] = two.x, to[1] = two.y;
    } else {
      to[0] = *from;
    }
  }
  template <int kWide>
  static __device__ __forceinline__ void store_wide(uint32_t* to, const uint32_t* from) {
    if constexpr (kWide == 4)
      *reinterpret_cast<uint4*>(to) = make_uint4(from[0], from[1], from[2], from[3]);
    else if constexpr (kWide == 2)
      *reinterpret_cast<uint2*>(to) = make_uint2(from[0], from[1]);
    else
      *to = *from;
  }
};

}  // namespace
}  // namespace gpuprims
