// Sorting networks on a thread's registers, and the same between lanes of a warp. Everything is
// unrolled, so arrays stay in registers; descending order throughout.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace gpuprims {

constexpr int32_t kNoIndex = INT32_MAX;

// An element of a row: better where the key is larger, or equal and the index lower.
template <class Order>
struct Entry {
  Order key;
  int32_t index;  // kNoIndex: none
};

template <class T>
__device__ __forceinline__ bool better(T a, T b) {
  return a > b;
}
template <class Order>
__device__ __forceinline__ bool better(const Entry<Order>& a, const Entry<Order>& b) {
  return (a.key > b.key) | ((a.key == b.key) & (a.index < b.index));  // no branches
}

// By value and by field: a choice between addresses would send registers to memory.
template <class T>
__device__ __forceinline__ T choose(bool first, T a, T b) {
  return first ? a : b;
}
template <class Order>
__device__ __forceinline__ Entry<Order> choose(bool first, Entry<Order> a, Entry<Order> b) {
  return {first ? a.key : b.key, first ? a.index : b.index};
}

template <class T>
__device__ __forceinline__ T better_of(T a, T b) {
  return choose(better(b, a), b, a);
}

template <class T>
__device__ __forceinline__ void exchange(T& a, T& b) {
  const T x = a, y = b;
  const bool swap = better(y, x);
  a = choose(swap, y, x);
  b = choose(swap, x, y);
}

template <class T>
__device__ __forceinline__ T from_lane(T value, int mask) {
  return __shfl_xor_sync(~0u, value, mask);
}
template <class Order>
__device__ __forceinline__ Entry<Order> from_lane(const Entry<Order>& entry, int mask) {
  return {__shfl_xor_sync(~0u, entry.key, mask), __shfl_xor_sync(~0u, entry.index, mask)};
}

// Batcher's odd-even merge sort: 5, 19, 63 exchanges for 4, 8, 16. Recursion, not loops whose step
// changes: those are unrolled too late for the array to stay in registers.
template <int kFirst, int kCount, int kStep, class T>
__device__ __forceinline__ void merge_network(T* x) {
  if constexpr (2 * kStep >= kCount) {
    exchange(x[kFirst], x[kFirst + kStep]);
  } else {
    merge_network<kFirst, kCount, 2 * kStep>(x);
    merge_network<kFirst + kStep, kCount, 2 * kStep>(x);
#pragma unroll
    for (int i = kFirst + kStep; i + kStep < kFirst + kCount; i += 2 * kStep)
      exchange(x[i], x[i + kStep]);
  }
}
template <int kFirst, int kCount, class T>
__device__ __forceinline__ void sort_network(T* x) {
  if constexpr (kCount > 1) {
    sort_network<kFirst, kCount / 2>(x);
    sort_network<kFirst + kCount / 2, kCount / 2>(x);
    merge_network<kFirst, kCount, 1>(x);
  }
}

// Sorts what falls and then rises.
template <int kFirst, int kCount, class T>
__device__ __forceinline__ void sort_bitonic(T* x) {
  if constexpr (kCount > 1) {
#pragma unroll
    for (int i = kFirst; i < kFirst + kCount / 2; ++i) exchange(x[i], x[i + kCount / 2]);
    sort_bitonic<kFirst, kCount / 2>(x);
    sort_bitonic<kFirst + kCount / 2, kCount / 2>(x);
  }
}

// The best kKeep of x[kFirst .. kFirst + kCount), sorted, in the first of these places.
template <int kFirst, int kCount, int kKeep, class T>
__device__ __forceinline__ void best_of(T* x) {
  if constexpr (kCount == kKeep) {
    sort_network<kFirst, kKeep>(x);
  } else {
    constexpr int kSecond = kFirst + kCount / 2;
    best_of<kFirst, kCount / 2, kKeep>(x);
    best_of<kSecond, kCount / 2, kKeep>(x);
#pragma unroll
    for (int i = 0; i < kKeep; ++i)
      x[kFirst + i] = better_of(x[kFirst + i], x[kSecond + kKeep - 1 - i]);
    sort_bitonic<kFirst, kKeep>(x);
  }
}

// Every lane's x becomes the best kCount of `lanes` neighbouring lanes' sorted lists, sorted.
template <int kCount, class T>
__device__ __forceinline__ void best_of_lanes(T* x, int lanes) {
#pragma unroll 1
  for (int step = 1; step < lanes; step *= 2) {
    T other[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) other[i] = from_lane(x[kCount - 1 - i], step);
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = better_of(x[i], other[i]);
    sort_bitonic<0, kCount>(x);
  }
}

// Puts an entry in its place in a sorted list; the last one drops out.
template <int kCount, class Order>
__device__ __forceinline__ void insert(Entry<Order>* list, Entry<Order> entry) {
  bool before = better(entry, list[kCount - 1]);
#pragma unroll
  for (int i = kCount - 1; i >= 0; --i) {
    list[i] = choose(before, entry, list[i]);
    if (i == 0) break;
    before = better(entry, list[i - 1]);
    list[i] = choose(before, list[i - 1], list[i]);
  }
}

}  // namespace gpuprims
