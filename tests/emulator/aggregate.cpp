// Runs the row kernels of aggregation on the host: against sums that are exact in any order, and
// against themselves under other tiles, runs, schedules, load widths and index types, whose bits
// must agree: emulated_aggregate SEED. Silent when all is well.
#include <cstring>
#include <numeric>
#include <string>

#include "aggregate/choose.h"
#include "aggregate/elements.cuh"
#include "aggregate/kernels.h"
#include "simt.h"

using namespace gpuprims;

extern "C" cudaError_t cudaMemsetAsync(void* p, int value, size_t count, cudaStream_t) {
  std::memset(p, value, count);
  return cudaSuccess;
}

namespace {

struct Graph {
  std::vector<int64_t> indptr, indices, ids;  // CSR; ids may be empty
  int64_t columns;
};

// The same edges with integers of the width asked for, behind an address of 16 bytes.
struct Vector {
  std::vector<char> bytes;
  const void* at = nullptr;
  Vector(const std::vector<int64_t>& values, bool wide) : bytes(values.size() * 8 + 32) {
    char* to = bytes.data();
    while (reinterpret_cast<uintptr_t>(to) % 16) ++to;
    at = to;
    for (size_t i = 0; i < values.size(); ++i) {
      if (wide)
        reinterpret_cast<int64_t*>(to)[i] = values[i];
      else
        reinterpret_cast<int32_t*>(to)[i] = static_cast<int32_t>(values[i]);
    }
  }
};

struct Variant {
  bool wide_offsets = false, wide_indices = false, scheduled = false, planned = false;
  int64_t offset = 0;  // of x, in elements behind an address of 16 bytes
  AggregateTuning tuning;
};

template <class T>
Dtype tag() {
  return sizeof(T) == 4              ? Dtype::f32
         : sizeof(T) == 8            ? Dtype::f64
         : std::is_same_v<T, __half> ? Dtype::f16
                                     : Dtype::bf16;
}

template <class T>
T from_double(double v) {
  return narrow<T>(static_cast<typename Math<T>::Acc>(v));
}
// Of Op::affine, where the bias of column f is f % 5.
template <class T>
T factor_of(int64_t row) {
  return from_double<T>(1 + static_cast<double>(row % 3) / 2);
}

enum class Op { sum, mean, max, min, grad, affine };

template <class T>
struct Result {
  std::vector<T> out;
  std::vector<int64_t> arg;
};

// `arg` is an input for Op::grad: [columns, features].
template <class T>
Result<T> run(const Graph& g, const std::vector<T>& values, int64_t features,
              const std::vector<T>& weight, Op op, const std::vector<int64_t>& arg, Variant v,
              std::mt19937& random) {
  const int64_t rows = static_cast<int64_t>(g.indptr.size()) - 1;
  const auto edges = static_cast<int64_t>(g.indices.size());
  // Where the rows are scheduled the graph is copied in that order.
  std::vector<int64_t> order(rows), indptr{0}, indices, ids;
  std::iota(order.begin(), order.end(), 0);
  if (v.scheduled) std::shuffle(order.begin(), order.end(), random);
  for (int64_t row : order) {
    for (int64_t e = g.indptr[row]; e < g.indptr[row + 1]; ++e) {
      indices.push_back(g.indices[e]);
      ids.push_back(g.ids.empty() ? e : g.ids[e]);
    }
    indptr.push_back(static_cast<int64_t>(indices.size()));
  }
  const bool with_ids = v.scheduled || !g.ids.empty();
  Vector p(indptr, v.wide_offsets), i(indices, v.wide_indices), n(ids, v.wide_offsets);
  Vector took(arg, v.wide_offsets);
  const bool extreme = op == Op::max || op == Op::min;
  std::vector<T> storage(values.size() + 64);
  T* x = storage.data();
  while (reinterpret_cast<uintptr_t>(x) % 16)
    x = reinterpret_cast<T*>(reinterpret_cast<char*>(x) + 1);
  x += v.offset;
  std::copy(values.begin(), values.end(), x);
  Result<T> result{std::vector<T>(rows * features),
                   std::vector<int64_t>(extreme ? rows * features : 0)};
  std::vector<int32_t> narrow_arg(result.arg.size());

  AggregateArgs args{};
  args.csr = {p.at,           i.at,           with_ids ? n.at : nullptr,
              v.wide_offsets, v.wide_indices, rows,
              g.columns,      edges,          v.scheduled ? order.data() : nullptr};
  args.x = x;
  args.x_stride = features;
  args.features = features;
  args.edge_weight = weight.empty() ? nullptr : weight.data();
  args.arg = op == Op::grad ? took.at : nullptr;
  args.out = result.out.data();
  if (extreme)
    args.arg_out = v.wide_offsets ? static_cast<void*>(result.arg.data()) : narrow_arg.data();
  std::vector<T> scale(rows), bias(std::max<int64_t>(features, 8) + 8);
  T* above = bias.data();
  while (reinterpret_cast<uintptr_t>(above) % 16) ++above;
  if (op == Op::affine) {
    for (int64_t row = 0; row < rows; ++row) scale[row] = factor_of<T>(row);
    for (int64_t f = 0; f < features; ++f) above[f] = from_double<T>(f % 5);
    args.scale = scale.data();
    args.bias = above;
  }
  args.reduce = op == Op::mean  ? Reduce::mean
                : op == Op::max ? Reduce::max
                : op == Op::min ? Reduce::min
                                : Reduce::sum;
  AggregateFacts facts;
  facts.sources = g.columns;
  facts.checked = facts.planned = v.planned;
  facts.scheduled = v.scheduled;
  facts.positions = extreme;
  facts.taken = op == Op::grad;
  facts.ids = with_ids;
  int64_t longest = 0;
  for (int64_t row = 0; row < rows; ++row)
    longest = std::max(longest, indptr[row + 1] - indptr[row]);
  facts.no_hubs = v.planned && longest < kHubDegree;
  facts.no_long = v.planned && longest < kLongDegree;
  facts.sms = 1 + static_cast<int>(random() % 3);
  facts.tuning = v.tuning;
  const int bytes = static_cast<int>(sizeof(T));
  const int width =
      pick_load_bytes(tag<T>(), reinterpret_cast<uint64_t>(x), features * bytes, features * bytes);
  AggregateLauncher* const launcher =
      op == Op::grad     ? launch_extreme_grad
      : op == Op::affine ? launch_affine
      : extreme          ? (weight.empty() ? launch_extreme : launch_weighted_extreme)
                         : (weight.empty() ? launch_sum : launch_weighted_sum);
  facts.most_warps = most_warps(launcher, width, args);
  facts.plain = (op == Op::affine || ((op == Op::sum || op == Op::mean) && weight.empty())) &&
                takes_vectors(width, args);
  facts.bits = facts.taken && weight.empty() && takes_vectors(width, args);
  facts.may_deepen = facts.plain && launcher == launch_sum && takes_deep(tag<T>(), args);
  facts.narrow = launcher == launch_sum && takes_narrow(tag<T>(), width, args);
  const AggregatePlan plan = plan_aggregate(tag<T>(), width, rows, edges, features, facts);
  const PlanLayout layout = plan_layout(rows, edges);
  std::vector<int64_t> numbers(layout.size, -1);
  alignas(16) int flag[4];
  launch_prepare(args.csr, flag, numbers.data(), false, nullptr);
  std::vector<char> space(plan.space_bytes + 16);
  char* base = space.data();
  while (reinterpret_cast<uintptr_t>(base) % 16) ++base;
  if (plan.prepare) args.flag = flag;
  args.hub_count = numbers.data();
  args.starts = numbers.data() + layout.starts;
  args.hubs = numbers.data() + layout.hubs;
  args.taken = reinterpret_cast<unsigned*>(base + plan.taken_at);
  args.marked = reinterpret_cast<unsigned*>(base + plan.marked_at);
  args.taken_words = plan.taken_words;
  if (plan.hubs) args.partial = base + plan.partial_at;
  if (plan.hubs && extreme)
    args.partial_position = reinterpret_cast<int32_t*>(base + plan.position_at);
  if (rows > 0 && launcher(tag<T>(), plan, args, nullptr) != cudaSuccess) simt::fail("no launch");
  if (!v.wide_offsets) std::copy(narrow_arg.begin(), narrow_arg.end(), result.arg.begin());
  return result;
}

// Row by row in double, with the first NaN or the first extreme.
template <class T>
Result<T> reference(const Graph& g, const std::vector<T>& x, int64_t features,
                    const std::vector<T>& weight, Op op, const std::vector<int64_t>& arg) {
  const int64_t rows = static_cast<int64_t>(g.indptr.size()) - 1;
  Result<T> result{std::vector<T>(rows * features), {}};
  const bool extreme = op == Op::max || op == Op::min;
  if (extreme) result.arg.assign(rows * features, -1);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t f = 0; f < features; ++f) {
      double sum = 0, best = -INFINITY;
      int64_t chosen = -1;
      for (int64_t e = g.indptr[row]; e < g.indptr[row + 1]; ++e) {
        const int64_t id = g.ids.empty() ? e : g.ids[e], source = g.indices[e];
        const bool bad = source < 0 || source >= g.columns;
        double message = bad ? NAN : widen(x[source * features + f]);
        if (!weight.empty()) message *= widen(weight[id]);
        if (op == Op::grad && !bad && arg[source * features + f] != id) continue;
        sum += message;
        const double candidate = op == Op::min ? -message : message;
        if (chosen < 0 || (best == best && !(candidate <= best))) best = candidate, chosen = id;
      }
      const int64_t degree = g.indptr[row + 1] - g.indptr[row], at = row * features + f;
      if (op == Op::mean && degree > 0) sum /= static_cast<double>(degree);
      if (op == Op::affine) sum = sum * widen(factor_of<T>(row)) + static_cast<double>(f % 5);
      if (extreme) sum = degree == 0 ? 0 : op == Op::min ? -best : best;
      result.out[at] = from_double<T>(sum);
      if (extreme) result.arg[at] = chosen;
    }
  }
  return result;
}

template <class T>
void same(const char* what, const Result<T>& a, const Result<T>& b, bool near = false) {
  for (size_t i = 0; i < b.out.size(); ++i) {
    const double x = widen(a.out[i]), y = widen(b.out[i]);
    const bool fine =
        near ? std::fabs(x - y) <= 2e-7 * std::fabs(y) * (sizeof(T) == 2 ? 4e4 : 1) : x == y;
    if (!fine && (x == x || y == y)) {
      std::fprintf(stderr, "%s, %zu bytes: element %zu is %g, not %g\n", what, sizeof(T), i, x, y);
      std::exit(1);
    }
  }
  for (size_t i = 0; i < b.arg.size(); ++i) {
    if (a.arg[i] == b.arg[i]) continue;
    std::fprintf(stderr, "%s: edge of element %zu is %ld, not %ld\n", what, i, a.arg[i], b.arg[i]);
    std::exit(1);
  }
}

Graph make_graph(std::mt19937& random, int kind) {
  Graph g;
  g.columns = 1 + random() % 40;
  g.indptr = {0};
  const int rows = kind == 4 ? 0 : 1 + static_cast<int>(random() % (kind == 0 ? 150 : 30));
  for (int row = 0; row < rows; ++row) {
    int degree = static_cast<int>(random() % 6);
    if (kind == 1 && random() % 3 == 0) degree = 60 + static_cast<int>(random() % 10);
    if (kind == 1 && random() % 5 == 0) degree = 100 + static_cast<int>(random() % 500);
    if (kind >= 2 && random() % 10 == 0)
      degree = 1020 + static_cast<int>(random() % (kind == 3 ? 2000 : 10));
    if (random() % 4 == 0) degree = 0;
    g.indptr.push_back(g.indptr.back() + degree);
  }
  for (int64_t e = 0; e < g.indptr.back(); ++e)
    g.indices.push_back(static_cast<int64_t>(random() % g.columns));
  if (random() % 2) {
    g.ids.resize(g.indices.size());
    std::iota(g.ids.begin(), g.ids.end(), 0);
    std::shuffle(g.ids.begin(), g.ids.end(), random);
  }
  return g;
}

template <class T>
void check(int kind, int64_t features, std::mt19937& random) {
  Graph g = make_graph(random, kind);
  const auto edges = static_cast<int64_t>(g.indices.size());
  const bool bad_edges = edges > 0 && random() % 4 == 0;
  if (bad_edges) g.indices[random() % edges] = random() % 2 ? -1 : g.columns + 5;
  std::vector<T> x(g.columns * features), weights;
  const std::vector<T> none;
  for (auto& value : x) value = from_double<T>(static_cast<int>(random() % 7) - 3);
  if (random() % 2)
    for (int64_t e = 0; e < edges; ++e)
      weights.push_back(from_double<T>(static_cast<int>(random() % 3) - 1));
  if (random() % 4 == 0 && !x.empty()) x[random() % x.size()] = from_double<T>(NAN);
  // Of the edges of a source one for each feature, as max and min choose; or none.
  std::vector<std::vector<int64_t>> of_source(g.columns);
  for (int64_t e = 0; e < edges; ++e)
    if (static_cast<uint64_t>(g.indices[e]) < static_cast<uint64_t>(g.columns))
      of_source[g.indices[e]].push_back(g.ids.empty() ? e : g.ids[e]);
  std::vector<int64_t> arg(g.columns * features);
  for (size_t i = 0; i < arg.size(); ++i) {
    const auto& choice = of_source[i / features];
    arg[i] = choice.empty() || random() % 20 == 0 ? (random() % 2 ? -1 : edges)
                                                  : choice[random() % choice.size()];
  }
  const auto variant = [&](Op op) {
    Variant v;
    v.wide_offsets = random() % 3 == 0;
    v.wide_indices = random() % 4 == 0;
    v.scheduled = random() % 2;
    v.planned = random() % 2;
    v.offset = random() % 2 ? static_cast<int64_t>(random() % 4) : 0;
    const int64_t tiles[] = {0, 128, 256, 512};
    const int64_t units[] = {0, 1, 2, 8, 40, 64};  // of the longest runs some skip over hubs
    if (op == Op::affine) v.wide_indices = false, v.offset = 0;
    v.tuning = {tiles[random() % 4],
                units[random() % 6],
                static_cast<int64_t>(random() % 4),
                static_cast<int>(random() % 4) - 1,
                static_cast<int>(random() % 3) - 1,
                static_cast<int>(random() % 6) - 1};
    return v;
  };
  for (Op op : {Op::sum, Op::mean, Op::max, Op::min, Op::grad, Op::affine}) {
    if (op == Op::affine && (sizeof(T) == 8 || features * sizeof(T) % 16)) continue;
    const std::vector<T>& weight = op == Op::affine ? none : weights;
    const std::string what = "op " + std::to_string(static_cast<int>(op)) + ", graph " +
                             std::to_string(kind) + ", features " + std::to_string(features);
    const auto first = run(g, x, features, weight, op, arg, variant(op), random);
    same((what + ": values").c_str(), first, reference(g, x, features, weight, op, arg),
         op == Op::mean);
    // Values whose sums round: bits must not depend on how the work is dealt.
    std::vector<T> rough = x;
    for (auto& value : rough) value = from_double<T>(widen(value) * 0.3 + 1e-3 * (random() % 1000));
    const auto one = run(g, rough, features, weight, op, arg, variant(op), random);
    const auto two = run(g, rough, features, weight, op, arg, variant(op), random);
    same((what + ": bits").c_str(), two, one);
  }
}

}  // namespace

int main(int, char** argv) {
  std::mt19937 random(static_cast<unsigned>(std::atoi(argv[1])));
  simt::random.seed(random());
  for (int round = 0; round < 3; ++round) {
    for (int kind = 0; kind < 5; ++kind) {
      for (int64_t features : {1, 3, 8, 16, 33, 64, 130, 200}) {
        if (kind == 3 && features > 64 && round > 0) continue;
        check<float>(kind, features, random);
        if (round == 0) check<double>(kind, features, random);
        if (round == 1) check<__half>(kind, features, random);
        if (round == 2) check<__nv_bfloat16>(kind, features, random);
      }
    }
  }
}
