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

// Where and how many of row r's records are written.
__device__ __forceinline__ RowSpan kept_span(const SortArgs& args, int64_t r, const RowSpan& row) {
  if (!args.keep) return row;
  return {r * args.keep, args.keep < row.n ? args.keep : row.n};
}

__device__ __forceinline__ int64_t row_count(const SortArgs& args) {
  if (args.bad && *args.bad) return 0;
  return args.list_count ? *args.list_count : args.rows;
}

// Elements of one width and their keys; widths differ at run time, and are told apart outside of
// the loops (by_width), so that loads of several elements are on their way together.
template <class Element>
struct Elements {
  using Word = std::conditional_t<sizeof(Element) == 8, uint64_t, uint32_t>;
  const SortArgs& args;

  __device__ __forceinline__ const OrderParams<Word>& order() const {
    if constexpr (sizeof(Element) == 8)
      return args.order64;
    else
      return args.order32;
  }
  __device__ __forceinline__ const Element* input() const {
    return static_cast<const Element*>(args.input);
  }
  __device__ __forceinline__ Word key(Element bits) const { return order().encode(bits); }

  // Writes the element that has this key; `from`, where it came from, matters to keys that are
  // shared by several bit patterns.
  __device__ __forceinline__ void store(int64_t to, Word key, int64_t from) const {
    Element* const values = static_cast<Element*>(args.values);
    if (!values) return;
    values[to] = order().several(key) ? input()[from] : static_cast<Element>(order().decode(key));
  }
};

// Only: the one type that elements can have there, or void.
template <class Only = void, class Body>
__device__ __forceinline__ void by_width(const SortArgs& args, const Body& body) {
  if constexpr (!std::is_void_v<Only>) {
    return body(Elements<Only>{args});
  } else
    switch (args.bytes) {
      case 1:
        return body(Elements<uint8_t>{args});
      case 2:
        return body(Elements<uint16_t>{args});
      case 4:
        return body(Elements<uint32_t>{args});
      default:
        return body(Elements<uint64_t>{args});
    }
}

// Calls put(i, key) for i = first, first + step ... below count: kItems of them at most, kBatch
// loads at a time.
template <int kItems, int kBatch, class Only = void, class Put>
__device__ __forceinline__ void load_keys(const SortArgs& args, int64_t start, int first, int step,
                                          int count, const Put& put) {
  by_width<Only>(args, [&](auto elements) {
    const auto* const from = elements.input() + start;
#pragma unroll 1
    for (int j = 0; j < kItems; j += kBatch) {
      std::remove_cv_t<std::remove_reference_t<decltype(*from)>> raw[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int i = first + (j + b) * step;
        raw[b] = i < count ? from[i] : 0;
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int i = first + (j + b) * step;
        if (i < count) put(i, elements.key(raw[b]));
      }
    }
  });
}

__device__ __forceinline__ void store_index(const SortArgs& args, int64_t to, int64_t index) {
  if (args.wide_index)
    static_cast<int64_t*>(args.indices)[to] = index;
  else
    static_cast<int32_t*>(args.indices)[to] = static_cast<int32_t>(index);
}

// Where element `index` of the row at `start` was, as the caller counts.
__device__ __forceinline__ int64_t index_of(const SortArgs& args, int64_t start, int64_t index) {
  return args.indptr ? start + index : index;
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
// computed anew, and not kept in registers (a thread's records leave few).
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ Digit digit_at(const SortArgs& args, int pass, bool packed) {
  const int low = args.begin_bit + pass * 8;
  const int width = args.end_bit - low < 8 ? args.end_bit - low : 8;
  return {low + (packed ? 32 : 0), width <= 0 ? 0u : (1u << width) - 1};
}

}  // namespace
}  // namespace gpuprims
