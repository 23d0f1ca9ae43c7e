// Runs warp_row on the host, bit for bit against a stable sort of codec keys: emulated_sort_warp
// SEED. Silent when all is well. Row lengths around every capacity, data that makes ties of a
// word's top bits: none, a few, long runs in order, long runs out of order.
#include <numeric>

#include "sort/kernels.h"

using namespace gpuprims;

namespace {

enum class Data {
  bits,    // any pattern: NaNs, infinities, denormals
  normal,  // numbers of a bell curve
  small,   // whole numbers around 0
  equal,
  few,      // of five numbers with long fractions
  special,  // NaNs of both signs and several payloads, zeros of both signs, infinities
  sorted,
  reversed,
  narrow,    // the leading bits agree
  outliers,  // the same, but for a few
  mostly,    // 99 % equal
  clusters,  // the leading bits are of three kinds
  count
};

template <class Key>
Key from_number(Dtype dtype, double number) {
  Key bits;
  if (dtype == Dtype::f64) {
    std::memcpy(&bits, &number, sizeof bits);
  } else if (is_floating(dtype)) {
    const float narrow = static_cast<float>(number);
    uint32_t word;
    std::memcpy(&word, &narrow, 4);
    bits = static_cast<Key>(dtype == Dtype::f32 ? word : word >> 16);
  } else {
    bits = static_cast<Key>(static_cast<int64_t>(number));
  }
  return bits;
}

template <class Key>
Key draw(Dtype dtype, Data data, int64_t i, int64_t n, std::mt19937_64& random) {
  constexpr int kWidth = sizeof(Key) * 8;
  const Key any = static_cast<Key>(random());
  const Key sign = static_cast<Key>(Key(1) << (kWidth - 1));
  const KeyCodec<Key> codec = make_codec<Key>(dtype, true);
  switch (data) {
    case Data::bits:
      return any;
    case Data::normal:
      return from_number<Key>(
          dtype, std::normal_distribution<double>()(random) * (is_floating(dtype) ? 1 : 40));
    case Data::small:
      return from_number<Key>(dtype, static_cast<int>(any % 19) - 9);
    case Data::equal:
      return from_number<Key>(dtype, 7);
    case Data::few:
      return from_number<Key>(dtype, is_floating(dtype) ? 1.0 / (3 + any % 5) : any % 5 * 21);
    case Data::special: {
      const Key infinity = is_floating(dtype) ? codec.infinity : static_cast<Key>(sign - 1);
      const Key choices[] = {0,
                             sign,
                             infinity,
                             static_cast<Key>(infinity | sign),
                             static_cast<Key>(infinity + 1),
                             static_cast<Key>(~Key(0)),
                             static_cast<Key>(infinity | sign | 5),
                             any};
      return choices[random() % 8];
    }
    case Data::sorted:
      return from_number<Key>(dtype, i / 3 - 20);
    case Data::reversed:
      return from_number<Key>(dtype, (n - i) / 2);
    case Data::narrow:
      return static_cast<Key>(Key(0x3f) << (kWidth - 8) | (any & ((Key(1) << kWidth / 2) - 1)));
    case Data::outliers:
      return random() % 300 == 0 ? static_cast<Key>(any & static_cast<Key>(sign - 1))
                                 : static_cast<Key>(Key(0x3f) << (kWidth - 8) | (any & 0xff));
    case Data::mostly:
      return random() % 100 == 0 ? any : from_number<Key>(dtype, 3);
    default:
      return static_cast<Key>(static_cast<Key>(random() % 3 << (kWidth - 3)) | (any & 0x3f));
  }
}

struct Options {
  bool descending = false, indices = true, values = true;
  int index_bits = 64, begin = 0, end = 0;
  int64_t keep = 0;  // of each row; 0: all
};

template <class Key>
uint64_t order_key(Key bits, Dtype dtype, const Options& o) {
  const uint64_t key = o.indices
                           ? uint64_t{make_codec<Key>(dtype, !o.descending).encode(bits)}
                           : uint64_t{make_order_codec<Key>(dtype, o.descending).encode(bits)};
  const int width = o.end - o.begin;
  return width == 64 ? key : key >> o.begin & ((uint64_t{1} << width) - 1);
}

template <class Key>
void set_args(SortArgs& args, Dtype dtype, const Options& o) {
  args.bytes = sizeof(Key);
  if constexpr (sizeof(Key) == 8)
    set_order<Key>(args.order64, dtype, o.descending, !o.indices);
  else
    set_order<Key>(args.order32, dtype, o.descending, !o.indices);
}

// shift: elements by which the input is off 16-byte alignment.
template <class Key>
void check(Dtype dtype, int64_t rows, int64_t n, Data data, std::mt19937_64& random, Options o = {},
           int shift = 0) {
  if (o.end == 0) o.end = sizeof(Key) * 8;
  std::vector<Key> memory(rows * n + shift), values(rows * n);
  Key* const x = memory.data() + shift;
  for (int64_t i = 0; i < rows * n; ++i) x[i] = draw<Key>(dtype, data, i % n, n, random);
  std::vector<int64_t> wide(rows * n, -7);
  std::vector<int32_t> narrow(rows * n, -7);
  const SortPlan plan = plan_sort({dtype, rows, n, o.values, o.indices, o.index_bits, o.begin,
                                   o.end, random() % 2 ? 2 : 0});  // few rows, or not
  if (plan.algo != SortAlgo::warp_row) simt::fail("another algorithm was planned");
  SortArgs args;
  args.input = x;
  args.rows = rows, args.n = n, args.begin_bit = o.begin, args.end_bit = o.end;
  args.wide_index = o.index_bits == 64, args.packed = plan.packed;
  args.keep = o.keep;
  if (o.keep)
    values.resize(rows * o.keep), wide.resize(rows * o.keep), narrow.resize(rows * o.keep);
  args.values = o.values ? values.data() : nullptr;
  if (o.indices)
    args.indices = o.index_bits == 64 ? static_cast<void*>(wide.data()) : narrow.data();
  set_args<Key>(args, dtype, o);
  launch_sort_warp(args, plan, nullptr);
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<uint64_t> keys(n);
    for (int64_t i = 0; i < n; ++i) keys[i] = order_key<Key>(x[r * n + i], dtype, o);
    std::vector<int64_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return keys[a] < keys[b]; });
    const int64_t kept = o.keep ? o.keep : n;
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t at = r * kept + i;
      const bool index_is_right =
          !o.indices || (o.index_bits == 64 ? wide[at] : narrow[at]) == order[i];
      if (index_is_right && (!o.values || values[at] == x[r * n + order[i]])) continue;
      std::fprintf(stderr, "%s [%ld, %ld] data %d descending %d indices %d: wrong at %ld, %ld\n",
                   dtype_name(dtype), rows, n, static_cast<int>(data), o.descending, o.indices, r,
                   i);
      std::exit(1);
    }
  }
}

void check_all(int64_t n, Data data, std::mt19937_64& random) {
  const int64_t rows = n <= 16 ? 70 : n <= 64 ? 19 : n <= 256 ? 5 : 1 + random() % 2;
  const bool odd = random() % 2;
  const Options one{.descending = odd}, other{.descending = !odd, .index_bits = 32};
  const Options keys{.descending = odd, .indices = false};
  const Options few{.descending = odd,
                    .index_bits = odd ? 32 : 64,
                    .keep = 1 + static_cast<int64_t>(random() % n)};
  switch (random() % 4) {
    case 0:
      check<uint32_t>(Dtype::i32, rows, n, data, random, few);
      break;
    case 1:
      check<uint16_t>(Dtype::bf16, rows, n, data, random, few);
      break;
    case 2:
      check<uint64_t>(Dtype::f64, rows, n, data, random, few);
      break;
    default:
      check<uint64_t>(Dtype::i64, rows, n, data, random, few);
  }
  check<uint32_t>(Dtype::f32, rows, n, data, random, one, random() % 3 % 2);
  check<uint32_t>(Dtype::f32, rows, n, data, random, keys);
  check<uint64_t>(Dtype::f64, rows, n, data, random, keys, random() % 2);
  switch (random() % 4) {
    case 0:
      check<uint64_t>(Dtype::i64, rows, n, data, random, other);
      check<uint16_t>(Dtype::bf16, rows, n, data, random, one);
      check<uint8_t>(Dtype::u8, rows, n, data, random, keys, random() % 4);
      break;
    case 1:
      check<uint64_t>(Dtype::f64, rows, n, data, random, one);
      check<uint16_t>(Dtype::f16, rows, n, data, random, keys, random() % 4);
      check<uint8_t>(Dtype::i8, rows, n, data, random, other, random() % 4);
      break;
    case 2:
      check<uint64_t>(Dtype::u64, rows, n, data, random, one);
      check<uint16_t>(Dtype::i16, rows, n, data, random, one, random() % 4);
      check<uint32_t>(Dtype::i32, rows, n, data, random,
                      {.values = false, .begin = 3, .end = 4 + static_cast<int>(random() % 29)});
      break;
    default:
      check<uint64_t>(Dtype::i64, rows, n, data, random, {.values = false, .begin = 9, .end = 62});
      check<uint32_t>(Dtype::i32, rows, n, data, random, other);
      check<uint32_t>(Dtype::u32, rows, n, data, random, keys);
  }
}

}  // namespace

int main(int count, char** words) {
  const unsigned seed = count > 1 ? static_cast<unsigned>(std::atoi(words[1])) : 1;
  std::mt19937_64 random(seed);
  simt::random.seed(seed);
  constexpr int64_t kEdges[] = {1,  2,  7,  8,   9,   15,  16,  17,  31,  32,   33,
                                63, 64, 65, 127, 128, 129, 256, 257, 512, 1000, 1024};
  for (int data = 0; data < static_cast<int>(Data::count); ++data) {
    for (int64_t n : kEdges) check_all(n, static_cast<Data>(data), random);
    for (int more = 0; more < 8; ++more)
      check_all(1 + random() % (more % 2 ? 1024 : 200), static_cast<Data>(data), random);
  }
}
