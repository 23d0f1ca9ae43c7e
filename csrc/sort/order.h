// The two codecs (common/radix_keys.h where an index follows, sort/codec.h where none does) with
// the width at run time, so that kernels are instantiated on what they move and not on what it
// means.
#pragma once
#include "sort/codec.h"

namespace gpuprims {

template <class Word>
struct OrderParams {
  Word float_mask, sign, infinity, negative_zero, invert, nans, mask;
  int top;        // the sign's place
  bool lossless;  // every bit pattern has its own key

  GPUPRIMS_HD Word encode(Word bits) const {
    if (!lossless && bits == negative_zero) bits = 0;
    const Word negative = static_cast<Word>(Word(0) - (bits >> top));
    Word key = bits ^ ((negative & float_mask) | sign);
    if (lossless)
      key = (key - nans) & mask;
    else if ((bits & ~(float_mask & sign)) > infinity)
      key = mask;
    return key ^ invert;
  }

  GPUPRIMS_HD Word decode(Word key) const {
    key ^= invert;
    if (lossless) key = (key + nans) & mask;
    const Word positive = static_cast<Word>(Word(0) - (key >> top));
    return key ^ ((~positive & float_mask) | sign);
  }

  // Elements of several bit patterns share this key.
  GPUPRIMS_HD bool several(Word key) const {
    return float_mask && !lossless && (key == (sign ^ invert) || key == (mask ^ invert));
  }
};

template <class Key, class Word>
void set_order(OrderParams<Word>& order, Dtype dtype, bool descending, bool lossless) {
  const KeyCodec<Key> c = make_codec<Key>(dtype, !descending);
  const OrderCodec<Key> o = make_order_codec<Key>(dtype, descending);
  order = {c.float_mask,
           c.sign,
           c.infinity,
           c.negative_zero,
           c.invert,
           o.nans,
           static_cast<Key>(~Key(0)),
           static_cast<int>(sizeof(Key)) * 8 - 1,
           lossless};
}

}  // namespace gpuprims
