// Runs thread_row's kernels on the host and compares bits with a stable sort:
// emulated_thread_row SEED. Silent when all is well.
#include "topk/thread_row.cu"

#include <numeric>

#include "topk/plan.h"

using namespace gpuprims;

namespace {

std::mt19937 draw;

int64_t below(int64_t limit) { return static_cast<int64_t>(draw() % limit); }

double value_of(Dtype dtype, uint64_t bits) {
  const auto as = [&](auto like) {
    std::memcpy(&like, &bits, sizeof like);
    return static_cast<double>(like);
  };
  switch (dtype) {
    case Dtype::f16:
      return simt::half_value(static_cast<uint16_t>(bits));
    case Dtype::bf16:
      return __uint_as_float(static_cast<uint32_t>(bits) << 16);
    case Dtype::f32:
      return as(0.0f);
    case Dtype::f64:
      return as(0.0);
    case Dtype::i8:
      return as(int8_t{});
    case Dtype::i16:
      return as(int16_t{});
    case Dtype::i32:
      return as(int32_t{});
    default:
      return static_cast<double>(bits);
  }
}

// a before b in the result; 64-bit integers exactly.
bool before(Dtype dtype, bool largest, uint64_t a, uint64_t b) {
  if (!largest) std::swap(a, b);
  if (dtype == Dtype::i64) return static_cast<int64_t>(a) > static_cast<int64_t>(b);
  if (!is_floating(dtype) && !is_signed_integer(dtype)) return a > b;
  const double x = value_of(dtype, a), y = value_of(dtype, b);
  return x > y || (x != x && y == y);
}

enum class Data { random, few, equal, sorted, reversed, special, lowest, kinds };

template <class Key>
Key element(Dtype dtype, Data data, int64_t i, int64_t n) {
  const int bits = sizeof(Key) * 8, fraction = dtype == Dtype::f16    ? 10
                                               : dtype == Dtype::bf16 ? 7
                                               : dtype == Dtype::f32  ? 23
                                                                      : 52;
  const auto sign = static_cast<Key>(Key(1) << (bits - 1));
  const auto infinity = static_cast<Key>((sign - 1) >> fraction << fraction);
  const auto any = static_cast<Key>(static_cast<uint64_t>(draw()) << 32 | draw());
  switch (data) {
    case Data::random:
      return any;
    case Data::few:
      return static_cast<Key>(any % 3);
    case Data::equal:
      return static_cast<Key>(infinity / 3);
    case Data::sorted:
      return static_cast<Key>(i);
    case Data::reversed:
      return static_cast<Key>(n - i);
    case Data::special: {
      const Key kinds[] = {0,
                           sign,
                           infinity,
                           static_cast<Key>(infinity | sign),
                           static_cast<Key>(infinity + 1 + any % 7),
                           static_cast<Key>((infinity + 1 + any % 7) | sign),
                           static_cast<Key>(~Key(0)),
                           any};
      return kinds[below(8)];
    }
    default: {  // the worst keys of every type, and few others
      const Key kinds[] = {0, sign, static_cast<Key>(sign - 1), static_cast<Key>(~Key(0))};
      return below(9) ? kinds[(n + bits) % 4] : any;
    }
  }
}

template <class Key>
void check(Dtype dtype, unsigned seed) {
  draw.seed(seed);
  simt::random.seed(seed);
  const int64_t n = below(3) ? 1 + below(40) * (below(2) ? 4 : 1) : 1 + below(600);
  const int64_t most = sizeof(Key) == 8 ? 8 : topk_tuning::kThreadMaxK;  // what the plan gives it
  const int64_t k = 1 + below(std::min<int64_t>(n, most));
  const int64_t inner = below(4) ? 1 : 1 + below(3), rows = inner * (1 + below(40 / inner + 1));
  const bool largest = below(2), wide_index = below(2), masked = below(3) == 0;
  const auto data = static_cast<Data>(below(static_cast<int>(Data::kinds)));
  const int64_t gap = below(3) ? 0 : below(9), offset = below(2) ? 0 : below(17);
  const int64_t density = 1 + below(10);

  std::vector<Key> storage(offset + rows * (n + gap) + 16 / sizeof(Key));
  int64_t shift = 0;
  while (reinterpret_cast<uintptr_t>(&storage[shift]) % 16) ++shift;
  storage.resize(shift + offset + rows * (n + gap) - gap);  // ends with the last element
  std::vector<Key> exact(storage);
  Key* const x = exact.data() + shift + offset;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < n; ++i) x[r * (n + gap) + i] = element<Key>(dtype, data, i, n);
  const bool shared_mask = below(3) == 0;  // one for all rows
  std::vector<uint8_t> mask((shared_mask ? 1 : rows) * n);
  for (auto& keep : mask) keep = below(density) != 0;
  std::vector<Key> values(rows * k, Key(77));
  std::vector<int64_t> wide(wide_index ? rows * k : 0, -7);
  std::vector<int32_t> narrow(wide_index ? 0 : rows * k, -7);

  TopkProblem problem{dtype, rows, n, k, below(2) ? 132 : 1, TopkAlgo::thread_row, masked};
  if (below(3) == 0) problem.sms = static_cast<int>(1 + below(4));
  TopkPlan plan = plan_topk(problem);
  if (plan.algo != TopkAlgo::thread_row) {
    std::fprintf(stderr, "seed %u: %s [%ld, %ld] k=%ld is not for thread_row\n", seed,
                 dtype_name(dtype), rows, n, k);
    std::exit(1);
  }
  if (below(4) == 0) plan.grid = 1;  // warps take several tiles
  TopkArgs args;
  args.input = x;
  args.mask = masked ? mask.data() : nullptr;
  args.values = values.data();
  args.indices = wide_index ? static_cast<void*>(wide.data()) : narrow.data();
  args.rows = rows, args.n = n, args.k = k, args.inner = inner;
  args.dtype = dtype, args.largest = largest, args.wide_index = wide_index;
  args.in = {inner * (n + gap), n + gap, 1};
  args.drop = shared_mask ? RowMap{0, 0, 1} : RowMap{inner * n, n, 1};
  launch_topk_thread(args, plan, nullptr);

  const Key fill = fill_bits<Key>(args);
  for (int64_t r = 0; r < rows; ++r) {
    const Key* const row = x + r * (n + gap);
    std::vector<int64_t> order;
    for (int64_t i = 0; i < n; ++i)
      if (!masked || mask[(shared_mask ? 0 : r * n) + i]) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return before(dtype, largest, row[a], row[b]); });
    for (int64_t i = 0; i < k; ++i) {
      const int64_t at = (r / inner * k + i) * inner + r % inner;
      const int64_t got = wide_index ? wide[at] : narrow[at];
      const bool there = i < static_cast<int64_t>(order.size());
      const int64_t expected = there ? order[i] : -1;
      if (got == expected && values[at] == (there ? row[expected] : fill)) continue;
      std::fprintf(stderr,
                   "seed %u: %s [%ld, %ld] k=%ld data %d largest %d mask %d lanes %d inner %ld gap "
                   "%ld offset %ld: rank %ld of row %ld is %ld, not %ld\n",
                   seed, dtype_name(dtype), rows, n, k, static_cast<int>(data), largest, masked,
                   plan.lanes, inner, gap, offset, i, r, got, expected);
      std::exit(1);
    }
  }
}

}  // namespace

int main(int count, char** words) {
  const unsigned seed = count > 1 ? static_cast<unsigned>(std::atoi(words[1])) : 1;
  const unsigned cases = count > 2 ? static_cast<unsigned>(std::atoi(words[2])) : 25;
  for (unsigned i = seed * 100000; i < seed * 100000 + cases; ++i) {
    check<uint32_t>(Dtype::f32, i);
    check<uint16_t>(Dtype::f16, i);
    check<uint16_t>(Dtype::bf16, i);
    check<uint64_t>(Dtype::f64, i);
    check<uint8_t>(Dtype::u8, i);
    check<uint8_t>(Dtype::i8, i);
    check<uint16_t>(Dtype::i16, i);
    check<uint16_t>(Dtype::u16, i);
    check<uint32_t>(Dtype::i32, i);
    check<uint32_t>(Dtype::u32, i);
    check<uint64_t>(Dtype::i64, i);
    check<uint64_t>(Dtype::u64, i);
  }
}
