// Elements, records and rows on the device.
#pragma once
#include <cuda_runtime.h>

#include "sort/kernels.h"

namespace gpuprims {
namespace {

extern __shared__ __align__(16) unsigned char dynamic_memory[];

__device__ __forceinline__ RowSpan row_span(const SortArgs& args, int64_t row) {
  if (args.list) return args.list[row];
  if (!args.indptr) return {row * args.n, args.n};
  const auto at = [&](int64_t i) -> int64_t {
    return args.wide_indptr ? static_cast<const int64_t*>(args.indptr)[i]
                            : static_cast<const int32_t*>(args.indptr)[i];
  };
  const int64_t start = at(row);
  return {start, at(row + 1) - start};
}

__device__ __forceinline__ int64_t row_count(const SortArgs& args) {
  if (args.bad && *args.bad) return 0;
  return args.list_count ? *args.list_count : args.rows;
}

// The key of element `at` of the input.
__device__ __forceinline__ uint64_t load_key(const SortArgs& args, int64_t at) {
  switch (args.bytes) {
    case 1:
      return args.order32.encode(static_cast<const uint8_t*>(args.input)[at]);
    case 2:
      return args.order32.encode(static_cast<const uint16_t*>(args.input)[at]);
    case 4:
      return args.order32.encode(static_cast<const uint32_t*>(args.input)[at]);
    default:
      return args.order64.encode(static_cast<const uint64_t*>(args.input)[at]);
  }
}

template <class Element, class Word>
__device__ __forceinline__ void store_element(const SortArgs& args, const OrderParams<Word>& order,
                                              int64_t to, Word key, int64_t from) {
  const bool several = args.indices && order.several(key);
  static_cast<Element*>(args.values)[to] = several ? static_cast<const Element*>(args.input)[from]
                                                   : static_cast<Element>(order.decode(key));
}

// Writes the element that has this key; `from`, where it came from, matters to keys that are shared
// by several bit patterns.
__device__ __forceinline__ void store_value(const SortArgs& args, int64_t to, uint64_t key,
                                            int64_t from) {
  if (!args.values) return;
  const uint32_t low = static_cast<uint32_t>(key);
  switch (args.bytes) {
    case 1:
      return store_element<uint8_t>(args, args.order32, to, low, from);
    case 2:
      return store_element<uint16_t>(args, args.order32, to, low, from);
    case 4:
      return store_element<uint32_t>(args, args.order32, to, low, from);
    default:
      return store_element<uint64_t>(args, args.order64, to, key, from);
  }
}

__device__ __forceinline__ bool is_several(const SortArgs& args, uint64_t key) {
  return args.bytes == 8 ? args.order64.several(key)
                         : args.order32.several(static_cast<uint32_t>(key));
}

__device__ __forceinline__ void copy_element(const SortArgs& args, int64_t to, int64_t from) {
  if (!args.values) return;
  const auto copy = [&](auto element) {
    using Element = decltype(element);
    static_cast<Element*>(args.values)[to] = static_cast<const Element*>(args.input)[from];
  };
  switch (args.bytes) {
    case 1:
      return copy(uint8_t{});
    case 2:
      return copy(uint16_t{});
    case 4:
      return copy(uint32_t{});
    default:
      return copy(uint64_t{});
  }
}

__device__ __forceinline__ void store_index(const SortArgs& args, int64_t to, int64_t index) {
  if (args.wide_index)
    static_cast<int64_t*>(args.indices)[to] = index;
  else
    static_cast<int32_t*>(args.indices)[to] = static_cast<int32_t>(index);
}

// Element `index` of the row at `start` goes to place `to` of the row.
__device__ __forceinline__ void store_pair(const SortArgs& args, int64_t start, int64_t to,
                                           uint64_t key, int64_t index) {
  store_value(args, start + to, key, start + index);
  if (args.indices) store_index(args, start + to, args.indptr ? start + index : index);
}

// A key's digit, [low, low + width) of its bits.
struct Digit {
  int low;
  uint32_t mask;

  template <class Word>
  __device__ __forceinline__ uint32_t of(Word record) const {
    return static_cast<uint32_t>(record >> low) & mask;
  }
};

// The same number, which the compiler takes for another: what was computed from it before is
// computed anew, and not kept in registers (32 records a thread leave few).
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ Digit digit_at(const SortArgs& args, int pass) {
  const int low = args.begin_bit + pass * 8;
  const int width = args.end_bit - low < 8 ? args.end_bit - low : 8;
  return {low + (args.packed ? 32 : 0), width <= 0 ? 0u : (1u << width) - 1};
}

}  // namespace
}  // namespace gpuprims
