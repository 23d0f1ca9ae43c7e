// Selection of the k best of a row on the host, by a running threshold: an
// element enters the buffer only if it reaches the k-th best seen so far, and
// the buffer is cut back to k when it is full. Random data appends O(k log(n /
// k)) elements, so a long row costs one read. No PyTorch here.
#pragma once
#include "common/radix_keys.h"
#include "topk/cpu_words.h"

namespace gpuprims {

// A row of `bits` with an optional mask of bytes (0 drops the element); steps
// in elements.
template <class Key>
struct RowView {
  const Key* bits;
  int64_t step;
  const uint8_t* mask;
  int64_t mask_step;
};

constexpr int kBlock = 256;  // elements that are tested and appended together

// The two loops that read the input. Always inlined, so that each is compiled
// for the caller's instruction set.
template <class Key>
[[gnu::always_inline]] inline Key greatest(const Key* bits, int count, KeyCodec<Key> codec) {
  Key best = 0;
  for (int i = 0; i < count; ++i) best = std::max(best, codec.encode(bits[i]));
  return best;
}

// Greatest keys of the `groups` columns of a matrix that `rows` stretches of a
// row make.
template <class Key>
[[gnu::always_inline]] inline void group_maxima(const Key* bits, int64_t rows, int groups,
                                                KeyCodec<Key> codec, Key* most) {
  for (int g = 0; g < groups; ++g) most[g] = 0;
  for (int64_t r = 0; r < rows; ++r, bits += groups)
    for (int g = 0; g < groups; ++g) most[g] = std::max(most[g], codec.encode(bits[g]));
}

// Appends the words of the elements first, first + spread, ... whose keys reach
// `floor`; returns the new end.
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
template <class Key>
[[gnu::target("avx2")]] void group_maxima_avx2(const Key* bits, int64_t rows, int groups,
                                               KeyCodec<Key> codec, Key* most) {
  group_maxima(bits, rows, groups, codec, most);
}
template <class Key, class Word>
[[gnu::target("avx2")]] Word* collect_avx2(const RowView<Key>& row, int64_t first, int64_t spread,
                                           int count, KeyCodec<Key> codec, Key floor, Word* out) {
  return collect(row, first, spread, count, codec, floor, out);
}
#endif

template <class Key, class Word>
class Selector {
  using W = Words<Key, Word>;

 public:
  // The buffer, in words, for rows of n taken in blocks. Where k is a sizeable
  // part, cutting back does not pay: all words are kept. From kRadix on words
  // are sorted by digits, which takes more room.
  static int64_t capacity(int64_t k, int64_t n, int64_t block) {
    return keeps_all(k, n) ? n : 2 * k + block;
  }
  static int64_t buffer_words(int64_t k, int64_t n, int64_t block) {
    const int64_t sorted = sorts_all(k, n) ? n : k >= kRadix ? k : 0;
    return capacity(k, n, block) + sorted * (sizeof(Key) == 8 ? 2 : 1);
  }

  Selector() = default;
  Selector(KeyCodec<Key> codec, int64_t k, int64_t n, int64_t block, Word* buffer)
      : codec_(codec),
        k_(k),
        capacity_(capacity(k, n, block)),
        all_(sorts_all(k, n)),
        buffer_(buffer) {}

  // Starts on elements [begin, end). The k-th best of a part bounds that of the
  // whole: of the greatest of groups in short rows, of a spread sample in long
  // ones, where ascending data no longer replaces the buffer again and again.
  void start(const RowView<Key>& row, int64_t begin, int64_t end) {
    reset();
    const int64_t n = end - begin, sample = std::max<int64_t>(1024, 8 * k_);
    if (n / 32 < sample) {
      const int64_t groups = std::max<int64_t>(64, 2 * k_);
      if (row.step == 1 && !row.mask && groups <= kMostGroups && n >= 4 * groups)
        floor_ = bound_by_groups(row.bits + begin, n / groups, static_cast<int>(groups));
      return;
    }
    const int64_t spread = n / sample;
    for (int64_t i = 0; i < sample && open_; i += kSampleBlock)
      append(row, begin + i * spread, spread, static_cast<int>(std::min(kSampleBlock, sample - i)));
    if (count_ < k_) return reset();
    cut();
    const Key bound = W::key(buffer_[k_ - 1]);
    reset();
    floor_ = bound;  // not above it: its equals may come earlier in the row
  }

  // Takes elements [begin, end), at most a block; calls come in ascending
  // order.
  void scan(const RowView<Key>& row, int64_t begin, int64_t end) {
    const int count = static_cast<int>(end - begin);
    if (!open_ || (row.step == 1 && floor_ > 0 && best_of(row.bits + begin, count) < floor_))
      return;
    append(row, begin, 1, count);
  }

  // Puts the best, at most k, in order.
  void finish() {
    best_ = buffer_;
    if (k_ <= 16 && 0 < count_ && count_ <= 2 * kBlock) {
      count_ = insert_best(buffer_, count_, k_);
      return;
    }
    if (count_ > k_ && !all_) cut();
    if (count_ >= kRadix && (all_ || k_ >= kRadix))
      best_ = sort_words<Key>(buffer_, buffer_ + capacity_, count_);
    else
      std::sort(buffer_, buffer_ + count_, std::greater<>());
    count_ = std::min(count_, k_);
  }

  const Word* begin() const { return best_; }
  const Word* end() const { return best_ + count_; }

 private:
  static constexpr int64_t kRadix = 128;  // below it std::sort is as fast
  static constexpr int64_t kMostGroups = 2048;
  static constexpr int64_t kSampleBlock = 64;  // the smallest block in use
  static bool keeps_all(int64_t k, int64_t n) { return k >= n / 4 || n <= 64; }
  static bool sorts_all(int64_t k, int64_t n) { return k >= n / 2 && n >= kRadix; }

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

  // k groups hold an element that reaches it.
  Key bound_by_groups(const Key* bits, int64_t rows, int groups) const {
    Key most[kMostGroups];
#if defined(__x86_64__)
    if (kHasAvx2)
      group_maxima_avx2(bits, rows, groups, codec_, most);
    else
#endif
      group_maxima(bits, rows, groups, codec_, most);
    std::nth_element(most, most + (k_ - 1), most + groups, std::greater<>());
    return most[k_ - 1];
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

  // Keeps the k best; elements that come later must beat the last of them, for
  // an equal key loses.
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
  bool all_ = false;  // all elements are kept and sorted
  bool open_ = true;  // false where no later element can be wanted
  Key floor_ = 0;     // elements below it are not wanted
  Word* buffer_ = nullptr;
  const Word* best_ = nullptr;
};

}  // namespace gpuprims
