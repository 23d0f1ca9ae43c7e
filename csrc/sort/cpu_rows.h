// Rows on the CPU: elements to records, the sort, records to values and indices.
#pragma once
#include "sort/cpu_counting.h"

namespace gpuprims {
namespace cpu_sort {

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

// Keys and indices of one row by all threads.
template <class Key, class Record>
void long_row(const Problem& p, int64_t start, int64_t n, int64_t slots) {
  Writer<Key> writer(p, static_cast<const Key*>(p.input) + start, start);
  const bool whole = p.bits.width() == int(sizeof(Key)) * 8;
  if constexpr (sizeof(Key) == 1) {
    byte_row(writer, p.bits, n, slots);
    return;
  }
  if constexpr (sizeof(Key) == 2) {
    if (whole) return two_byte_row(writer, n, buffer<Record>(p.op, n).get(), slots);
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
  const bool whole = p.bits.width() == int(sizeof(Key)) * 8;
  if constexpr (sizeof(Key) == 2) {
    if (n > 1024 && whole) return two_byte_row(writer, n, a, 1);
  }
  const KeyFacts facts = load(row, a, 0, n, writer.codec);
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
  const int64_t total = start(rows) - start(0), slots = slots_for(total);
  // A row of a quarter of a thread's share and more is for all threads; how many others there are
  // does not matter.
  const int64_t share = std::max(kLongRow, total / (4 * slots) + 1);
  const bool any_long = slots > 1 && longest >= share;
  const auto is_long = [&](int64_t n) { return any_long && n >= share; };
  for (int64_t row = 0; any_long && row < rows; ++row) {
    const int64_t n = start(row + 1) - start(row);
    if (!is_long(n)) continue;
    Problem mine = p;
    mine.index_base = p.index_base < 0 ? start(row) : 0;
    if (p.indices)
      long_row<Key, Record>(mine, start(row), n, slots);
    else
      long_row_keys<Key>(mine, start(row), n, slots);
  }
  const int64_t room = any_long ? std::min(longest, share) : longest;
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
