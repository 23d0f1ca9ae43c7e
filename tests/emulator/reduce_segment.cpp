// Runs the kernels of segment_reduce and segment_expand on the host and compares them with the
// trees of the CPU, bit for bit: emulated_reduce_segment SEED. Silent when all is well.
#include <cstring>

#include "reduce/segment_cpu_trees.h"
#include "reduce/segment_kernels.h"
#include "simt.h"

using namespace gpuprims;
using namespace gpuprims::segmented;

extern "C" cudaError_t cudaMemsetAsync(void* p, int value, size_t count, cudaStream_t) {
  std::memset(p, value, count);
  return cudaSuccess;
}

namespace {

struct Half16 {  // float16, of which the emulator knows how to widen
  uint16_t bits;
  explicit operator float() const { return simt::half_value(bits); }
};

// What the emulator stores for a float16: the upper half of a float32.
struct Top16 {
  uint16_t bits;
  Top16() = default;
  explicit Top16(float x) : bits(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16)) {}
  explicit operator double() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

void die(const char* what, Dtype dtype, SegmentOp op, int64_t at, double have, double want) {
  std::fprintf(stderr, "%s: %s %s: %ld is %.9g, not %.9g\n", what, dtype_name(dtype),
               segment_op_name(op), at, have, want);
  std::exit(1);
}

template <class T>
T value(std::mt19937& random) {
  if constexpr (std::is_same_v<T, Half16>)
    return {static_cast<uint16_t>(0x3000 + random() % 0x0c00 + (random() % 2 << 15))};
  else if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(static_cast<int>(random() % 20001) - 10000) / static_cast<T>(4096.7);
  else
    return static_cast<T>(random());
}

// The state of one column by the trees of segment_cpu_trees.h.
template <class Op, class T>
typename Op::State expected_state(const Op& op, const T* x, int64_t rows, int64_t features) {
  using State = typename Op::State;
  if (features > 1) {
    RowTree<Op> tree(op, 1);
    for (int64_t i = 0; i < rows; ++i)
      tree.add(0, x + i * features,
               [&](const T& v) { return op.lift(static_cast<typename Op::Value>(v)); });
    return *tree.finish();
  }
  constexpr int kVector = std::is_integral_v<T> ? 4 : 16 / sizeof(T);
  std::vector<State> chunks;
  for (int64_t at = 0; at < rows; at += kSegmentChunk)
    chunks.push_back(reduce_chunk<kVector>(
        op, x + at, static_cast<int>(std::min<int64_t>(rows - at, kSegmentChunk))));
  return combine_chunks(op, chunks.data(), static_cast<int64_t>(chunks.size()));
}

struct Case {
  std::vector<int64_t> lengths;
  int64_t features = 1;
  SegmentOp op = SegmentOp::sum;
  bool wide = true, bad = false;
  int64_t promises = 0;
  bool aligned = false;  // flat values: at a 16-byte boundary
};

template <class T, class Op, class Out>
void check(Dtype dtype, const Case& c, Op op, unsigned seed) {
  std::mt19937 random(seed);
  simt::random.seed(seed);
  const auto segments = static_cast<int64_t>(c.lengths.size());
  std::vector<int64_t> indptr{0};
  for (int64_t length : c.lengths) indptr.push_back(indptr.back() + length);
  const int64_t n = indptr.back();
  const int vec = c.features % 4 == 0 && sizeof(T) < 8 && !std::is_integral_v<T> ? 4 : 1;
  std::vector<T> storage(n * c.features + 16);
  T* x = storage.data();
  while (reinterpret_cast<uintptr_t>(x) % 16) ++x;
  const bool odd = vec == 1 && !c.aligned;
  if (odd) ++x;
  for (int64_t i = 0; i < n * c.features; ++i) x[i] = value<T>(random);
  std::vector<Out> out(segments * c.features);
  std::memset(out.data(), 0x5a, out.size() * sizeof(Out));
  if (c.bad) indptr[segments / 2] = n + 5;
  std::vector<int32_t> narrow(indptr.begin(), indptr.end());

  SegmentReduceArgs args;
  args.values = x, args.out = out.data();
  args.indptr = c.wide ? static_cast<const void*>(indptr.data()) : narrow.data();
  args.n = n, args.segments = segments, args.features = c.features;
  args.dtype = dtype, args.out_dtype = segment_result(dtype, c.op);
  args.op = c.op, args.wide = c.wide, args.check = !(c.promises & kReduceChecked);
  args.empty = segment_empty_bits(c.op, args.out_dtype);
  args.filler = segment_bad_bits(args.out_dtype);
  const auto plan = plan_segment_reduce(
      {dtype, c.op, n, segments, c.features, vec, 3, args.check, c.promises, !odd});
  std::vector<uint64_t> memory(plan.workspace / 8 + 1, 0xABABABABABABABABu);
  auto* const base = reinterpret_cast<char*>(memory.data());
  const SegmentReduceSpace space{reinterpret_cast<SegmentReduceHeader*>(base),
                                 reinterpret_cast<CutSegment*>(base + plan.list_at),
                                 reinterpret_cast<unsigned*>(base + plan.done_at),
                                 base + plan.states_at};
  if (plan.header) std::memset(base, 0, segment_reduce_tuning::kHeader);
  if (plan.rows) {
    launch_segment_rows(args, plan, space, false, nullptr);
    if (plan.long_blocks > 0) launch_segment_rows(args, plan, space, true, nullptr);
    for (int level = 0; level < plan.levels; ++level)
      launch_segment_levels(args, plan, space, level, nullptr);
  } else {
    launch_segment_tiles(args, plan, space, nullptr);
    if (plan.long_blocks > 0) launch_segment_long(args, plan, space, nullptr);
  }
  for (int64_t at = 0; at < segments * c.features; ++at) {
    const int64_t s = at / c.features, column = at % c.features, length = c.lengths[s];
    Out want;
    if (c.bad) {
      std::memcpy(&want, &args.filler, sizeof want);
    } else if (length == 0) {
      std::memcpy(&want, &args.empty, sizeof want);
    } else {
      auto result =
          op.result(expected_state(op, x + indptr[s] * c.features + column, length, c.features));
      if (c.op == SegmentOp::mean) result = result / static_cast<decltype(result)>(length);
      want = static_cast<Out>(result);
    }
    if (std::memcmp(&want, &out[at], sizeof want) != 0)
      die(c.features > 1 ? "rows" : "flat", dtype, c.op, at, static_cast<double>(out[at]),
          static_cast<double>(want));
  }
}

template <class T, class A, class Out = T, class Sum = T>
void check_ops(Dtype dtype, Case c, unsigned seed) {
  c.op = SegmentOp::sum;
  check<T, FixedOp<A, SegmentOp::sum>, Sum>(dtype, c, {}, seed);
  c.op = SegmentOp::prod;
  check<T, FixedOp<A, SegmentOp::prod>, Sum>(dtype, c, {}, seed);
  c.op = SegmentOp::max;
  check<T, FixedOp<A, SegmentOp::max>, Out>(dtype, c, {}, seed);
  c.op = SegmentOp::min;
  FixedOp<A, SegmentOp::max> least;
  least.turn.negate = true;
  check<T, FixedOp<A, SegmentOp::max>, Out>(dtype, c, least, seed);
  if constexpr (std::is_floating_point_v<A>) {
    c.op = SegmentOp::mean;
    check<T, FixedOp<A, SegmentOp::sum>, Out>(dtype, c, {}, seed);
  }
}

// logsumexp has another tree on the CPU: close is enough.
void check_logsumexp(int64_t features, unsigned seed) {
  std::mt19937 random(seed);
  const std::vector<int64_t> indptr{0, 3, 3, 40, 5000, 15000};
  std::vector<float> x(15000 * features), out(5 * features);
  for (float& v : x) v = value<float>(random);
  SegmentReduceArgs args;
  args.values = x.data(), args.out = out.data(), args.indptr = indptr.data();
  args.n = 15000, args.segments = 5, args.features = features, args.op = SegmentOp::logsumexp;
  args.empty = segment_empty_bits(args.op, Dtype::f32);
  const auto plan = plan_segment_reduce({Dtype::f32, args.op, 15000, 5, features, 1, 3, true, 0});
  std::vector<uint64_t> memory(plan.workspace / 8 + 1);
  auto* const base = reinterpret_cast<char*>(memory.data());
  const SegmentReduceSpace space{reinterpret_cast<SegmentReduceHeader*>(base),
                                 reinterpret_cast<CutSegment*>(base + plan.list_at),
                                 reinterpret_cast<unsigned*>(base + plan.done_at),
                                 base + plan.states_at};
  if (plan.rows) {
    launch_segment_rows(args, plan, space, false, nullptr);
    launch_segment_rows(args, plan, space, true, nullptr);
    for (int level = 0; level < plan.levels; ++level)
      launch_segment_levels(args, plan, space, level, nullptr);
  } else {
    launch_segment_tiles(args, plan, space, nullptr);
    launch_segment_long(args, plan, space, nullptr);
  }
  for (int64_t at = 0; at < 5 * features; ++at) {
    double sum = 0;
    for (int64_t i = indptr[at / features]; i < indptr[at / features + 1]; ++i)
      sum += std::exp(static_cast<double>(x[i * features + at % features]));
    const double want = std::log(sum);
    if (!(std::abs(out[at] - want) < 1e-5 * std::abs(want) + 1e-6) && out[at] != want)
      die("logsumexp", Dtype::f32, args.op, at, out[at], want);
  }
}

template <class Word>
void check_expand(const std::vector<int64_t>& lengths, int64_t features, bool bad, unsigned seed) {
  simt::random.seed(seed);
  const auto segments = static_cast<int64_t>(lengths.size());
  std::vector<int64_t> indptr{0};
  for (int64_t length : lengths) indptr.push_back(indptr.back() + length);
  const int64_t n = indptr.back();
  if (bad) indptr[segments / 2] = n + 5;
  std::vector<Word> x(segments * features), out(n * features, Word(77));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<Word>(i * 7 + 1);
  int flag[16];
  SegmentExpandArgs args;
  args.values = x.data(), args.indptr = indptr.data(), args.out = out.data();
  args.n = n, args.segments = segments, args.features = features;
  args.bytes = sizeof(Word), args.flag = flag, args.filler = 3;
  launch_segment_check(args, nullptr);
  launch_segment_expand(args, nullptr);
  int64_t row = 0;
  for (int64_t s = 0; s < segments; ++s)
    for (int64_t i = 0; i < lengths[s]; ++i, ++row)
      for (int64_t column = 0; column < features; ++column) {
        const Word want = bad ? Word(3) : x[s * features + column];
        const Word have = out[row * features + column];
        if (have != want)
          die("expand", Dtype::u8, SegmentOp::sum, row, static_cast<double>(have),
              static_cast<double>(want));
      }
}

}  // namespace

int main(int count, char** words) {
  const unsigned seed = count > 1 ? static_cast<unsigned>(std::atoi(words[1])) : 1;
  std::mt19937 random(seed);
  std::vector<int64_t> tiny;
  for (int i = 0; i < 700; ++i) tiny.push_back(random() % 4 == 0 ? 0 : random() % 36);
  std::vector<int64_t> mixed{600, 0, 6000, 33, 1025, 160, 0, 512, 16, 17, 24, 1, 32, 31, 9, 129};
  const std::vector<int64_t> equal(20, 1000), cut{10, 40000, 0, 70001, 5, 4096, 4097, 32768};
  std::vector<int64_t> sparse(5000, 0);
  sparse[7] = 40, sparse[4990] = 3000;
  std::vector<int64_t> stages = tiny;
  stages[300] = 3000, stages[301] = 900, stages[302] = 2000;  // a tile that no stage holds
  for (const auto& lengths : {tiny, mixed, equal, cut, sparse, stages}) {
    Case c{lengths};
    c.wide = random() % 2;
    check_ops<float, float>(Dtype::f32, c, seed);
    c.aligned = true;
    check_ops<float, float>(Dtype::f32, c, seed);
    check_ops<double, double>(Dtype::f64, c, seed);
    check<Half16, FixedOp<float, SegmentOp::sum>, Top16>(Dtype::f16, c, {}, seed);
    check_ops<int32_t, int64_t, int32_t, int64_t>(Dtype::i32, c, seed);
    check_ops<uint8_t, int64_t, uint8_t, int64_t>(Dtype::u8, c, seed);
    c.bad = true;
    check<float, FixedOp<float, SegmentOp::sum>, float>(Dtype::f32, c, {}, seed);
  }
  Case checked{tiny};
  checked.promises = kReduceChecked | kReduceShort;
  check<float, FixedOp<float, SegmentOp::sum>, float>(Dtype::f32, checked, {}, seed);
  checked.lengths = {128, 100, 3, 65}, checked.features = 4;  // few rows, none of which may be cut
  check<float, FixedOp<float, SegmentOp::sum>, float>(Dtype::f32, checked, {}, seed);
  checked.features = 1;
  checked.promises = kReduceChecked, checked.lengths = cut;
  check<float, FixedOp<float, SegmentOp::sum>, float>(Dtype::f32, checked, {}, seed);
  const std::vector<int64_t> rows{600, 0, 300, 33, 65, 64, 256, 257, 1, 128, 9};
  for (int64_t features : {2, 4, 12, 33}) {
    Case c{rows, features};
    check_ops<float, float>(Dtype::f32, c, seed);
    check_ops<double, double>(Dtype::f64, c, seed);
    check_ops<int32_t, int64_t, int32_t, int64_t>(Dtype::i32, c, seed);
    c.bad = true;
    check<float, FixedOp<float, SegmentOp::sum>, float>(Dtype::f32, c, {}, seed);
  }
  Case many{tiny, 64};
  check<float, FixedOp<float, SegmentOp::sum>, float>(Dtype::f32, many, {}, seed);
  many.lengths = {300, 70000, 5, 0, 270000}, many.features = 3;  // one and two launches of levels
  check<float, FixedOp<float, SegmentOp::sum>, float>(Dtype::f32, many, {}, seed);
  check_logsumexp(1, seed);
  check_logsumexp(5, seed);
  for (const auto& lengths : {tiny, mixed, sparse}) {
    check_expand<uint32_t>(lengths, 1, false, seed);
    check_expand<uint64_t>(lengths, 3, false, seed);
    check_expand<uint16_t>(lengths, 40, false, seed);
    check_expand<uint8_t>(lengths, 2, true, seed);
  }
}
