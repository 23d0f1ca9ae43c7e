// A block's part of a row, as 16-byte vectors.
#pragma once
#include "topk/rows.cuh"

namespace gpuprims {

// A part of a row: 16-byte vectors, and before and behind them the elements that fill none.
// Positions are 32-bit and count from the part's first element; the plan keeps parts below 2^31
// elements.
template <class Key>
struct Part {
  static constexpr uint32_t kVector = Vector<Key>::kSize;
  const Key* data;      // of the part's first element
  const uint8_t* mask;  // likewise, or null
  const TopkArgs& args;
  uint32_t length;
  uint32_t head;  // elements before the first vector
  uint32_t vectors;

  __device__ __forceinline__ Part(const TopkArgs& args, const RowPlace& place, int64_t begin,
                                  int64_t end)
      : data(static_cast<const Key*>(args.input) + place.start(args.in) + begin),
        mask(args.mask ? args.mask + place.start(args.drop) + begin * args.drop.step : nullptr),
        args(args),
        length(static_cast<uint32_t>(end - begin)) {
    const uint32_t past =
        static_cast<uint32_t>(reinterpret_cast<uintptr_t>(data) & 15) / sizeof(Key);
    head = past ? kVector - past : 0;
    if (head > length) head = length;
    vectors = (length - head) / kVector;
  }

  __device__ __forceinline__ uint32_t position(uint32_t v) const { return head + v * kVector; }
  __device__ __forceinline__ bool keeps(uint32_t at) const {
    return !mask || mask[at * args.drop.step];
  }
  // v may be any number where there is a vector: the last one stands in for those behind it.
  __device__ __forceinline__ uint4 load(uint32_t v) const {
    return load_streaming(data + position(v < vectors ? v : vectors - 1));
  }

  // At most 2 * kVector - 2 elements are in no vector.
  __device__ __forceinline__ uint32_t edges() const { return length - vectors * kVector; }
  __device__ __forceinline__ uint32_t edge(uint32_t i) const {
    return i < head ? i : i + vectors * kVector;
  }
};

}  // namespace gpuprims
