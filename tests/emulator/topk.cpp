// Runs topk's kernels on the host and compares with a stable sort: emulated_topk SEED. Silent when
// all is well.
#include <numeric>

#include "topk/filter.h"
#include "topk/plan.h"

using namespace gpuprims;

namespace {

// crowded: all of the best, rising, in the same group of threads of part_row.
// hidden, shown: the least or the greatest are where a block of 128 threads takes its sample.
enum class Data {
  random,
  few,
  equal,
  crowded,
  sorted,
  hidden,
  shown,
  narrow,
  outliers,
  nan,
  worst,
  special  // floats
};

// 16 runs of 32 vectors of 4, spread evenly.
bool sampled(int64_t at, int64_t n) {
  for (int64_t run = 0; run < 16; ++run) {
    const int64_t start = run * (n / 4 / 32) / 16 * 128;
    if (at >= start && at < start + 128) return true;
  }
  return false;
}

// The filter's kernels and the last one, with the host's sort in between.
template <class T>
void run_radix(const TopkArgs& args) {
  const RadixPlan plan = plan_radix(args.dtype, args.rows, args.n, args.k, 1, 64,
                                    args.rows > 3 ? 1 : 132);  // few blocks: one a row
  std::vector<unsigned char> workspace(plan.bytes + 16, 0xAB);
  unsigned char* const base = workspace.data();
  FilterSpace space;
  const T* values = static_cast<const T*>(args.input);
  if (plan.filtered) {
    space.rows = reinterpret_cast<FilterRow*>(base);
    space.bins = reinterpret_cast<uint32_t*>(base + plan.bins_at);
    space.counts = reinterpret_cast<uint2*>(base + plan.counts_at);
    space.values = base + plan.values_at;
    space.columns = reinterpret_cast<uint32_t*>(base + plan.columns_at);
    space.chunk = plan.chunk, space.chunks = plan.chunks, space.bins_per_row = plan.bins;
    launch_topk_filter(args, space, nullptr);
    values = static_cast<const T*>(space.values);
  }
  const int64_t n = plan.sorted_n;
  std::vector<int64_t> positions(args.rows * n);
  std::vector<T> sorted(args.rows * n);
  for (int64_t r = 0; r < args.rows; ++r) {
    int64_t* const row = positions.data() + r * n;
    std::iota(row, row + n, 0);
    std::stable_sort(row, row + n, [&](int64_t a, int64_t b) {
      const T x = values[r * n + a], y = values[r * n + b];
      return args.largest ? x > y : x < y;
    });
    for (int64_t i = 0; i < n; ++i) sorted[r * n + i] = values[r * n + row[i]];
  }
  FilterEmit emit;
  emit.sorted = sorted.data(), emit.positions = positions.data(), emit.columns = space.columns;
  emit.values = args.values, emit.indices = args.indices;
  emit.rows = args.rows, emit.k = args.k, emit.pitch = n;
  launch_topk_emit(emit, sizeof(T), true, nullptr);
}

// narrow: the leading bits agree; outliers: the same number, but for one in fifty.
float special(Data data, std::mt19937& random) {
  const uint32_t any = random();
  const float choices[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1.0f, -1.0f};
  uint32_t bits = 0x3f800000u | (any & 0xff);
  if (data == Data::outliers && any % 50 == 0) bits = any & 0xff7fffffu;
  if (data == Data::outliers && any % 50 != 0) bits = 0x3f800000u;
  if (data == Data::nan) bits = 0x7fc00000u | any % 3 | any << 31;
  if (data == Data::worst) bits = 0xff800000u;
  float out;
  std::memcpy(&out, &bits, 4);
  return data == Data::special ? choices[any % 8] : out;
}

template <class T>
void check(Dtype dtype, int64_t rows, int64_t n, int64_t k, Data data, bool largest, unsigned seed,
           TopkAlgo forced = TopkAlgo::automatic, int sms = 132) {
  std::mt19937 random(seed);
  simt::random.seed(seed);
  std::vector<T> storage(rows * n + 64);
  T* x = storage.data();
  while (reinterpret_cast<uintptr_t>(x) % 16) ++x;
  for (int64_t i = 0; i < rows * n; ++i) {
    const int drawn = static_cast<int>(random() % 20001) - 10000;
    if (data >= Data::narrow) {
      if constexpr (std::is_floating_point_v<T>) x[i] = special(data, random);
      continue;
    }
    if (data >= Data::hidden) {
      const int there = sampled(i % n, n) ? (data == Data::shown ? 20000 : -20000) : 0;
      x[i] = static_cast<T>(drawn + there);
      continue;
    }
    x[i] = static_cast<T>(data == Data::random                        ? drawn
                          : data == Data::few                         ? drawn % 3
                          : data == Data::equal                       ? 1
                          : data == Data::crowded && i / 4 % 128 == 3 ? 20000 + i
                          : data == Data::crowded                     ? drawn
                                                                      : i % n);
  }
  std::vector<T> values(rows * k);
  std::vector<int64_t> indices(rows * k, -7);
  TopkProblem problem{dtype, rows, n, k, sms, forced};
  problem.vectors = forced == TopkAlgo::lanes || forced == TopkAlgo::warp_row ||
                    forced == TopkAlgo::cluster_row || forced == TopkAlgo::part_row;
  const TopkPlan plan = plan_topk(problem);
  std::vector<unsigned char> workspace(plan.workspace);
  TopkArgs args;
  args.input = x;
  args.values = values.data();
  args.indices = indices.data();
  args.rows = rows, args.n = n, args.k = k, args.dtype = dtype, args.largest = largest;
  args.in = {n, n, 1};
  if (forced != TopkAlgo::automatic && plan.algo != forced) std::abort();
  std::vector<uint32_t> tickets(rows);
  if (plan.algo == TopkAlgo::part_row)
    launch_topk_part(args, plan, workspace.data(), tickets.data(), nullptr);
  else if (plan.algo == TopkAlgo::cluster_row)
    launch_topk_cluster(args, plan, nullptr);
  else if (plan.algo == TopkAlgo::warp_row)
    launch_topk_warp(args, plan, nullptr);
  else if (plan.algo == TopkAlgo::count_row)
    launch_topk_count(args, plan, nullptr);
  else if (plan.algo == TopkAlgo::lanes)
    launch_topk_lanes(args, plan, nullptr);
  else if (plan.algo == TopkAlgo::radix)
    run_radix<T>(args);
  else if (plan.algo == TopkAlgo::sort)
    launch_topk_sort(args, plan, workspace.data(), nullptr);
  else
    launch_topk_stream(args, plan, workspace.data(), nullptr);
  if (std::any_of(tickets.begin(), tickets.end(), [](uint32_t ticket) { return ticket != 0; }))
    std::abort();
  for (int64_t r = 0; r < rows; ++r) {
    const T* const row = x + r * n;
    std::vector<int64_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    using Key = KeyOf<sizeof(T)>;
    const auto codec = make_codec<Key>(dtype, largest);
    const auto bits = [](const T* at) {
      Key key;
      std::memcpy(&key, at, sizeof key);
      return key;
    };
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return codec.encode(bits(row + a)) > codec.encode(bits(row + b));
    });
    for (int64_t i = 0; i < k; ++i) {
      if (indices[r * k + i] == order[i] && bits(&values[r * k + i]) == bits(row + order[i]))
        continue;
      std::fprintf(
          stderr,
          "%s [%ld, %ld] k=%ld data %d largest %d, %s: rank %ld of row %ld is %ld, not %ld\n",
          dtype_name(dtype), rows, n, k, static_cast<int>(data), largest, topk_algo_name(plan.algo),
          i, r, indices[r * k + i], order[i]);
      std::exit(1);
    }
  }
}

}  // namespace

int main(int count, char** words) {
  const unsigned seed = count > 1 ? static_cast<unsigned>(std::atoi(words[1])) : 1;
  const Data kinds[] = {Data::random,   Data::few, Data::equal, Data::sorted, Data::narrow,
                        Data::outliers, Data::nan, Data::worst, Data::special};
  for (Data data : kinds) {
    const int64_t whole[][2] = {{100, 5}, {16, 4},   {64, 6},  {128, 6},
                                {256, 8}, {256, 12}, {500, 24}};
    for (const auto& [n, k] : whole)
      check<float>(Dtype::f32, 11, n, k, data, true, seed, TopkAlgo::lanes);
    const int64_t longer[][2] = {{64, 5}, {516, 32}, {1000, 1}, {1024, 17}, {4096, 32}};
    for (const auto& [n, k] : longer)
      check<float>(Dtype::f32, 5, n, k, data, true, seed, TopkAlgo::warp_row);
    const int64_t few[][2] = {{64, 5}, {1000, 1}, {10000, 10}, {16384, 96}, {4096, 32}};
    for (const auto& [n, k] : few)
      check<float>(Dtype::f32, 2, n, k, data, true, seed, TopkAlgo::cluster_row);
    const int64_t parts[][4] = {{2, 20000, 20, 7},  {1, 70000, 5, 1},  {1, 100000, 96, 2},
                                {3, 9000, 192, 9},  {1, 4096, 1, 5},   {1, 40000, 30, 132},
                                {5, 9000, 64, 5},   {3, 32768, 96, 3}, {4, 700, 1, 9},
                                {1, 32768, 100, 2}, {1, 2560, 24, 132}};
    for (const auto& [rows, n, k, sms] : parts)
      check<float>(Dtype::f32, rows, n, k, data, true, seed, TopkAlgo::part_row, sms);
    const int64_t any[][3] = {{5, 1, 1},    {70, 3, 2},    {300, 10, 9},   {33, 32, 31},
                              {9, 100, 64}, {3, 257, 256}, {2, 1024, 700}, {700, 17, 17}};
    for (const auto& [rows, n, k] : any) {
      const int sms = (seed + rows + n) % 2 ? 132 : 1;
      check<float>(Dtype::f32, rows, n, k, data, sms == 1, seed, TopkAlgo::count_row, sms);
      check<double>(Dtype::f64, rows, n, k, data, sms != 1, seed, TopkAlgo::count_row, sms);
      if (data > Data::sorted) continue;
      check<uint8_t>(Dtype::u8, rows, n, k, data, true, seed, TopkAlgo::count_row, sms);
      check<int16_t>(Dtype::i16, rows, n, k, data, sms == 1, seed, TopkAlgo::count_row, sms);
      check<int64_t>(Dtype::i64, rows, n, k, data, sms != 1, seed, TopkAlgo::count_row, sms);
    }
  }
  check<float>(Dtype::f32, 1, 1000000, 180, Data::crowded, true, seed, TopkAlgo::part_row, 2);
  check<float>(Dtype::f32, 2, 200000, 64, Data::crowded, true, seed, TopkAlgo::part_row, 2);
  const int64_t shapes[][3] = {{3, 7, 3},       {5, 33, 8},     {9, 256, 8},    {4, 511, 24},
                               {1, 512, 200},   {1, 4097, 50},  {2, 4097, 50},  {2, 3001, 64},
                               {2, 3000, 3000}, {1, 40000, 20}, {1, 5000, 5000}};
  for (const auto& [rows, n, k] : shapes) {  // thread_row has a program of its own
    const TopkAlgo forced = n <= 512 ? TopkAlgo::block_row : TopkAlgo::automatic;
    for (Data data : {Data::random, Data::few, Data::equal, Data::sorted}) {
      check<float>(Dtype::f32, rows, n, k, data, seed % 2, seed, forced);
      if (n > 4000) continue;
      check<uint8_t>(Dtype::u8, rows, n, k, data, true, seed, forced);
      check<int64_t>(Dtype::i64, rows, n, k, data, false, seed, forced);
    }
  }
  for (Data data : {Data::random, Data::few}) {
    check<float>(Dtype::f32, 2, 7000, 5000, data, true, seed, TopkAlgo::sort);
    check<uint8_t>(Dtype::u8, 2, 3000, 3000, data, false, seed, TopkAlgo::sort);
    check<int16_t>(Dtype::i16, 1, 5000, 2100, data, true, seed, TopkAlgo::sort);
    check<int64_t>(Dtype::i64, 2, 3000, 10, data, false, seed, TopkAlgo::sort);
    check<uint8_t>(Dtype::u8, 1, 200000, 20, data, true, seed, TopkAlgo::split_row, 3);
    check<int16_t>(Dtype::i16, 1, 100000, 20, data, false, seed, TopkAlgo::split_row, 3);
    check<int32_t>(Dtype::i32, 1, 50000, 20, data, true, seed, TopkAlgo::split_row, 3);
    check<int64_t>(Dtype::i64, 1, 30000, 20, data, false, seed, TopkAlgo::split_row, 3);
    check<float>(Dtype::f32, 1, 200001, 20, data, true, seed, TopkAlgo::split_row, 2);
    check<float>(Dtype::f32, 2, 150000, 1500, data, false, seed, TopkAlgo::split_row, 4);
  }
  for (Data data : {Data::random, Data::few, Data::equal, Data::sorted}) {
    check<float>(Dtype::f32, 2, 20011, 4500, data, seed % 2, seed, TopkAlgo::radix);
    check<uint8_t>(Dtype::u8, 1, 30001, 5000, data, true, seed, TopkAlgo::radix);
    check<int64_t>(Dtype::i64, 2, 9001, 300, data, false, seed, TopkAlgo::radix);
    check<int16_t>(Dtype::i16, 4, 17001, 30, data, true, seed, TopkAlgo::radix);
  }
  for (Data data : {Data::random, Data::hidden, Data::shown, Data::sorted})
    check<float>(Dtype::f32, 3, 20000, 64, data, true, seed, TopkAlgo::block_row, 1);
  check<float>(Dtype::f32, 530, 600, 20, Data::random, true, seed);  // small blocks
}
