// Elements <-> unsigned keys whose integer order is the order of the contract: NaN of either sign
// above everything, -0.0 equal to +0.0. One codec serves every dtype of a width, so kernels are
// instantiated on width alone; it costs 6 instructions an element.
#pragma once
#include <cstdint>
#include <type_traits>

#include "common/dtype.h"

#if defined(__CUDACC__)
#define GPUPRIMS_HD __host__ __device__ __forceinline__
#else
#define GPUPRIMS_HD inline
#endif

namespace gpuprims {

template <int Bytes>
using KeyOf = std::conditional_t<
    Bytes == 1, uint8_t,
    std::conditional_t<Bytes == 2, uint16_t, std::conditional_t<Bytes == 4, uint32_t, uint64_t>>>;

template <class Key>
struct KeyCodec {
  Key float_mask;     // all ones for floats: negative numbers are complemented
  Key sign;           // the sign bit for signed types, 0 for unsigned ones
  Key infinity;       // magnitudes above it are NaN; all ones for integers
  Key negative_zero;  // the bits read as 0; 0 for integers
  Key invert;         // all ones where the smallest element shall have the largest key

  GPUPRIMS_HD Key encode(Key bits) const {
    constexpr int kTop = sizeof(Key) * 8 - 1;
    if (bits == negative_zero) bits = 0;
    const Key negative =
        static_cast<Key>(Key(0) - static_cast<Key>(bits >> kTop));  // all ones or 0
    Key key = static_cast<Key>(bits ^ ((negative & float_mask) | sign));
    if (static_cast<Key>(bits & static_cast<Key>(~(float_mask & sign))) > infinity)
      key = static_cast<Key>(~Key(0));
    return static_cast<Key>(key ^ invert);
  }

  // The bits of an element with this key (NaN decodes to a positive NaN, zero to +0.0).
  GPUPRIMS_HD Key decode(Key key) const {
    constexpr int kTop = sizeof(Key) * 8 - 1;
    key = static_cast<Key>(key ^ invert);
    if (!sign) return key;
    const Key positive = static_cast<Key>(Key(0) - static_cast<Key>(key >> kTop));
    return static_cast<Key>(key ^ ((static_cast<Key>(~positive) & float_mask) | sign));
  }
};

// largest: the largest element gets the largest key; otherwise the smallest does.
template <class Key>
KeyCodec<Key> make_codec(Dtype dtype, bool largest) {
  constexpr Key kOnes = static_cast<Key>(~Key(0));
  constexpr Key kSign = static_cast<Key>(Key(1) << (sizeof(Key) * 8 - 1));
  KeyCodec<Key> codec{0, 0, kOnes, 0, largest ? Key(0) : kOnes};
  if (is_floating(dtype)) {
    const uint64_t infinity = dtype == Dtype::f16    ? 0x7c00u
                              : dtype == Dtype::bf16 ? 0x7f80u
                              : dtype == Dtype::f32  ? 0x7f800000u
                                                     : 0x7ff0000000000000u;
    codec = {kOnes, kSign, static_cast<Key>(infinity), kSign, codec.invert};
  } else if (is_signed_integer(dtype)) {
    codec.sign = kSign;
  }
  return codec;
}

// {bits : encode(bits) >= bound}, as at most two circular intervals of raw bits: half the
// instructions of encoding an element only to reject it. May let through bits just below the bound,
// never rejects one above.
template <class Key>
struct KeyFilter {
  Key from[2];
  Key span[2];  // bits passes where bits - from <= span, modulo the key's width

  GPUPRIMS_HD bool passes(Key bits) const {
    return static_cast<Key>(bits - from[0]) <= span[0] ||
           static_cast<Key>(bits - from[1]) <= span[1];
  }
};

template <class Key>
GPUPRIMS_HD KeyFilter<Key> make_filter(const KeyCodec<Key>& codec, Key bound) {
  const Key ones = static_cast<Key>(~Key(0)), sign = codec.sign;
  const auto one = [](Key from, Key span) { return KeyFilter<Key>{{from, from}, {span, span}}; };
  if (!codec.float_mask)  // from the bound up to the best, which follow each other modulo the width
    return codec.invert ? one(sign, static_cast<Key>(~bound))
                        : one(static_cast<Key>(bound ^ sign), static_cast<Key>(ones - bound));
  const Key infinity = codec.infinity, minus_infinity = static_cast<Key>(sign | infinity);
  if (!codec.invert) {  // numbers from the bound up, positive NaNs behind them; negative NaNs
    const Key nan = static_cast<Key>(minus_infinity + 1);
    Key from = 0, span = static_cast<Key>(~bound);
    if (bound > sign) {
      from = static_cast<Key>(bound ^ sign);
      if (from > infinity) from = static_cast<Key>(infinity + 1);
      span = static_cast<Key>(sign - 1 - from);
    } else if (bound == sign) {
      span = sign;  // up to -0.0
    }
    return {{from, nan}, {span, static_cast<Key>(ones - nan)}};
  }
  const Key most =
      static_cast<Key>(~bound);  // the largest number that passes, as a key that is not inverted
  if (most == ones) return one(0, ones);
  if (most >= sign) {  // positive numbers up to it; all negative ones
    const Key up_to = static_cast<Key>(most ^ sign);
    return {{0, sign}, {up_to < infinity ? up_to : infinity, infinity}};
  }
  const Key from = static_cast<Key>(~most);
  return one(from, from < minus_infinity ? static_cast<Key>(minus_infinity - from) : Key(0));
}

}  // namespace gpuprims
