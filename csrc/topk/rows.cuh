// Reading a row's elements as keys, pairing keys with indices, writing winners.
#pragma once
#include <cuda_runtime.h>

#include "common/radix_keys.h"
#include "topk/kernels.h"

namespace gpuprims {

// (key, complement of the index) in one integer: the larger pair is the better element, and of
// equal keys the lower index is better. No real element is 0.
using Narrow = uint64_t;
using Wide = unsigned __int128;

template <class Pair>
__device__ __forceinline__ Pair make_pair(uint64_t key, uint64_t index) {
  if constexpr (sizeof(Pair) == 8)
    return (static_cast<uint64_t>(key) << 32) | static_cast<uint32_t>(~index);
  else
    return (static_cast<Wide>(key) << 64) | ~index;
}

template <class Pair>
__device__ __forceinline__ uint64_t pair_key(Pair pair) {
  return static_cast<uint64_t>(pair >> (sizeof(Pair) * 4));
}

template <class Pair>
__device__ __forceinline__ uint64_t pair_index(Pair pair) {
  if constexpr (sizeof(Pair) == 8)
    return static_cast<uint32_t>(~static_cast<uint32_t>(pair));
  else
    return ~static_cast<uint64_t>(pair);
}

template <class Pair>
__device__ __forceinline__ Pair shuffle_xor(Pair pair, int step) {
  if constexpr (sizeof(Pair) == 8) {
    return __shfl_xor_sync(~0u, static_cast<unsigned long long>(pair), step);
  } else {
    const auto low = __shfl_xor_sync(~0u, static_cast<unsigned long long>(pair), step);
    const auto high = __shfl_xor_sync(~0u, static_cast<unsigned long long>(pair >> 64), step);
    return (static_cast<Pair>(high) << 64) | low;
  }
}

template <class Key>
union alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(Key);
  uint4 raw;
  Key element[kSize];
};

__device__ __forceinline__ uint4 load_streaming(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Where a row lies in tensors of [outer, n, inner].
struct RowPlace {
  int64_t outer;
  int64_t inner;

  __device__ __forceinline__ RowPlace(int64_t row, int64_t inners) : outer(row), inner(0) {
    if (inners != 1) outer = row / inners, inner = row - outer * inners;
  }
  __device__ __forceinline__ int64_t start(const RowMap& map) const {
    return outer * map.outer + inner * map.inner_stride;
  }
};

// What the values of slots without an element hold: the worst value of the dtype.
template <class Key>
__device__ Key fill_bits(const TopkArgs& args) {
  const bool low = args.largest;
  switch (args.dtype) {
    case Dtype::f16:
      return static_cast<Key>(low ? 0xfc00u : 0x7c00u);
    case Dtype::bf16:
      return static_cast<Key>(low ? 0xff80u : 0x7f80u);
    case Dtype::f32:
      return static_cast<Key>(low ? 0xff800000u : 0x7f800000u);
    case Dtype::f64:
      return static_cast<Key>(low ? 0xfff0000000000000ull : 0x7ff0000000000000ull);
    case Dtype::boolean:
      return static_cast<Key>(low ? 0 : 1);
    case Dtype::i8:
    case Dtype::i16:
    case Dtype::i32:
    case Dtype::i64: {
      const Key lowest = static_cast<Key>(Key(1) << (sizeof(Key) * 8 - 1));
      return low ? lowest : static_cast<Key>(~lowest);
    }
    default:
      return low ? Key(0) : static_cast<Key>(~Key(0));
  }
}

template <class Key>
class Output {
 public:
  __device__ __forceinline__ Output(const TopkArgs& args, const RowPlace& place)
      : args_(args),
        source_(static_cast<const Key*>(args.input) + place.start(args.in)),
        base_(place.outer * args.k * args.inner + place.inner) {}

  // The winner of rank `rank`. Its bits come from the key; only NaNs and zeros, whose bits the key
  // does not hold, are read again.
  template <class Pair>
  __device__ __forceinline__ void put(int64_t rank, Pair pair, const KeyCodec<Key>& codec) const {
    const int64_t index = static_cast<int64_t>(pair_index(pair));
    const Key key = static_cast<Key>(pair_key(pair));
    const Key plain = static_cast<Key>(key ^ codec.invert);
    Key bits = codec.decode(key);
    if (codec.float_mask && (plain == codec.sign || plain == static_cast<Key>(~Key(0))))
      bits = source_[index];
    write(rank, bits, index);
  }

  __device__ __forceinline__ void put_missing(int64_t rank) const {
    write(rank, fill_bits<Key>(args_), -1);
  }

 private:
  __device__ __forceinline__ void write(int64_t rank, Key bits, int64_t index) const {
    const int64_t at = base_ + rank * args_.inner;
    static_cast<Key*>(args_.values)[at] = bits;
    if (args_.wide_index)
      static_cast<int64_t*>(args_.indices)[at] = index;
    else
      static_cast<int32_t*>(args_.indices)[at] = static_cast<int32_t>(index);
  }

  const TopkArgs& args_;
  const Key* source_;
  int64_t base_;
};

}  // namespace gpuprims
