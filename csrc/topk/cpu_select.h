// Selection of the k best of a row on the host, by a running threshold: an element enters the
// buffer only if it reaches the k-th best seen so far, and the buffer is cut back to k when it is
// full. Random data appends O(k log(n / k)) elements, so a long row costs one read. No PyTorch
// here.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "common/radix_keys.h"

namespace gpuprims {

// A row of `bits` with an optional mask of bytes (0 drops the element); steps in elements.
template <class Key>
struct RowView {
  const Key* bits;
  int64_t step;
  const uint8_t* mask;
  int64_t mask_step;
};

// Word = key above the inverted index. Words are distinct and the larger is the better, ties
// included: plain integer sorts give the contract's order, and the answer does not depend on how a
// row was cut.
template <class Key, class Word>
struct Words {
  static constexpr int kIndexBits = 8 * (sizeof(Word) - sizeof(Key));
  static constexpr Word kIndexMask = (Word(1) << kIndexBits) - 1;

  static Word word(Key key, int64_t index) {
    return Word(key) << kIndexBits | (kIndexMask - Word(index));
  }
  static Key key(Word word) { return static_cast<Key>(word >> kIndexBits); }
  static int64_t index(Word word) { return static_cast<int64_t>(kIndexMask - (word & kIndexMask)); }
};

constexpr int kBlock = 256;  // elements that are tested and appended together

// The two loops that read the input. Always inlined, so that each is compiled for the caller's
// instruction set.
template <class Key>
[[gnu::always_inline]] inline Key greatest(const Key* bits, int count, KeyCodec<Key> codec) {
  Key best = 0;
  for (int i = 0; i < count; ++i) best = std::max(best, codec.encode(bits[i]));
  return best;
}

// Appends the words of the elements first, first + spread, ... whose keys reach `floor`; returns
// the new end.
template <class Key, class Word>
[[gnu::always_inline]] inline Word* collect(const RowView<Key>& row, int64_t first, int64_t spread,
                                            int count, KeyCodec<Key> codec, Key floor, Word* out) {
  using W = Words<Key, Word>;
  constexpr int kGroup = 32;  // most groups of a long row hold nothing
  Key keys[kBlock];
  const Key* bits = row.bits + first * row.step;
  const int64_t step = spread * row.step;
  if (step == 1)
    for (int i = 0; i < count; ++i) keys[i] = codec.encode(bits[i]);
  else
    for (int i = 0; i < count; ++i) keys[i] = codec.encode(bits[i * step]);
  if (row.mask) {
    const uint8_t* mask = row.mask + first * row.mask_step;
    for (int i = 0; i < count; ++i) {
      *out = W::word(keys[i], first + i * spread);
      out +=
          (keys[i] >= floor) & (mask[i * spread * row.mask_step] != 0);  // no branch to mispredict
    }
    return out;
  }
  if (floor == 0) {
    for (int i = 0; i < count; ++i) out[i] = W::word(keys[i], first + i * spread);
    return out + count;
  }
  for (int at = 0; at < count; at += kGroup) {
    const int end = std::min(count, at + kGroup);
    Key best = 0;
    for (int i = at; i < end; ++i) best = std::max(best, keys[i]);
    if (best < floor) continue;
    for (int i = at; i < end; ++i) {
      *out = W::word(keys[i], first + i * spread);
      out += keys[i] >= floor;
    }
  }
  return out;
}

#if defined(__x86_64__)
template <class Key>
[[gnu::target("avx2")]] Key greatest_avx2(const Key* bits, int count, KeyCodec<Key> codec) {
  return greatest(bits, count, codec);
}
template <class Key, class Word>
[[gnu::target("avx2")]] Word* collect_avx2(const RowView<Key>& row, int64_t first, int64_t spread,
                                           int count, KeyCodec<Key> codec, Key floor, Word* out) {
  return collect(row, first, spread, count, codec, floor, out);
}
inline const bool kHasAvx2 = __builtin_cpu_supports("avx2");
#endif

// Sorts words that stand in index order by descending key: least significant digit first, stable, 3
// passes for 4-byte keys. Returns where the result lies, `from` or `to`.
template <class Key, class Word>
Word* radix_sort(Word* from, Word* to, int64_t count) {
  constexpr int kDigitBits = sizeof(Key) < 4 ? 8 : 11;
  constexpr int kDigits = (8 * sizeof(Key) + kDigitBits - 1) / kDigitBits;
  constexpr int kSize = 1 << kDigitBits;
  const auto digit = [](Word word, int pass) {
    return static_cast<int>(static_cast<Key>(~Words<Key, Word>::key(word)) >> (pass * kDigitBits)) &
           (kSize - 1);
  };
  int64_t counts[kDigits][kSize] = {};
  for (int64_t i = 0; i < count; ++i)
    for (int pass = 0; pass < kDigits; ++pass) ++counts[pass][digit(from[i], pass)];
  for (int pass = 0; pass < kDigits; ++pass) {
    int64_t* place = counts[pass];
    if (place[digit(from[0], pass)] == count) continue;  // a digit that all share
    for (int64_t sum = 0, d = 0; d < kSize; ++d) sum += std::exchange(place[d], sum);
    for (int64_t i = 0; i < count; ++i) to[place[digit(from[i], pass)]++] = from[i];
    std::swap(from, to);
  }
  return from;
}

// Moves the best, at most k, to the front in order. Cheaper than a heap up to k = 16 or so.
template <class Word>
int64_t insert_best(Word* words, int64_t count, int64_t k) {
  const auto insert = [&](Word word, int64_t at) {
    for (; at > 0 && words[at - 1] < word; --at) words[at] = words[at - 1];
    words[at] = word;
  };
  const int64_t kept = std::min(count, k);
  for (int64_t i = 1; i < kept; ++i) insert(words[i], i);
  Word last = words[kept - 1];
  for (int64_t i = kept; i < count; ++i) {
    const Word word = words[i];
    if (word < last) continue;
    insert(word, k - 1);
    last = words[k - 1];
  }
  return kept;
}

template <class Key, class Word>
class Selector {
  using W = Words<Key, Word>;

 public:
  // The buffer, in words, for rows of n taken in blocks. Where k is a sizeable part, cutting back
  // does not pay: all words are kept in index order, and from kRadix on sorted by digits, which
  // takes a second buffer.
  static int64_t capacity(int64_t k, int64_t n, int64_t block) {
    return keeps_all(k, n) ? n : 2 * k + block;
  }
  static int64_t buffer_words(int64_t k, int64_t n, int64_t block) {
    return capacity(k, n, block) * (uses_radix(k, n) ? 2 : 1);
  }

  Selector() = default;
  Selector(KeyCodec<Key> codec, int64_t k, int64_t n, int64_t block, Word* buffer)
      : codec_(codec),
        k_(k),
        capacity_(capacity(k, n, block)),
        radix_(uses_radix(k, n)),
        buffer_(buffer) {}

  // Starts on elements [begin, end). A spread sample of a long row gives the first threshold: the
  // k-th best of a part bounds that of the whole, and ascending data no longer replaces the buffer
  // again and again.
  void start(const RowView<Key>& row, int64_t begin, int64_t end) {
    reset();
    const int64_t sample = std::max<int64_t>(1024, 8 * k_);
    if ((end - begin) / 32 < sample) return;
    const int64_t spread = (end - begin) / sample;
    for (int64_t i = 0; i < sample && open_; i += kSampleBlock)
      append(row, begin + i * spread, spread, static_cast<int>(std::min(kSampleBlock, sample - i)));
    if (count_ < k_) return reset();
    cut();
    const Key bound = W::key(buffer_[k_ - 1]);
    reset();
    floor_ = bound;  // not above it: its equals may come earlier in the row
  }

  // Takes elements [begin, end), at most a block; calls come in ascending order.
  void scan(const RowView<Key>& row, int64_t begin, int64_t end) {
    const int count = static_cast<int>(end - begin);
    if (!open_ || (row.step == 1 && floor_ > 0 && best_of(row.bits + begin, count) < floor_))
      return;
    append(row, begin, 1, count);
  }

  // Puts the best, at most k, in order.
  void finish() {
    if (radix_ && count_ >= kRadix) {
      best_ = radix_sort<Key, Word>(buffer_, buffer_ + capacity_, count_);
      count_ = std::min(count_, k_);
      return;
    }
    best_ = buffer_;
    if (k_ <= 16 && 0 < count_ && count_ <= 2 * kBlock) {
      count_ = insert_best(buffer_, count_, k_);
      return;
    }
    if (count_ > k_) cut();
    std::sort(buffer_, buffer_ + count_, std::greater<>());
  }

  const Word* begin() const { return best_; }
  const Word* end() const { return best_ + count_; }

 private:
  static constexpr int64_t kRadix = 2048;
  static constexpr int64_t kSampleBlock = 64;  // the smallest block in use
  static bool keeps_all(int64_t k, int64_t n) { return k >= n / 4 || n <= 64; }
  static bool uses_radix(int64_t k, int64_t n) { return k >= n / 4 && n >= kRadix; }

  void reset() {
    count_ = 0;
    floor_ = 0;
    open_ = true;
  }

  Key best_of(const Key* bits, int count) const {
#if defined(__x86_64__)
    if (kHasAvx2) return greatest_avx2(bits, count, codec_);
#endif
    return greatest(bits, count, codec_);
  }

  void append(const RowView<Key>& row, int64_t first, int64_t spread, int count) {
    if (count_ + count > capacity_) cut();
    if (!open_) return;
    Word* out = buffer_ + count_;
#if defined(__x86_64__)
    if (kHasAvx2)
      out = collect_avx2(row, first, spread, count, codec_, floor_, out);
    else
#endif
      out = collect(row, first, spread, count, codec_, floor_, out);
    count_ = out - buffer_;
  }

  // Keeps the k best; elements that come later must beat the last of them, for an equal key loses.
  void cut() {
    std::nth_element(buffer_, buffer_ + (k_ - 1), buffer_ + count_, std::greater<>());
    count_ = k_;
    floor_ = static_cast<Key>(W::key(buffer_[k_ - 1]) + 1);
    open_ = floor_ != 0;  // nothing beats the greatest key
  }

  KeyCodec<Key> codec_{};
  int64_t k_ = 0;
  int64_t capacity_ = 0;
  int64_t count_ = 0;
  bool radix_ = false;
  bool open_ = true;  // false where no later element can be wanted
  Key floor_ = 0;     // elements below it are not wanted
  Word* buffer_ = nullptr;
  const Word* best_ = nullptr;
};

}  // namespace gpuprims
