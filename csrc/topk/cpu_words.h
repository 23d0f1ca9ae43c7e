// What topk sorts on the host: a key and its index in one integer.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

namespace gpuprims {

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

// Sorts words by descending key: least significant digit first, stable. Returns where the result
// lies, `from` or `to`.
template <int kDigitBits, class Key, class Word>
Word* radix_sort(Word* from, Word* to, int64_t count) {
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

// The same, then equal keys by index.
template <class Key, class Word>
Word* sort_words(Word* from, Word* to, int64_t count) {
  constexpr int64_t kLong = 2048;  // worth 2,048 counters a digit
  Word* const words = count < kLong || sizeof(Key) < 4 ? radix_sort<8, Key>(from, to, count)
                                                       : radix_sort<11, Key>(from, to, count);
  const auto key = [&](int64_t i) { return Words<Key, Word>::key(words[i]); };
  for (int64_t i = 1, first = 0; i <= count; ++i) {
    if (i < count && key(i) == key(first)) continue;
    if (i - first > 1 && !std::is_sorted(words + first, words + i, std::greater<>()))
      std::sort(words + first, words + i, std::greater<>());
    first = i;
  }
  return words;
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

}  // namespace gpuprims
