// What topk sorts on the host: a key and its index in one integer.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

namespace gpuprims {

// Word = key above the inverted index. Words are distinct and the larger is the
// better, ties included: plain integer sorts give the contract's order, and the
// answer does not depend on how a row was cut.
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

// Sorts words by descending key(word), a KeyBits-bit number: least significant
// digit first, stable. Returns where the result lies, `from` or `to`.
template <int KeyBits, int DigitBits, class Word, class KeyOfWord>
Word* radix_sort(Word* from, Word* to, uint32_t count, const KeyOfWord& key) {
  constexpr int kDigits = (KeyBits + DigitBits - 1) / DigitBits, kSize = 1 << DigitBits;
  const auto digit = [&](Word word, int pass) {
    return static_cast<uint32_t>(~key(word) >> (pass * DigitBits)) & (kSize - 1);
  };
  uint32_t counts[kDigits][kSize] = {};
  for (uint32_t i = 0; i < count; ++i)
    for (int pass = 0; pass < kDigits; ++pass) ++counts[pass][digit(from[i], pass)];
  for (int pass = 0; pass < kDigits; ++pass) {
    uint32_t* place = counts[pass];
    if (place[digit(from[0], pass)] == count) continue;  // a digit that all share
    for (uint32_t sum = 0, d = 0; d < kSize; ++d) sum += std::exchange(place[d], sum);
    for (uint32_t i = 0; i < count; ++i) to[place[digit(from[i], pass)]++] = from[i];
    std::swap(from, to);
  }
  return from;
}

// Sorts words from the greatest; `to` has room for them, and for as many again
// of 8-byte keys.
template <class Key, class Word>
Word* sort_words(Word* from, Word* to, int64_t count) {
  using W = Words<Key, Word>;
  constexpr int64_t kLong = 2048;  // worth 2,048 counters a digit
  if (count > int64_t{UINT32_MAX}) {
    std::sort(from, from + count, std::greater<>());
    return from;
  }
  const auto n = static_cast<uint32_t>(count);
  const auto sort = [n]<int KeyBits>(auto* a, auto* b, const auto& key) {
    return n < kLong || KeyBits < 32 ? radix_sort<KeyBits, 8>(a, b, n, key)
                                     : radix_sort<KeyBits, 11>(a, b, n, key);
  };
  int low = 0;  // of the bits that were sorted by
  Word* words;
  if constexpr (sizeof(Key) <= 4) {
    words = sort.template operator()<8 * sizeof(Key)>(
        from, to, [](Word word) { return static_cast<Key>(W::key(word)); });
  } else {  // by the first 32 bits that differ, with places: half the bytes
    Key any = 0, all = ~Key(0);
    for (uint32_t i = 0; i < n; ++i) any |= W::key(from[i]), all &= W::key(from[i]);
    low = any == all ? 0 : std::max(0, 32 - __builtin_clzll(any ^ all));
    uint64_t* const packed = reinterpret_cast<uint64_t*>(to + n);
    for (uint32_t i = 0; i < n; ++i)
      packed[i] = static_cast<uint64_t>(static_cast<uint32_t>(W::key(from[i]) >> low)) << 32 | i;
    const uint64_t* const sorted = sort.template operator()<32>(
        packed, packed + n, [](uint64_t word) { return static_cast<uint32_t>(word >> 32); });
    words = to;
    for (uint32_t i = 0; i < n; ++i) to[i] = from[static_cast<uint32_t>(sorted[i])];
  }
  const auto key = [&](uint32_t i) { return W::key(words[i]) >> low; };
  for (uint32_t i = 1, first = 0; i <= n; ++i) {  // equals by what is left
    if (i < n && key(i) == key(first)) continue;
    if (i - first > 1 && !std::is_sorted(words + first, words + i, std::greater<>()))
      std::sort(words + first, words + i, std::greater<>());
    first = i;
  }
  return words;
}

// Moves the best, at most k, to the front in order. Cheaper than a heap up to k
// = 16 or so.
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

constexpr int kTinyRow = 32;

// order[r] = the index of the key of rank r, of at most kTinyRow: all are compared with all, in
// vectors and without branches.
template <class Key>
[[gnu::always_inline]] inline void rank_keys(const Key* keys, int count, int32_t* order) {
  using Word = std::conditional_t<sizeof(Key) <= 2, int32_t, int64_t>;
  Word words[kTinyRow] = {};
  for (int i = 0; i < count; ++i) words[i] = Word(keys[i]) << 8 | Word(kTinyRow - i);
  for (int i = 0; i < count; ++i) {
    Word rank = 0;
    for (int j = 0; j < kTinyRow; ++j) rank += words[j] > words[i];
    order[rank] = i;
  }
}

#if defined(__x86_64__)
template <class Key>
[[gnu::target("avx2")]] void rank_keys_avx2(const Key* keys, int count, int32_t* order) {
  rank_keys(keys, count, order);
}
inline const bool kHasAvx2 = __builtin_cpu_supports("avx2");
#endif

template <class Key>
void rank_best(const Key* keys, int count, int32_t* order) {
#if defined(__x86_64__)
  if (kHasAvx2) return rank_keys_avx2(keys, count, order);
#endif
  rank_keys(keys, count, order);
}

}  // namespace gpuprims
