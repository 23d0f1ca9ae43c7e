// Runs the sorts' kernels on the host and compares with a stable sort: emulated_sort SEED [spread],
// the latter for rows by buckets alone. Silent when all is well.
#include <numeric>

#include "sort/kernels.h"

using namespace gpuprims;

namespace {

enum class Data { random, few, equal, sorted, reversed, low_bits, alike, normal, heavy, crowded };

template <class T>
std::vector<T> make(int64_t rows, int64_t n, Data data, std::mt19937& random) {
  std::vector<T> x(rows * n);
  for (int64_t i = 0; i < rows * n; ++i) {
    const int64_t drawn = static_cast<int64_t>(random()) << 31 ^ random();
    T value;
    std::memcpy(&value, &drawn, sizeof value);
    if (value != value) value = static_cast<T>(drawn);
    switch (data) {
      case Data::random:
        break;
      case Data::few:
        value = static_cast<T>(drawn % 3);
        break;
      case Data::equal:
        value = T(7);
        break;
      case Data::sorted:
        value = static_cast<T>(i % n / 3);
        break;
      case Data::reversed:
        value = static_cast<T>(n - i % n);
        break;
      case Data::low_bits:
        value = static_cast<T>(drawn & 0x1ff);
        break;
      case Data::alike:  // the upper half says one thing four times, which its digits' counts hide
        value = static_cast<T>((drawn & 0xff) * 0x1010101 << 32 | (drawn >> 8 & 0xffffffff));
        break;
      case Data::normal:
        value = static_cast<T>(std::normal_distribution<double>()(random) * 1e3);
        break;
      case Data::heavy:  // many equal ones that a sample may miss
        value = static_cast<T>(i % 16 == 3 ? 12345 : drawn);
        break;
      case Data::crowded:  // some in a band so narrow that neither map tells them apart
        value = static_cast<T>(i % 500 == 7 ? 0x30000000 + (drawn & 3) : drawn & 0x7fffffff);
    }
    x[i] = value;
  }
  return x;
}

template <class T>
void set_args(SortArgs& args, Dtype dtype, bool descending, bool lossless) {
  args.bytes = sizeof(T);
  if constexpr (sizeof(T) == 8)
    set_order<uint64_t>(args.order64, dtype, descending, lossless);
  else if constexpr (sizeof(T) == 4)
    set_order<uint32_t>(args.order32, dtype, descending, lossless);
  else if constexpr (sizeof(T) == 2)
    set_order<uint16_t>(args.order32, dtype, descending, lossless);
  else
    set_order<uint8_t>(args.order32, dtype, descending, lossless);
}

SweepSpace space_at(unsigned char* base, const SortPlan& plan, const SortArgs& args,
                    int index_bytes) {
  SweepSpace space;
  space.status = base;
  space.counts = reinterpret_cast<uint64_t*>(base + plan.counts_at);
  space.codes = reinterpret_cast<CodeTable*>(base + plan.codes_at);
  space.splits = reinterpret_cast<RowSplit*>(base + plan.splits_at);
  space.code_counts = reinterpret_cast<uint64_t*>(base + plan.code_counts_at);
  space.state = reinterpret_cast<RowState*>(base + plan.state_at);
  space.next = reinterpret_cast<uint32_t*>(base + plan.next_at);
  space.active = space.next + 2 * kMaxPasses;
  space.repeat = space.next + 4 * kMaxPasses + 16;
  space.left = space.repeat + 1;
  space.code_next = space.left + 1;
  space.spread = {reinterpret_cast<SpreadState*>(base + plan.spread_state_at),
                  reinterpret_cast<uint32_t*>(base + plan.spread_counts_at),
                  reinterpret_cast<uint32_t*>(base + plan.spread_starts_at),
                  reinterpret_cast<uint32_t*>(base + plan.spread_firsts_at),
                  reinterpret_cast<SpreadTile*>(base + plan.spread_tiles_at),
                  reinterpret_cast<uint32_t*>(base + plan.spread_windows_at),
                  reinterpret_cast<uint32_t*>(base + plan.spread_crowded_at)};
  space.keys[0] = base + plan.a_keys_at;
  space.side[0] = base + plan.a_side_at;
  space.keys[1] = plan.b_keys ? base + plan.b_keys_at : plan.packed ? args.indices : args.values;
  space.side[1] = args.indices;
  space.side_step = index_bytes;
  return space;
}

template <class T>
std::vector<int64_t> stable_order(const T* row, int64_t n, bool descending, int begin, int end) {
  const auto key = [&](int64_t i) -> uint64_t {
    if (begin == 0 && end == int(sizeof(T)) * 8) return 0;
    return (static_cast<uint64_t>(row[i]) >> begin) & ((uint64_t{1} << (end - begin)) - 1);
  };
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    if (begin == 0 && end == int(sizeof(T)) * 8)
      return descending ? row[a] > row[b] : row[a] < row[b];
    return key(a) < key(b);
  });
  return order;
}

[[noreturn]] void bad(const char* what, Dtype dtype, int64_t rows, int64_t n, Data data,
                      int64_t at) {
  std::fprintf(stderr, "%s %s [%ld, %ld] data %d: wrong at %ld\n", what, dtype_name(dtype), rows, n,
               static_cast<int>(data), at);
  std::exit(1);
}

struct Options {
  bool descending = false, indices = true, values = true, in_place = false;
  int index_bits = 64, begin = 0, end = 0, side = 0;
  int code_bits = 0, parts = 0, spread = 0;
  SortAlgo forced = SortAlgo::automatic;
};

template <class T>
void check(Dtype dtype, int64_t rows, int64_t n, Data data, unsigned seed, Options o = {}) {
  std::mt19937 random(seed);
  simt::random.seed(seed);
  if (o.end == 0) o.end = sizeof(T) * 8;
  const std::vector<T> x = make<T>(rows, n, data, random);
  std::vector<T> values(rows * n);
  if (o.in_place) values = x;
  std::vector<int64_t> wide(rows * n, -7);
  std::vector<int32_t> narrow(rows * n, -7);
  SortPlan plan = plan_sort({dtype, rows, n, o.values, o.indices, o.index_bits, o.begin, o.end, 2,
                             o.forced, o.in_place, o.code_bits, o.parts, o.spread});
  if (o.side == 8 && plan.algo == SortAlgo::sweep) {  // as for rows of 2^32 elements
    plan.packed = false, plan.side = 8, plan.wide_status = true, plan.b_keys = !o.values;
    plan.counts_at = plan.tiles * kDigits * 8;
    plan.state_at = plan.counts_at + rows * plan.passes * kDigits * 8;
    plan.next_at = sort_round_up(plan.state_at + rows * sizeof(RowState), 256);
    plan.clear_bytes = plan.a_keys_at = plan.next_at + 256;
    plan.a_side_at = sort_round_up(plan.a_keys_at + rows * n * sizeof(T), 256);
    plan.b_keys_at = plan.a_side_at + rows * n * 8;
    plan.workspace = plan.b_keys_at + rows * n * 8;
  }
  SortArgs args;
  args.input = o.in_place ? values.data() : x.data();
  if (o.values) args.values = values.data();
  if (o.indices)
    args.indices = o.index_bits == 64 ? static_cast<void*>(wide.data()) : narrow.data();
  args.rows = rows, args.n = n, args.begin_bit = o.begin, args.end_bit = o.end;
  args.wide_index = o.index_bits == 64, args.packed = plan.packed;
  set_args<T>(args, dtype, o.descending, !o.indices);
  if (plan.algo == SortAlgo::warp_row) {
    launch_sort_warp(args, plan, nullptr);
  } else if (plan.algo == SortAlgo::block_row) {
    launch_sort_block(args, plan, nullptr);
  } else {
    std::vector<uint64_t> memory(plan.workspace / 8 + 2, 0xabababababababab);
    unsigned char* base = reinterpret_cast<unsigned char*>(memory.data());
    if (reinterpret_cast<uintptr_t>(base) % 16) base += 8;
    if (!plan.clears_itself()) launch_clear(base, plan.clear_bytes, 3, nullptr);
    const SweepSpace space = space_at(base, plan, args, o.index_bits / 8);
    launch_sort_sweep(args, plan, space, nullptr);
    const bool naturals = !is_floating(dtype) && !is_signed_integer(dtype);
    if (plan.spread_bits && (data == Data::random || data == Data::crowded ||
                             (data == Data::normal && !naturals))) {  // those are in two heaps
      if (!space.spread.state->fits) bad("not spread", dtype, 1, n, data, 0);
      bool crowded = false;
      for (uint32_t w = 0; w < space.spread.state->windows; ++w) crowded |= space.spread.crowded[w];
      if (data == Data::crowded && n > 50000 && !crowded) bad("not crowded", dtype, 1, n, data, 0);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const T* const row = x.data() + r * n;
    const auto order = stable_order(row, n, o.descending, o.begin, o.end);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t index = o.index_bits == 64 ? wide[r * n + i] : narrow[r * n + i];
      if (o.indices && index != order[i]) bad(sort_algo_name(plan.algo), dtype, rows, n, data, i);
      if (o.values && values[r * n + i] != row[order[i]])
        bad(sort_algo_name(plan.algo), dtype, rows, n, data, -i - 1);
    }
  }
}

template <class T>
void check_segments(Dtype dtype, std::vector<int64_t> lengths, Data data, unsigned seed,
                    bool wrong) {
  std::mt19937 random(seed);
  simt::random.seed(seed);
  std::vector<int64_t> indptr(1, 0);
  for (int64_t length : lengths) indptr.push_back(indptr.back() + length);
  const int64_t n = indptr.back(), segments = lengths.size();
  if (wrong) std::swap(indptr[1], indptr[segments - 1]);
  const std::vector<T> x = make<T>(1, n, data, random);
  std::vector<T> values(n);
  std::vector<int64_t> indices(n, -7);
  SortArgs args;
  args.input = x.data(), args.values = values.data(), args.indices = indices.data();
  args.rows = segments, args.n = n, args.end_bit = sizeof(T) * 8, args.indptr = indptr.data();
  set_args<T>(args, dtype, false, false);
  const SegmentSortPlan plan =
      plan_segments({dtype, 1, n, true, true, 64, 0, args.end_bit, 2}, segments);
  std::vector<uint64_t> memory(plan.workspace / 8 + 2, 0xabababababababab);
  unsigned char* base = reinterpret_cast<unsigned char*>(memory.data());
  if (reinterpret_cast<uintptr_t>(base) % 16) base += 8;
  launch_clear(base, plan.clear_bytes, 3, nullptr);
  SweepSpace space = space_at(base, plan.sweep, args, 8);
  uint32_t* const head = reinterpret_cast<uint32_t*>(base + plan.head_at);
  space.totals = head;
  space.tile_row = reinterpret_cast<uint32_t*>(base + plan.tile_row_at);
  space.tile_base = reinterpret_cast<uint32_t*>(base + plan.tile_base_at);
  SegmentLists lists;
  lists.bad = head + 2;
  for (int c = 0; c < kSegmentClasses; ++c) {
    lists.capacity[c] = plan.capacity[c];
    if (plan.capacity[c] == 0) continue;
    lists.list[c] = reinterpret_cast<RowSpan*>(base + plan.list_at[c]);
    lists.count[c] = c < kSegmentClasses - 1 ? head + 4 + c : head;
  }
  launch_segment_lists(args, lists, space, plan.sweep.tiles, false, 2, 3, nullptr);
  args.bad = lists.bad;
  args.packed = plan.sweep.packed;
  for (const auto& warp : plan.warps) {
    args.shortest = warp.shortest, args.longest = warp.longest;
    launch_sort_warp(args, warp.shape, nullptr);
  }
  args.shortest = args.longest = 0;
  for (int c = 0; c < kSegmentClasses; ++c) {
    if (plan.capacity[c] == 0) continue;
    args.list = lists.list[c], args.list_count = lists.count[c];
    if (c == 0)
      launch_sort_warp(args, plan.blocks[c], nullptr);
    else if (c < kSegmentClasses - 1)
      launch_sort_block(args, plan.blocks[c], nullptr);
    else
      launch_sort_sweep(args, plan.sweep, space, nullptr);
  }
  for (int64_t s = 0; s < segments; ++s) {
    const int64_t start = wrong ? 0 : indptr[s], count = wrong ? (s ? 0 : n) : lengths[s];
    const auto order = stable_order(x.data() + start, count, false, 0, sizeof(T) * 8);
    for (int64_t i = 0; i < count; ++i) {
      if (indices[start + i] != (wrong ? -1 : start + order[i]) ||
          values[start + i] != (wrong ? T(0) : x[start + order[i]]))
        bad("segment", dtype, segments, count, data, i);
    }
  }
}

// One long row by buckets.
void check_spread(unsigned seed) {
  const bool odd = seed % 2;
  for (Data data : {Data::random, Data::normal, Data::heavy, Data::few, Data::sorted,
                    Data::low_bits, Data::crowded})
    for (int bits : {10, 11, 13}) {
      const int64_t n = bits == 10 ? 20011 : bits == 11 ? 8192 : 50003;
      const bool falling = odd == (bits == 11);
      const SortAlgo sweep = SortAlgo::sweep;
      check<float>(Dtype::f32, 1, n, data, seed,
                   {.descending = falling, .spread = bits, .forced = sweep});
      check<int32_t>(Dtype::i32, 1, n, data, seed,
                     {.descending = !falling,
                      .values = bits != 13,
                      .index_bits = 32,
                      .spread = bits,
                      .forced = sweep});
      check<uint32_t>(Dtype::u32, 1, n, data, seed,
                      {.descending = falling, .spread = bits, .forced = sweep});
    }
}

}  // namespace

int main(int count, char** words) {
  const unsigned seed = count > 1 ? static_cast<unsigned>(std::atoi(words[1])) : 1;
  const bool odd = seed % 2;
  if (count > 2) {
    check_spread(seed);
    return 0;
  }
  constexpr Data kAll[] = {Data::random, Data::few,      Data::equal,
                           Data::sorted, Data::reversed, Data::low_bits};
  for (Data data : kAll) {
    for (int64_t n : {1, 7, 32, 33, 100, 256, 300, 1000, 2100}) {
      const int64_t rows = n < 300 ? 9 : 2;
      check<float>(Dtype::f32, rows, n, data, seed, {.descending = odd});
      check<int64_t>(Dtype::i64, rows, n, data, seed, {.descending = !odd, .index_bits = 32});
      check<uint8_t>(Dtype::u8, rows, n, data, seed, {.indices = false});
      check<double>(Dtype::f64, rows, n, data, seed, {.indices = false});
    }
    check<uint32_t>(Dtype::u32, 1, 8192, data, seed);
    check<uint32_t>(Dtype::u32, 2, 3000, data, seed, {.indices = false, .in_place = true});
    check<float>(Dtype::f32, 3, 17000 + 7 * seed, data, seed, {.descending = odd});
    check<int64_t>(Dtype::i64, 35, 1100, data, seed, {.values = odd});
    check<double>(Dtype::f64, 2, 300, data, seed, {.indices = false, .in_place = true});
    const SortAlgo sweep = SortAlgo::sweep;
    for (int64_t n : {1, 8191, 8193, 20000}) {
      const int64_t rows = n > 10000 ? 1 : 2;
      check<float>(Dtype::f32, rows, n, data, seed, {.descending = odd, .forced = sweep});
      check<int64_t>(Dtype::i64, rows, n, data, seed, {.descending = odd, .forced = sweep});
      check<int16_t>(Dtype::i16, rows, n, data, seed, {.index_bits = 32, .forced = sweep});
      check<uint32_t>(Dtype::u32, rows, n, data, seed, {.indices = false, .forced = sweep});
      check<uint32_t>(Dtype::u32, rows, n, data, seed,
                      {.indices = false, .in_place = true, .forced = sweep});
      if (n == 8191) continue;
      check<int64_t>(Dtype::i64, rows, n, data, seed,
                     {.descending = odd, .indices = false, .in_place = true, .forced = sweep});
      check<uint8_t>(Dtype::u8, rows, n, data, seed,
                     {.indices = false, .in_place = true, .forced = sweep});
      check<uint8_t>(Dtype::u8, rows, n, data, seed, {.forced = sweep});
      check<int64_t>(Dtype::i64, rows, n, data, seed, {.indices = false, .forced = sweep});
      check<uint16_t>(Dtype::u16, rows, n, data, seed, {.indices = false, .forced = sweep});
      check<double>(Dtype::f64, rows, n, data, seed,
                    {.values = false, .index_bits = 32, .forced = sweep});
      check<float>(Dtype::f32, rows, n, data, seed,
                   {.descending = odd, .side = 8, .forced = sweep});
    }
    check<uint32_t>(Dtype::u32, 2, 3000, data, seed, {.values = false, .begin = 3, .end = 14});
    check<uint32_t>(Dtype::u32, 1, 9000, data, seed, {.values = false, .begin = 4, .end = 9});
    check<uint64_t>(Dtype::u64, 1, 9000, data, seed, {.values = false, .begin = 0, .end = 1});
    check_segments<float>(Dtype::f32, {0, 3, 70, 0, 257, 5000, 900, 0, 9000, 2, 20000, 0, 8193},
                          data, seed, false);
    check_segments<int64_t>(Dtype::i64, {64, 1, 300, 5000, 200, 0, 1100}, data, seed, false);
  }
  for (bool indices : {true, false}) {
    check<uint64_t>(Dtype::u64, 1, 20000, Data::alike, seed,
                    {.descending = odd, .indices = indices, .forced = SortAlgo::sweep});
    check<int64_t>(Dtype::i64, 3, 9000, Data::alike, seed,
                   {.indices = indices, .index_bits = 32, .forced = SortAlgo::sweep});
  }
  for (Data data : {Data::random, Data::normal, Data::heavy, Data::few, Data::sorted, Data::alike})
    for (int bits : {1, 4, 8, 11}) {
      const int64_t n = bits == 4 ? 20011 : 41003, rows = bits == 4 ? 2 : 1;
      const SortAlgo sweep = SortAlgo::sweep;
      const bool falling = odd == (bits == 8);
      check<float>(Dtype::f32, rows, n, data, seed,
                   {.descending = falling, .code_bits = bits, .forced = sweep});
      check<double>(Dtype::f64, rows, n, data, seed,
                    {.descending = falling, .index_bits = 32, .code_bits = bits, .forced = sweep});
      check<int64_t>(
          Dtype::i64, rows, n, data, seed,
          {.descending = falling, .values = bits != 8, .code_bits = bits, .forced = sweep});
      check<uint64_t>(
          Dtype::u64, rows, n, data, seed,
          {.descending = falling, .indices = false, .code_bits = bits, .forced = sweep});
    }
  for (Data data : {Data::random, Data::normal, Data::heavy, Data::few, Data::sorted})
    for (int parts : {2, 5}) {
      const int64_t n = parts == 2 ? 20011 : 31005, rows = parts == 2 ? 2 : 1;
      const bool falling = odd == (parts == 2);
      check<float>(Dtype::f32, rows, n, data, seed,
                   {.descending = falling, .parts = parts, .forced = SortAlgo::sweep});
      check<int32_t>(
          Dtype::i32, rows, n, data, seed,
          {.descending = !falling, .index_bits = 32, .parts = parts, .forced = SortAlgo::sweep});
    }
  check_segments<int64_t>(Dtype::i64, {64, 20000, 300, 9000}, Data::alike, seed, false);
  check_segments<int32_t>(Dtype::i32, {5, 900, 3, 5000}, Data::random, seed, true);
}
