// Keys for sorting without an index: unlike KeyCodec, every bit pattern keeps a key of its own, so
// that what is sorted can be turned back. -0.0 comes before +0.0, positive NaNs last but for the
// negative ones, whose keys wrap around to the top.
#pragma once
#include "common/radix_keys.h"

namespace gpuprims {

template <class Key>
struct OrderCodec {
  Key float_mask;  // all ones for floats: negative numbers are complemented
  Key sign;        // the sign bit for signed types, 0 for unsigned ones
  Key nans;        // number of negative NaNs; 0 for integers
  Key invert;      // all ones for a descending order

  GPUPRIMS_HD Key encode(Key bits) const {
    constexpr int kTop = sizeof(Key) * 8 - 1;
    const Key negative = static_cast<Key>(Key(0) - static_cast<Key>(bits >> kTop));
    const Key key = static_cast<Key>(bits ^ ((negative & float_mask) | sign));
    return static_cast<Key>(static_cast<Key>(key - nans) ^ invert);
  }

  GPUPRIMS_HD Key decode(Key key) const {
    constexpr int kTop = sizeof(Key) * 8 - 1;
    key = static_cast<Key>(static_cast<Key>(key ^ invert) + nans);
    const Key positive = static_cast<Key>(Key(0) - static_cast<Key>(key >> kTop));
    return static_cast<Key>(key ^ ((static_cast<Key>(~positive) & float_mask) | sign));
  }
};

template <class Key>
OrderCodec<Key> make_order_codec(Dtype dtype, bool descending) {
  const KeyCodec<Key> codec = make_codec<Key>(dtype, !descending);
  OrderCodec<Key> order{codec.float_mask, codec.sign, 0, codec.invert};
  if (is_floating(dtype)) order.nans = static_cast<Key>(codec.sign - 1 - codec.infinity);
  return order;
}

}  // namespace gpuprims
