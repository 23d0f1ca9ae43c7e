// Rows on the CPU: elements to records, the sort, records to values and indices.
#pragma once
#include <sys/mman.h>

#include <cstdlib>

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

// Reads elements [begin, end) of a row into records.
template <class Key, class Record, class Codec>
KeyFacts load(const Key* row, Record* to, int64_t begin, int64_t end, const Codec& codec) {
  KeyFacts facts;
  uint64_t before = 0;
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t key = codec.encode(row[i]);
    to[i] = Record::make(key, i);
    facts.any |= key;
    facts.all &= key;
    facts.sorted &= key >= before;
    before = key;
  }
  return facts;
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

  template <class Record>
  void write(const Record* from, int64_t begin, int64_t end) const {
    Key* const values = p.values ? static_cast<Key*>(p.values) + start : nullptr;
    for (int64_t i = begin; i < end && values; ++i) {
      const Key key = static_cast<Key>(from[i].key() << low | rest);
      const bool several = codec.float_mask && (key == zero || key == nan);
      values[i] = several ? row[from[i].index()] : codec.decode(key);
    }
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

int64_t slots_for(int64_t work) {
  return work < 2 * kGrain ? 1 : std::min<int64_t>(work / kGrain, torch::stable::get_num_threads());
}

// What a read of the row tells, without records.
template <class Key>
KeyFacts facts_parallel(const Key* row, int64_t n, const KeyCodec<Key>& codec, int64_t slots) {
  std::vector<KeyFacts> facts(slots);
  in_slots(slots, [&](int64_t slot) {
    KeyFacts mine;
    for (int64_t i = n * slot / slots; i < n * (slot + 1) / slots; ++i) {
      const uint64_t key = codec.encode(row[i]);
      mine.any |= key;
      mine.all &= key;
    }
    facts[slot] = mine;
  });
  KeyFacts all;
  for (const KeyFacts& mine : facts) all.any |= mine.any, all.all &= mine.all;
  return all;
}

template <class Key, class Record, class Codec>
KeyFacts load_parallel(const Key* row, Record* a, int64_t n, const Codec& codec, BitRange bits,
                       int64_t slots) {
  std::vector<KeyFacts> facts(slots);
  in_slots(slots, [&](int64_t slot) {
    facts[slot] = load(row, a, n * slot / slots, n * (slot + 1) / slots, codec);
  });
  KeyFacts all = facts[0];
  for (int64_t slot = 1; slot < slots; ++slot) {
    all.any |= facts[slot].any;
    all.all &= facts[slot].all;
    const int64_t seam = n * slot / slots;
    all.sorted &= facts[slot].sorted && a[seam - 1].key() <= a[seam].key();
  }
  return all;
}

// Sorts records that the codec makes, by `bits` of what it makes of a key.
template <class Record, class Key, class Codec>
void long_row(const Writer<Key>& writer, const Codec& codec, BitRange bits, bool whole, int64_t n,
              int64_t slots) {
  const Problem& p = writer.p;
  // The second buffer lies in the output where that is as wide.
  const bool fits = p.wide_indices && sizeof(Record) == 8;
  const auto a = buffer<Record>(p.op, n), own = buffer<Record>(p.op, fits ? 0 : n);
  Record* const b =
      fits ? reinterpret_cast<Record*>(static_cast<int64_t*>(p.indices) + writer.start) : own.get();
  const KeyFacts facts = load_parallel(writer.row, a.get(), n, codec, bits, slots);
  if (!(whole && facts.sorted))
    ParallelSorter<Record>(n, slots).sort(a.get(), b, n, facts.varying(bits), false);
  in_slots(slots,
           [&](int64_t slot) { writer.write(a.get(), n * slot / slots, n * (slot + 1) / slots); });
}

// 32 bits of a key, of which the others agree in the whole row.
template <class Key>
struct WindowCodec {
  KeyCodec<Key> codec;
  int low;
  uint64_t encode(Key bits) const {
    return static_cast<uint32_t>(static_cast<uint64_t>(codec.encode(bits)) >> low);
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

// Keys and indices of one row by all threads.
template <class Key, class Record>
void long_row(const Problem& p, int64_t start, int64_t n, int64_t slots) {
  Writer<Key> writer(p, static_cast<const Key*>(p.input) + start, start);
  const bool whole = p.bits.width() == int(sizeof(Key)) * 8;
  if constexpr (sizeof(Key) == 1) {
    byte_row(writer, p.bits, n, slots);
    return;
  }
  if constexpr (sizeof(Key) == 8) {
    if (n <= int64_t{UINT32_MAX}) {  // one more read, where it halves the records
      const KeyFacts facts = facts_parallel(writer.row, n, writer.codec, slots);
      const BitRange varying = facts.varying({0, 64});
      if (varying.width() <= 32) {
        const int low = varying.low;
        writer.low = low;
        writer.rest = facts.all & ~(uint64_t{UINT32_MAX} << low);
        const auto inside = [&](int bit) { return std::clamp(bit - low, 0, 32); };
        return long_row<Packed>(writer, WindowCodec<Key>{writer.codec, low},
                                {inside(p.bits.low), inside(p.bits.top)}, whole, n, slots);
      }
    }
  }
  long_row<Record>(writer, writer.codec, p.bits, whole, n, slots);
}

template <class Key>
void decode(Key* keys, int64_t begin, int64_t end, const OrderCodec<Key>& codec) {
  for (int64_t i = begin; i < end; ++i) keys[i] = codec.decode(keys[i]);
}

template <class Key>
void long_row_keys(const Problem& p, int64_t start, int64_t n, int64_t slots) {
  using Record = Bare<Key>;
  const auto codec = make_order_codec<Key>(p.dtype, p.descending);
  const Key* const row = static_cast<const Key*>(p.input) + start;
  Record* const a = reinterpret_cast<Record*>(static_cast<Key*>(p.values) + start);
  const KeyFacts facts = load_parallel(row, a, n, codec, p.bits, slots);
  if (!facts.sorted) {
    const auto b = buffer<Record>(p.op, n);
    ParallelSorter<Record>(n, slots).sort(a, b.get(), n, facts.varying(p.bits), false);
  }
  in_slots(slots, [&](int64_t slot) {
    decode(reinterpret_cast<Key*>(a), n * slot / slots, n * (slot + 1) / slots, codec);
  });
}

// One row by the thread that calls; a and b hold a row each.
template <class Key, class Record>
void short_row(const Problem& p, int64_t start, int64_t n, Record* a, Record* b) {
  const Key* const row = static_cast<const Key*>(p.input) + start;
  const Writer<Key> writer(p, row, start);
  if constexpr (sizeof(Key) == 1) {
    if (n > 256) return byte_row(writer, p.bits, n, 1);
  }
  const KeyFacts facts = load(row, a, 0, n, writer.codec);
  const bool whole = p.bits.width() == int(sizeof(Key)) * 8;
  if (!(whole && facts.sorted)) Sorter<Record>::sort_to(a, b, n, facts.varying(p.bits), false);
  writer.write(a, 0, n);
}

template <class Key>
void short_row_keys(const Problem& p, int64_t start, int64_t n, Bare<Key>* b) {
  const auto codec = make_order_codec<Key>(p.dtype, p.descending);
  Key* const values = static_cast<Key*>(p.values) + start;
  Bare<Key>* const a = reinterpret_cast<Bare<Key>*>(values);
  const KeyFacts facts = load(static_cast<const Key*>(p.input) + start, a, 0, n, codec);
  if (!facts.sorted) Sorter<Bare<Key>>::sort_to(a, b, n, facts.varying(p.bits), false);
  decode(values, 0, n, codec);
}

// `rows` rows, of which row r is [start(r), start(r + 1)); none is longer than `longest`.
template <class Key, class Record, class Start>
void sort_rows(const Problem& p, int64_t rows, int64_t longest, const Start& start) {
  const int64_t slots = slots_for(start(rows) - start(0));
  const bool alone = slots > 1 && longest >= kLongRow && rows < 4 * slots;
  const auto is_long = [&](int64_t n) { return alone && n >= kLongRow; };
  for (int64_t row = 0; alone && row < rows; ++row) {
    const int64_t n = start(row + 1) - start(row);
    if (!is_long(n)) continue;
    Problem mine = p;
    mine.index_base = p.index_base < 0 ? start(row) : 0;
    if (p.indices)
      long_row<Key, Record>(mine, start(row), n, slots);
    else
      long_row_keys<Key>(mine, start(row), n, slots);
  }
  const int64_t room = alone ? std::min(longest, kLongRow) : longest;
  const int64_t total = start(rows) - start(0);
  std::atomic<int64_t> next{0};
  const int64_t batch = std::max<int64_t>(1, rows / std::max<int64_t>(1, total / kGrain + 1) / 4);
  in_slots(slots, [&](int64_t) {
    const auto a = buffer<Record>(p.op, p.indices ? room : 0);
    const auto b = buffer<Record>(p.op, p.indices ? room : 0);
    const auto keys = buffer<Bare<Key>>(p.op, p.indices ? 0 : room);
    for (int64_t first; (first = next.fetch_add(batch)) < rows;) {
      for (int64_t row = first; row < std::min(rows, first + batch); ++row) {
        const int64_t n = start(row + 1) - start(row);
        if (n == 0 || is_long(n)) continue;
        Problem mine = p;
        mine.index_base = p.index_base < 0 ? start(row) : 0;
        if (p.indices)
          short_row<Key, Record>(mine, start(row), n, a.get(), b.get());
        else
          short_row_keys<Key>(mine, start(row), n, keys.get());
      }
    }
  });
}

template <class Start>
void sort_any(const Problem& p, int64_t rows, int64_t longest, const Start& start) {
  const bool packed = longest <= int64_t{UINT32_MAX};
  const auto run = [&]<class Key>(Key) {
    if (packed && sizeof(Key) <= 4)
      sort_rows<Key, Packed>(p, rows, longest, start);
    else
      sort_rows<Key, Wide>(p, rows, longest, start);
  };
  switch (dtype_bytes(p.dtype)) {
    case 1:
      return run(uint8_t{});
    case 2:
      return run(uint16_t{});
    case 4:
      return run(uint32_t{});
    default:
      return run(uint64_t{});
  }
}

}  // namespace cpu_sort
}  // namespace gpuprims
