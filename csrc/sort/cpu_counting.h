// What a row on the CPU is sorted from and to, and rows of one and two bytes, which are counted.
#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <numeric>

#include "common/stable.h"
#include "sort/cpu_parallel.h"

namespace gpuprims {
namespace cpu_sort {

constexpr int64_t kGrain = 1 << 15;    // elements that are worth a thread
constexpr int64_t kLongRow = 1 << 17;  // elements from which a row is worth several threads

struct Problem {
  const char* op = "sort";
  Dtype dtype = Dtype::f32;
  bool descending = false;
  BitRange bits;
  const void* input = nullptr;  // [total], rows one after another
  void* values = nullptr;       // null: not wanted
  void* indices = nullptr;      // null: keys alone
  bool wide_indices = true;
  int64_t index_base = 0;  // added to the indices of a row
};

// Asks for large pages: touching a small one for the first time costs more than sorting what it
// holds.
inline void advise(void* memory, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kPage = 2 << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage,
                  end = (reinterpret_cast<uintptr_t>(memory) + bytes) / kPage * kPage;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

template <class T>
std::unique_ptr<T[], Free> buffer(const char* op, int64_t count) {
  constexpr int64_t kPage = 2 << 20;
  const int64_t bytes = count * int64_t(sizeof(T));
  const size_t unit = bytes >= 2 * kPage ? kPage : 64;
  void* const memory = std::aligned_alloc(unit, (bytes / unit + 1) * unit);
  check(memory != nullptr, op, ": out of memory allocating ", bytes, " bytes");
  advise(memory, bytes);
  return std::unique_ptr<T[], Free>(static_cast<T*>(memory));
}

template <class Key>
struct Writer {
  const Problem& p;
  const Key* row;  // of the input
  int64_t start;   // of the row
  KeyCodec<Key> codec;
  Key zero, nan;      // keys whose elements have several bit patterns
  int low = 0;        // records hold keys from this bit on,
  uint64_t rest = 0;  // and these are the bits that they leave out

  Writer(const Problem& problem, const Key* from, int64_t at)
      : p(problem), row(from), start(at), codec(make_codec<Key>(p.dtype, !p.descending)) {
    zero = codec.encode(0);
    nan = static_cast<Key>(static_cast<Key>(~Key(0)) ^ codec.invert);
  }

  // The element of a key; of zeros and NaN as it was.
  Key value(Key key, int64_t index) const {
    const bool several = codec.float_mask && (key == zero || key == nan);
    return several ? row[index] : codec.decode(key);
  }

  template <class Record>
  void write(const Record* from, int64_t begin, int64_t end) const {
    Key* const values = p.values ? static_cast<Key*>(p.values) + start : nullptr;
    for (int64_t i = begin; i < end && values; ++i)
      values[i] = value(static_cast<Key>(from[i].key() << low | rest), from[i].index());
    const int64_t base = p.index_base;
    if (p.wide_indices) {
      int64_t* const indices = static_cast<int64_t*>(p.indices) + start;
      for (int64_t i = begin; i < end; ++i) indices[i] = from[i].index() + base;
    } else {
      int32_t* const indices = static_cast<int32_t*>(p.indices) + start;
      for (int64_t i = begin; i < end; ++i)
        indices[i] = static_cast<int32_t>(from[i].index() + base);
    }
  }
};

// A row of bytes: one counting pass from the input to the outputs.
inline void byte_row(const Writer<uint8_t>& writer, BitRange bits, int64_t n, int64_t slots) {
  const Problem& p = writer.p;
  constexpr int64_t kBins = 256;
  uint8_t digit[kBins];
  for (int b = 0; b < kBins; ++b)
    digit[b] = writer.codec.encode(static_cast<uint8_t>(b)) >> bits.low & ((1 << bits.width()) - 1);
  std::vector<int64_t> at(slots * kBins, 0);
  in_slots(slots, [&](int64_t slot) {
    int64_t counts[2][kBins] = {};  // two, so that equal neighbours do not wait for each other
    for (int64_t i = n * slot / slots; i < n * (slot + 1) / slots; ++i)
      ++counts[i & 1][writer.row[i]];
    for (int64_t b = 0; b < kBins; ++b) at[slot * kBins + digit[b]] += counts[0][b] + counts[1][b];
  });
  int64_t sum = 0;
  for (int64_t d = 0; d < kBins; ++d)
    for (int64_t slot = 0; slot < slots; ++slot) sum += std::exchange(at[slot * kBins + d], sum);
  uint8_t* values = p.values ? static_cast<uint8_t*>(p.values) + writer.start : nullptr;
  const bool whole = bits.width() == 8;
  if (values && whole) {  // a digit has one byte: its elements are a run of it
    uint8_t byte_of[kBins];
    for (int b = 0; b < kBins; ++b) byte_of[digit[b]] = static_cast<uint8_t>(b);
    for (int64_t d = 0; d < kBins; ++d)
      std::memset(values + at[d], byte_of[d], (d + 1 < kBins ? at[d + 1] : n) - at[d]);
    values = nullptr;
  }
  const auto move = [&](auto* indices) {
    using Index = std::remove_reference_t<decltype(*indices)>;
    indices += writer.start;
    in_slots(slots, [&](int64_t slot) {
      const int64_t begin = n * slot / slots, end = n * (slot + 1) / slots;
      const uint8_t* const row = writer.row;
      int64_t next[kBins];
      if (whole) {  // places by byte: one look-up less
        for (int b = 0; b < kBins; ++b) next[b] = at[slot * kBins + digit[b]];
        for (int64_t i = begin; i < end; ++i)
          indices[next[row[i]]++] = static_cast<Index>(i + p.index_base);
        return;
      }
      std::copy(&at[slot * kBins], &at[slot * kBins] + kBins, next);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t to = next[digit[row[i]]]++;
        if (values) values[to] = row[i];
        indices[to] = static_cast<Index>(i + p.index_base);
      }
    });
  };
  if (p.wide_indices)
    move(static_cast<int64_t*>(p.indices));
  else
    move(static_cast<int32_t*>(p.indices));
}

// A row that is sorted already.
template <class Key>
void copy_row(const Writer<Key>& writer, int64_t n, int64_t slots) {
  const Problem& p = writer.p;
  Key* const values = p.values ? static_cast<Key*>(p.values) + writer.start : nullptr;
  const auto fill = [&](auto* indices) {
    using Index = std::remove_reference_t<decltype(*indices)>;
    indices += writer.start;
    in_slots(slots, [&](int64_t slot) {
      const int64_t begin = n * slot / slots, end = n * (slot + 1) / slots;
      if (values) std::copy(writer.row + begin, writer.row + end, values + begin);
      std::iota(indices + begin, indices + end, static_cast<Index>(p.index_base + begin));
    });
  };
  if (p.wide_indices)
    fill(static_cast<int64_t*>(p.indices));
  else
    fill(static_cast<int32_t*>(p.indices));
}

// A row of two-byte keys: a counting pass from the input to records, and one to the outputs.
template <class Record>
void two_byte_row(const Writer<uint16_t>& writer, int64_t n, Record* records, int64_t slots) {
  const Problem& p = writer.p;
  constexpr int64_t kBins = 256;
  uint16_t* const values = p.values ? static_cast<uint16_t*>(p.values) + writer.start : nullptr;
  const auto own = buffer<uint16_t>(p.op, values ? 0 : n);
  uint16_t* const keys = values ? values : own.get();  // until records hold them
  std::vector<int64_t> at(slots * kBins);
  // Runs body(begin, end, places) in slots: places of a digit's elements in a stable order.
  const auto pass = [&](const auto& digit, const auto& body) {
    in_slots(slots, [&](int64_t slot) {
      int64_t counts[2][kBins] = {};  // two, so that equal neighbours do not wait for each other
      for (int64_t i = n * slot / slots; i < n * (slot + 1) / slots; ++i) ++counts[i & 1][digit(i)];
      for (int64_t d = 0; d < kBins; ++d) at[slot * kBins + d] = counts[0][d] + counts[1][d];
    });
    int64_t sum = 0;
    for (int64_t d = 0; d < kBins; ++d)
      for (int64_t slot = 0; slot < slots; ++slot) sum += std::exchange(at[slot * kBins + d], sum);
    in_slots(slots, [&](int64_t slot) {
      int64_t next[kBins];
      std::copy(&at[slot * kBins], &at[slot * kBins] + kBins, next);
      body(n * slot / slots, n * (slot + 1) / slots, next);
    });
  };
  std::vector<char> rises(slots);
  in_slots(slots, [&](int64_t slot) {
    const int64_t begin = n * slot / slots, end = n * (slot + 1) / slots;
    for (int64_t i = begin; i < end; ++i) keys[i] = writer.codec.encode(writer.row[i]);
    rises[slot] = std::is_sorted(keys + begin, keys + end);  // of others it reads little
  });
  bool sorted = true;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int64_t seam = n * slot / slots;
    sorted &= rises[slot] && (slot == 0 || keys[seam - 1] <= keys[seam]);
  }
  if (sorted) return copy_row(writer, n, slots);
  pass([&](int64_t i) { return keys[i] & 255; },
       [&](int64_t begin, int64_t end, int64_t* next) {
         for (int64_t i = begin; i < end; ++i)
           records[next[keys[i] & 255]++] = Record::make(keys[i], i);
       });
  const auto move = [&](auto* indices) {
    using Index = std::remove_reference_t<decltype(*indices)>;
    indices += writer.start;
    pass([&](int64_t i) { return records[i].key() >> 8; },
         [&](int64_t begin, int64_t end, int64_t* next) {
           for (int64_t i = begin; i < end; ++i) {
             const Record r = records[i];
             const int64_t to = next[r.key() >> 8]++;
             indices[to] = static_cast<Index>(r.index() + p.index_base);
             if (values) values[to] = writer.value(static_cast<uint16_t>(r.key()), r.index());
           }
         });
  };
  if (p.wide_indices)
    move(static_cast<int64_t*>(p.indices));
  else
    move(static_cast<int32_t*>(p.indices));
}

}  // namespace cpu_sort
}  // namespace gpuprims
