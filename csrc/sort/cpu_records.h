// What the CPU sorts: a key alone, or a key and the index of its element. Only bits of the key are
// compared, so a sort must be stable.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "sort/codec.h"

namespace gpuprims {

// A 32-bit key or narrower in the upper half, a 32-bit index in the lower.
struct Packed {
  uint64_t word;
  uint64_t key() const { return word >> 32; }
  int64_t index() const { return static_cast<uint32_t>(word); }
  static Packed make(uint64_t key, int64_t index) {
    return {key << 32 | static_cast<uint32_t>(index)};
  }
};

struct Wide {
  uint64_t bits;
  int64_t at;
  uint64_t key() const { return bits; }
  int64_t index() const { return at; }
  static Wide make(uint64_t key, int64_t index) { return {key, index}; }
};

template <class Key>
struct Bare {
  Key bits;
  uint64_t key() const { return bits; }
  static Bare make(uint64_t key, int64_t) { return {static_cast<Key>(key)}; }
};

// Bits [low, top) of keys.
struct BitRange {
  int low = 0;
  int top = 0;
  int width() const { return top - low; }
};

constexpr int kDigit = 8;
constexpr int kWideDigit = 11;            // in cache, where that saves a pass
constexpr int64_t kWideFrom = 1 << 14;    // records that are worth 2,048 counters
constexpr int64_t kTiny = 48;             // records that insertion sorts fastest
constexpr int64_t kCacheBytes = 8 << 20;  // records and their second buffer that stay in cache

template <class Record>
class Sorter {
 public:
  // Sorts a[0, n), stably, by bits of the key; b is as large. Returns where the result is.
  static Record* sort(Record* a, Record* b, int64_t n, BitRange bits) {
    if (n <= kTiny) {
      insertion(a, n, bits);
      return a;
    }
    return lsd(a, b, n, bits);
  }

  // The same with the result in a or in b as asked; most significant digits first while the records
  // do not fit into cache.
  static void sort_to(Record* a, Record* b, int64_t n, BitRange bits, bool into_b) {
    if (bits.width() > kDigit && n * 2 * int64_t(sizeof(Record)) > kCacheBytes) {
      const BitRange digit{bits.top - kDigit, bits.top};
      int64_t starts[(1 << kDigit) + 1];
      if (!split(a, b, n, digit, starts)) return sort_to(a, b, n, {bits.low, digit.low}, into_b);
      for (int d = 0; d < 1 << kDigit; ++d) {
        const int64_t begin = starts[d], count = starts[d + 1] - begin;
        if (count > 0) sort_to(b + begin, a + begin, count, {bits.low, digit.low}, !into_b);
      }
      return;
    }
    Record* const done = sort(a, b, n, bits);
    if ((done == b) != into_b && n > 0)
      std::memcpy(static_cast<void*>(into_b ? b : a), done, n * sizeof(Record));
  }

  static uint32_t digit_of(const Record& r, BitRange digit) {
    return static_cast<uint32_t>(r.key() >> digit.low) & ((1u << digit.width()) - 1);
  }

 private:
  static void insertion(Record* a, int64_t n, BitRange bits) {
    if (bits.width() == 0) return;
    const uint64_t mask = (~uint64_t{0} >> (64 - bits.width())) << bits.low;
    for (int64_t i = 1; i < n; ++i) {
      const Record r = a[i];
      const uint64_t key = r.key() & mask;
      int64_t j = i;
      for (; j > 0 && (a[j - 1].key() & mask) > key; --j) a[j] = a[j - 1];
      a[j] = r;
    }
  }

  static Record* lsd(Record* a, Record* b, int64_t n, BitRange bits) {
    if (n > UINT32_MAX) return wide_lsd(a, b, n, bits);
    const int narrow = (bits.width() + kDigit - 1) / kDigit;
    const int wide = (bits.width() + kWideDigit - 1) / kWideDigit;
    return n >= kWideFrom && wide < narrow ? lsd<kWideDigit>(a, b, n, bits)
                                           : lsd<kDigit>(a, b, n, bits);
  }

  template <int kBits>
  static Record* lsd(Record* a, Record* b, int64_t n, BitRange bits) {
    constexpr int kMost = (64 + kBits - 1) / kBits;
    constexpr uint32_t kAll = (1u << kBits) - 1;
    uint32_t counts[kMost][kAll + 1];
    const int passes = (bits.width() + kBits - 1) / kBits;
    std::memset(counts, 0, sizeof(counts[0]) * passes);
    for (int64_t i = 0; i < n; ++i) {
      uint64_t key = a[i].key() >> bits.low;
      for (int p = 0; p < passes; ++p, key >>= kBits) ++counts[p][key & kAll];
    }
    for (int p = 0; p < passes; ++p) {
      const BitRange digit{bits.low + p * kBits, std::min(bits.top, bits.low + (p + 1) * kBits)};
      const uint32_t last = (1u << digit.width()) - 1;
      if (p == passes - 1 && digit.width() < kBits)  // bits above the range were counted too
        for (uint32_t d = last + 1; d <= kAll; ++d) counts[p][d & last] += counts[p][d];
      if (counts[p][digit_of(a[0], digit)] == n) continue;
      uint32_t sum = 0;
      for (uint32_t d = 0; d <= last; ++d) {
        const uint32_t count = counts[p][d];
        counts[p][d] = sum;
        sum += count;
      }
      for (int64_t i = 0; i < n; ++i) b[counts[p][digit_of(a[i], digit)]++] = a[i];
      std::swap(a, b);
    }
    return a;
  }

  static Record* wide_lsd(Record* a, Record* b, int64_t n, BitRange bits) {
    for (int low = bits.low; low < bits.top; low += kDigit) {
      int64_t starts[(1 << kDigit) + 1];
      if (split(a, b, n, {low, std::min(bits.top, low + kDigit)}, starts)) std::swap(a, b);
    }
    return a;
  }

  // One stable counting pass from a to b; false where the digit is constant, and nothing is moved.
  static bool split(const Record* a, Record* b, int64_t n, BitRange digit, int64_t* starts) {
    constexpr int kBins = 1 << kDigit;
    int64_t at[kBins] = {};
    for (int64_t i = 0; i < n; ++i) ++at[digit_of(a[i], digit)];
    int64_t sum = 0;
    bool moved = true;
    for (int d = 0; d < kBins; ++d) {
      moved &= at[d] != n;
      starts[d] = sum;
      sum += std::exchange(at[d], sum);
    }
    starts[kBins] = n;
    if (moved)
      for (int64_t i = 0; i < n; ++i) b[at[digit_of(a[i], digit)]++] = a[i];
    return moved;
  }
};

}  // namespace gpuprims
