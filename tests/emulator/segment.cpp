// Runs the kernels of segment_topk and merge_topk on the host and compares with a stable sort:
// emulated_segment SEED. Silent when all is well.
#include <cstring>
#include <limits>
#include <numeric>

#include "simt.h"
#include "topk/merge_op_kernels.h"
#include "topk/segment_kernels.h"

using namespace gpuprims;

extern "C" cudaError_t cudaMemsetAsync(void* p, int value, size_t count, cudaStream_t) {
  std::memset(p, value, count);
  return cudaSuccess;
}

namespace {

enum class Data { random, few, equal, sorted };

template <class T>
T* aligned(std::vector<T>& storage, int64_t offset) {
  T* x = storage.data();
  while (reinterpret_cast<uintptr_t>(x) % 16) ++x;
  return x + offset;
}

template <class T>
void draw(T* x, int64_t n, Data data, std::mt19937& random) {
  for (int64_t i = 0; i < n; ++i) {
    const int drawn = static_cast<int>(random() % 20001) - 10000;
    x[i] = static_cast<T>(data == Data::random  ? drawn
                          : data == Data::few   ? drawn % 3
                          : data == Data::equal ? 1
                                                : i);
  }
}

void die(const char* what, int64_t s, int64_t slot, int64_t have, int64_t want) {
  std::fprintf(stderr, "%s: slot %ld of %ld is %ld, not %ld\n", what, slot, s, have, want);
  std::exit(1);
}

// What prepare says of offsets where there is nothing to select, by the plan of segment_cuda.cpp.
void check_offsets(const std::vector<int64_t>& indptr, int64_t n, int want) {
  SegmentArgs args;
  args.indptr = indptr.data();
  args.n = n, args.segments = static_cast<int64_t>(indptr.size()) - 1;
  const SegmentPlan plan = plan_segment_topk(
      {Dtype::f32, n, std::max<int64_t>(args.segments, 1), 1, 132, 227 << 10, true, 0});
  std::vector<uint64_t> workspace(plan.workspace / 8 + 1, 0xABABABABABABABABu);
  auto* const base = reinterpret_cast<char*>(workspace.data());
  SegmentSpace space;
  space.header = reinterpret_cast<SegmentHeader*>(base);
  space.chunks = reinterpret_cast<SegmentChunk*>(base + plan.chunks_at);
  space.big = reinterpret_cast<int64_t*>(base + plan.big_at);
  space.medium = reinterpret_cast<int64_t*>(base + plan.medium_at);
  launch_segment_prepare(args, plan, space, nullptr);
  if (space.header->flag != want) die("flag", args.segments, 0, space.header->flag, want);
}

// `offset`: elements behind a 16-byte boundary where values begin; bad: offsets that are none.
template <class T>
void check_segments(Dtype dtype, const std::vector<int64_t>& lengths, int64_t k, Data data,
                    bool largest, bool counted, bool bad, int64_t offset, unsigned seed) {
  std::mt19937 random(seed);
  simt::random.seed(seed);
  const auto segments = static_cast<int64_t>(lengths.size());
  std::vector<int64_t> indptr{0};
  for (int64_t length : lengths) indptr.push_back(indptr.back() + length);
  const int64_t n = indptr.back();
  std::vector<T> storage(n + 64);
  T* const x = aligned(storage, offset);
  draw(x, n, data, random);
  std::vector<int32_t> counts;
  for (int64_t s = 0; s < segments; ++s) counts.push_back(static_cast<int32_t>(random() % (k + 3)));
  std::vector<T> values(segments * k, T(77));
  std::vector<int64_t> indices(segments * k, -7);
  if (bad) indptr[segments / 2] = n + 5;

  SegmentArgs args;
  args.values = x;
  args.indptr = indptr.data();
  if (counted) args.counts = counts.data(), args.wide_counts = false;
  args.out_values = values.data();
  args.out_indices = indices.data();
  args.n = n, args.segments = segments, args.k = k;
  args.dtype = dtype, args.bytes = dtype_bytes(dtype), args.largest = largest;
  args.missing = missing_bits(dtype, largest);
  args.bad = bad_bits(dtype);
  SegmentPlan plan = plan_segment_topk({dtype, n, segments, k, 132, 227 << 10, true, 0});
  if (plan.chunks > 0 && seed % 2) {  // as if there were thousands of chunks: more rounds
    plan.fan = 2;
    for (plan.rounds = 1; 1 << plan.rounds < plan.chunks;) ++plan.rounds;
  }
  std::vector<uint64_t> workspace(plan.workspace / 8 + 1, 0xABABABABABABABABu);
  auto* const base = reinterpret_cast<char*>(workspace.data());
  SegmentSpace space;
  space.header = reinterpret_cast<SegmentHeader*>(base);
  space.bounds = reinterpret_cast<unsigned long long*>(base + segment_tuning::kHeader);
  space.chunks = reinterpret_cast<SegmentChunk*>(base + plan.chunks_at);
  space.big = reinterpret_cast<int64_t*>(base + plan.big_at);
  space.medium = reinterpret_cast<int64_t*>(base + plan.medium_at);
  space.pairs = base + plan.pairs_at;
  if (plan.passes > 1) space.ceilings = base + plan.ceilings_at;
  launch_segment_prepare(args, plan, space, nullptr);
  for (int64_t pass = 0; pass < plan.passes; ++pass) {
    args.first = pass * plan.width;
    if (pass > 0) std::memset(base + kSegmentCounters, 0, plan.reset - kSegmentCounters);
    if (plan.big + plan.medium + plan.chunks > 0) launch_segment_items(args, plan, space, nullptr);
    if (pass == 0) launch_segment_small(args, plan, space, nullptr);
    if (plan.chunks > 0) launch_segment_merge(args, plan, space, nullptr);
    if (plan.big + plan.medium + plan.chunks == 0) break;
  }

  for (int64_t s = 0; s < segments; ++s) {
    if (bad) {
      for (int64_t i = 0; i < k; ++i)
        if (indices[s * k + i] != -1) die("bad offsets", s, i, indices[s * k + i], -1);
      continue;
    }
    const T* const row = x + indptr[s];
    std::vector<int64_t> order(lengths[s]);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return largest ? row[a] > row[b] : row[a] < row[b];
    });
    for (int64_t i = 0; i < k; ++i) {
      const bool there = i < lengths[s] && (!counted || i < counts[s]);
      const int64_t want = there ? indptr[s] + order[i] : -1;
      if (indices[s * k + i] != want) die(dtype_name(dtype), s, i, indices[s * k + i], want);
      if (there ? values[s * k + i] != x[want]
                : std::memcmp(&values[s * k + i], &args.missing, sizeof(T)) != 0)
        die("value", s, i, static_cast<int64_t>(values[s * k + i]), -1);
    }
  }
}

template <class T>
void check_merge(Dtype dtype, int64_t rows, int64_t m, int64_t k, Data data, bool largest,
                 unsigned seed) {
  std::mt19937 random(seed);
  simt::random.seed(seed);
  std::vector<T> x(rows * m), values(rows * k);
  std::vector<int64_t> of(rows * m), indices(rows * k, -7), positions(rows * k, -7);
  draw(x.data(), rows * m, data, random);
  for (auto& index : of)
    index = random() % 5 == 0 ? -1 : static_cast<int64_t>(random() % (2 * m)) << 30;
  MergeArgs args;
  args.values = x.data(), args.indices = of.data();
  args.out_values = values.data(), args.out_indices = indices.data();
  args.out_positions = positions.data();
  args.rows = rows, args.m = m, args.k = k;
  args.dtype = dtype, args.bytes = dtype_bytes(dtype), args.largest = largest;
  args.missing = missing_bits(dtype, largest);
  launch_merge_rows(args, 132, nullptr);
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < m; ++i)
      if (of[r * m + i] >= 0) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      const T left = x[r * m + a], right = x[r * m + b];
      return left != right ? (largest ? left > right : left < right)
                           : of[r * m + a] < of[r * m + b];
    });
    for (int64_t i = 0; i < k; ++i) {
      const bool there = i < static_cast<int64_t>(order.size());
      const int64_t want = there ? order[i] : -1;
      if (positions[r * k + i] != want) die("merge", r, i, positions[r * k + i], want);
      if (indices[r * k + i] != (there ? of[r * m + want] : -1))
        die("merge index", r, i, indices[r * k + i], want);
      if (there ? values[r * k + i] != x[r * m + want]
                : std::memcmp(&values[r * k + i], &args.missing, sizeof(T)) != 0)
        die("merge value", r, i, static_cast<int64_t>(values[r * k + i]), -1);
    }
  }
}

}  // namespace

int main(int count, char** words) {
  const unsigned seed = count > 1 ? static_cast<unsigned>(std::atoi(words[1])) : 1;
  std::mt19937 random(seed);
  std::vector<int64_t> tiny, mixed{600, 0, 6000, 33, 9000, 160, 0, 512, 513, 161, 24, 1, 32, 31, 9};
  for (int i = 0; i < 150; ++i) tiny.push_back(random() % 4 == 0 ? 0 : random() % 34);
  const std::vector<int64_t> cut{10, 70000, 0, 140000, 5}, one{20000};
  for (Data data : {Data::random, Data::few, Data::equal, Data::sorted}) {
    const bool largest = (seed + static_cast<unsigned>(data)) % 2;
    const auto all = [&](const std::vector<int64_t>& lengths, int64_t k, bool counted) {
      check_segments<float>(Dtype::f32, lengths, k, data, largest, counted, false, 1, seed);
      check_segments<int64_t>(Dtype::i64, lengths, k, data, !largest, counted, false, 0, seed);
      check_segments<uint8_t>(Dtype::u8, lengths, k, data, largest, counted, false, 5, seed);
    };
    all(tiny, 5, false);
    all(tiny, 40, true);
    all(mixed, 3, true);
    all(mixed, 100, false);
    check_segments<float>(Dtype::f32, mixed, 700, data, largest, false, false, 3, seed);
    check_segments<float>(Dtype::f32, mixed, 5000, data, largest, true, false, 3, seed);
    check_segments<float>(Dtype::f32, one, 10000, data, largest, false, false, 0, seed);
    check_segments<float>(Dtype::f32, cut, 20, data, largest, true, false, 2, seed);
    check_segments<float>(Dtype::f32, mixed, 20, data, largest, false, true, 2, seed);
    for (const auto& [rows, m, k] : {std::array<int64_t, 3>{9, 16, 4},
                                     {3, 64, 70},
                                     {2, 65, 65},
                                     {2, 513, 100},
                                     {1, 2000, 2000}}) {
      check_merge<float>(Dtype::f32, rows, m, k, data, largest, seed);
      check_merge<int64_t>(Dtype::i64, rows, m, k, data, !largest, seed);
    }
  }
  check_segments<int64_t>(Dtype::i64, cut, 20, Data::random, true, false, false, 1, seed);
  check_segments<float>(Dtype::f32, {70000, 100, 300000}, 300, Data::few, true, false, false, 1,
                        seed);
  check_offsets({0}, 0, 0);
  check_offsets({0}, 3, 1);
  check_offsets({2}, 2, 1);
  check_offsets({0, 90000, 100000}, 100000, 0);
  check_offsets({0, 100000, 90000}, 100000, 1);
  // k beyond the elements, and beyond what the passes that those take fill.
  for (const auto& [length, k] : {std::array<int64_t, 2>{600, 5000},
                                  {5000, 8192},
                                  {5000, 10000},
                                  {20000, 10000},
                                  {20000, 30000}})
    check_segments<float>(Dtype::f32, {length, 3}, k, Data::random, true, false, false, 1, seed);
  check_segments<float>(Dtype::f32, {420000, 0, 5}, 10000, Data::few, true, true, false, 1, seed);
}
