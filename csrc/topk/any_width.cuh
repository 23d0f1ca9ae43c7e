// Elements whose width is known at run time: one kernel for every dtype, where elements are few or
// what is done with them costs more than a switch.
#pragma once
#include "common/radix_keys.h"

namespace gpuprims {

__device__ __forceinline__ uint64_t load_bits(const void* p, int bytes, int64_t at) {
  switch (bytes) {
    case 1:
      return static_cast<const uint8_t*>(p)[at];
    case 2:
      return static_cast<const uint16_t*>(p)[at];
    case 4:
      return static_cast<const uint32_t*>(p)[at];
    default:
      return static_cast<const uint64_t*>(p)[at];
  }
}

__device__ __forceinline__ void store_bits(void* p, int bytes, int64_t at, uint64_t bits) {
  switch (bytes) {
    case 1:
      static_cast<uint8_t*>(p)[at] = static_cast<uint8_t>(bits);
      break;
    case 2:
      static_cast<uint16_t*>(p)[at] = static_cast<uint16_t>(bits);
      break;
    case 4:
      static_cast<uint32_t*>(p)[at] = static_cast<uint32_t>(bits);
      break;
    default:
      static_cast<uint64_t*>(p)[at] = bits;
  }
}

// Codecs of all widths.
struct AnyCodec {
  KeyCodec<uint8_t> one;
  KeyCodec<uint16_t> two;
  KeyCodec<uint32_t> four;
  KeyCodec<uint64_t> eight;

  __device__ __forceinline__ uint64_t encode(int bytes, uint64_t bits) const {
    switch (bytes) {
      case 1:
        return one.encode(static_cast<uint8_t>(bits));
      case 2:
        return two.encode(static_cast<uint16_t>(bits));
      case 4:
        return four.encode(static_cast<uint32_t>(bits));
      default:
        return eight.encode(bits);
    }
  }
};

inline AnyCodec make_any_codec(Dtype dtype, bool largest) {
  return {make_codec<uint8_t>(dtype, largest), make_codec<uint16_t>(dtype, largest),
          make_codec<uint32_t>(dtype, largest), make_codec<uint64_t>(dtype, largest)};
}

// Calls visit(codec) with the codec of that width.
template <class Visit>
__device__ __forceinline__ void with_width(int bytes, const AnyCodec& codec, const Visit& visit) {
  switch (bytes) {
    case 1:
      return visit(codec.one);
    case 2:
      return visit(codec.two);
    case 4:
      return visit(codec.four);
    default:
      return visit(codec.eight);
  }
}

}  // namespace gpuprims
