// The sorts on the CPU: radix sort of (key, index) records or of keys; rows are spread over
// threads, and one long row is sorted by all of them.
#include <optional>

#include "common/stable.h"
#include "sort/checks.h"
#include "sort/cpu_parallel.h"
#include "sort/layout.h"

namespace gpuprims {
namespace {

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

template <class T>
std::unique_ptr<T[]> buffer(const char* op, int64_t count) {
  std::unique_ptr<T[]> memory(new (std::nothrow) T[count]);
  check(memory != nullptr, op, ": out of memory allocating ", count * int64_t(sizeof(T)), " bytes");
  return memory;
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
  Key zero, nan;  // keys whose elements have several bit patterns

  Writer(const Problem& problem, const Key* from, int64_t at)
      : p(problem), row(from), start(at), codec(make_codec<Key>(p.dtype, !p.descending)) {
    zero = codec.encode(0);
    nan = static_cast<Key>(static_cast<Key>(~Key(0)) ^ codec.invert);
  }

  template <class Record>
  void write(const Record* from, int64_t begin, int64_t end) const {
    Key* const values = p.values ? static_cast<Key*>(p.values) + start : nullptr;
    for (int64_t i = begin; i < end && values; ++i) {
      const Key key = static_cast<Key>(from[i].key());
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

// Keys and indices of one row by all threads.
template <class Key, class Record>
void long_row(const Problem& p, int64_t start, int64_t n, int64_t slots) {
  const Key* const row = static_cast<const Key*>(p.input) + start;
  const Writer<Key> writer(p, row, start);
  // The second buffer lies in the output where that is as wide.
  const bool fits = p.wide_indices && sizeof(Record) == 8;
  const auto a = buffer<Record>(p.op, n), own = buffer<Record>(p.op, fits ? 0 : n);
  Record* const b =
      fits ? reinterpret_cast<Record*>(static_cast<int64_t*>(p.indices) + start) : own.get();
  const KeyFacts facts = load_parallel(row, a.get(), n, writer.codec, p.bits, slots);
  const bool whole = p.bits.width() == int(sizeof(Key)) * 8;
  if (!(whole && facts.sorted))
    ParallelSorter<Record>(n, slots).sort(a.get(), b, n, facts.varying(p.bits), false);
  in_slots(slots,
           [&](int64_t slot) { writer.write(a.get(), n * slot / slots, n * (slot + 1) / slots); });
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

ScalarType index_type(int64_t bits) { return bits == 64 ? ScalarType::Long : ScalarType::Int; }

struct Result {
  std::optional<Tensor> values, indices;
};

// All of sort, argsort and sort_keys.
Result sort_dim(const char* op, const Tensor& input, const SortShape& shape, bool descending,
                bool want_values, bool want_indices, int64_t index_bits, BitRange bits) {
  const Tensor source = rows_last(input, shape.dim, shape.last);
  Problem p;
  p.op = op;
  p.dtype = shape.dtype;
  p.descending = descending;
  p.bits = bits;
  p.input = source.const_data_ptr();
  p.wide_indices = index_bits == 64;
  Result result;
  if (want_values) {
    result.values = empty_as(op, source, input.scalar_type());
    p.values = result.values->mutable_data_ptr();
  }
  if (want_indices) {
    result.indices = empty_as(op, source, index_type(index_bits));
    p.indices = result.indices->mutable_data_ptr();
  }
  const int64_t n = shape.n;
  if (shape.rows > 0 && n > 0) sort_any(p, shape.rows, n, [n](int64_t row) { return row * n; });
  if (want_values) result.values = rows_back(*result.values, shape.dim, shape.last);
  if (want_indices) result.indices = rows_back(*result.indices, shape.dim, shape.last);
  return result;
}

std::tuple<Tensor, Tensor> sort_cpu(const Tensor& input, int64_t dim, bool descending,
                                    int64_t index_bits) {
  const SortShape shape = check_sort("sort", input, dim);
  check_index_bits("sort", index_bits, shape.n);
  Result r = sort_dim("sort", input, shape, descending, true, true, index_bits,
                      {0, dtype_bytes(shape.dtype) * 8});
  return {*r.values, *r.indices};
}

Tensor argsort_cpu(const Tensor& input, int64_t dim, bool descending, int64_t index_bits,
                   int64_t begin_bit, int64_t end_bit) {
  const SortShape shape = check_sort("argsort", input, dim);
  check_index_bits("argsort", index_bits, shape.n);
  end_bit = check_bits("argsort", shape.dtype, begin_bit, end_bit);
  return *sort_dim("argsort", input, shape, descending, false, true, index_bits,
                   {static_cast<int>(begin_bit), static_cast<int>(end_bit)})
              .indices;
}

Tensor sort_keys_cpu(const Tensor& input, int64_t dim, bool descending) {
  const SortShape shape = check_sort("sort_keys", input, dim);
  return *sort_dim("sort_keys", input, shape, descending, true, false, 64,
                   {0, dtype_bytes(shape.dtype) * 8})
              .values;
}

// Offsets that are wrong leave values as 0 or NaN bits and indices -1, as the kernels for CUDA do.
void fill_bad(const Problem& p, int64_t n) {
  std::memset(p.values, is_floating(p.dtype) ? 0xff : 0, n * dtype_bytes(p.dtype));
  std::memset(p.indices, 0xff, n * (p.wide_indices ? 8 : 4));
}

std::tuple<Tensor, Tensor> segment_sort_cpu(const Tensor& keys, const Tensor& indptr,
                                            bool descending, int64_t index_bits) {
  constexpr auto op = "segment_sort";
  check_segments(keys, indptr, index_bits);
  const Tensor source = torch::stable::contiguous(keys), at = torch::stable::contiguous(indptr);
  Tensor values = empty_as(op, source, keys.scalar_type());
  Tensor indices = empty_as(op, source, index_type(index_bits));
  Problem p;
  p.op = op;
  p.dtype = dtype_of(op, keys.scalar_type());
  p.descending = descending;
  p.bits = {0, dtype_bytes(p.dtype) * 8};
  p.input = source.const_data_ptr();
  p.values = values.mutable_data_ptr();
  p.indices = indices.mutable_data_ptr();
  p.wide_indices = index_bits == 64;
  p.index_base = -1;  // positions in keys, not in the segment
  const int64_t segments = at.size(0) - 1, n = keys.size(0);
  const bool wide = at.scalar_type() == ScalarType::Long;
  const void* const offsets = at.const_data_ptr();
  const auto start = [=](int64_t s) -> int64_t {
    return wide ? static_cast<const int64_t*>(offsets)[s] : static_cast<const int32_t*>(offsets)[s];
  };
  bool good = start(0) == 0 && start(segments) == n;
  int64_t longest = 0;
  for (int64_t s = 0; s < segments; ++s) {
    good &= start(s) <= start(s + 1);
    longest = std::max(longest, start(s + 1) - start(s));
  }
  const char* const raise = std::getenv("GPUPRIMS_CHECK");
  check(good || !(raise && *raise && *raise != '0'), op,
        ": indptr must rise from 0 to the number of keys (", n, ")");
  if (!good)
    fill_bad(p, n);
  else if (n > 0)
    sort_any(p, segments, longest, start);
  return {std::move(values), std::move(indices)};
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("sort", TORCH_BOX(&gpuprims::sort_cpu));
  m.impl("argsort", TORCH_BOX(&gpuprims::argsort_cpu));
  m.impl("sort_keys", TORCH_BOX(&gpuprims::sort_keys_cpu));
  m.impl("segment_sort", TORCH_BOX(&gpuprims::segment_sort_cpu));
}
