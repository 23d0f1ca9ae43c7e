// Runs approx_topk's first stage and its way back on the host: emulated_approx SEED. Prints the
// share of the k best that are among the candidates; fails where a bucket's best are wrong.
#include <numeric>

#include "topk/approx_kernels.h"

using namespace gpuprims;

namespace {

template <class T>
void check(Dtype dtype, int64_t rows, int64_t n, int64_t buckets, int keep, bool largest,
           int distinct, unsigned seed) {
  std::mt19937 random(seed);
  simt::random.seed(seed);
  std::vector<T> x(rows * n);
  for (T& value : x) value = static_cast<T>(static_cast<int>(random() % distinct) - distinct / 2);
  const int64_t candidates = buckets * keep;
  std::vector<T> values(rows * candidates);
  std::vector<int32_t> columns(rows * candidates, -7);
  ApproxArgs args;
  args.input = x.data();
  args.values = values.data();
  args.columns = columns.data();
  args.rows = rows, args.n = n, args.buckets = buckets, args.keep = keep;
  args.dtype = dtype, args.largest = largest;
  launch_bucket_best(args, nullptr);
  for (int64_t r = 0; r < rows; ++r) {
    const T* const row = x.data() + r * n;
    for (int64_t b = 0; b < buckets; ++b) {
      std::vector<int64_t> order;
      for (int64_t j = b; j < n; j += buckets) order.push_back(j);
      std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
        return largest ? row[i] > row[j] : row[i] < row[j];
      });
      for (int i = 0; i < keep; ++i) {
        const int64_t at = r * candidates + i * buckets + b;
        if (columns[at] == order[i] && values[at] == row[order[i]]) continue;
        std::fprintf(
            stderr,
            "%s [%ld, %ld], best %d of %ld buckets: place %d of bucket %ld is %d, not %ld\n",
            dtype_name(dtype), rows, n, keep, buckets, i, b, columns[at], order[i]);
        std::exit(1);
      }
    }
  }
  const int64_t k = std::min<int64_t>(candidates, 33);
  std::vector<int64_t> indices(rows * k);
  for (int64_t i = 0; i < rows * k; ++i) indices[i] = (i * 7) % candidates;
  launch_remap(indices.data(), columns.data(), rows, k, candidates, nullptr);
  for (int64_t i = 0; i < rows * k; ++i)
    if (indices[i] != columns[i / k * candidates + (i * 7) % candidates]) std::exit(2);
}

// The share of the k best of a row of distinct values that the candidates hold.
double recall(int64_t n, int64_t k, const ApproxPlan& plan, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> x(n);
  std::iota(x.begin(), x.end(), 0.f);
  std::shuffle(x.begin(), x.end(), random);
  std::vector<float> values(plan.candidates());
  std::vector<int32_t> columns(plan.candidates());
  ApproxArgs args;
  args.input = x.data();
  args.values = values.data();
  args.columns = columns.data();
  args.rows = 1, args.n = n, args.buckets = plan.buckets, args.keep = plan.keep;
  launch_bucket_best(args, nullptr);
  const auto found = std::count_if(values.begin(), values.end(),
                                   [&](float value) { return value >= static_cast<float>(n - k); });
  return static_cast<double>(found) / static_cast<double>(k);
}

}  // namespace

int main(int count, char** words) {
  const unsigned seed = count > 1 ? static_cast<unsigned>(std::atoi(words[1])) : 1;
  for (int keep : {1, 2, 4})
    for (int64_t n : {1024, 1501, 5000})
      for (int distinct : {1, 5, 20001}) {
        check<float>(Dtype::f32, 3, n, 128, keep, true, distinct, seed);
        check<float>(Dtype::f32, 1, n, 128, keep, false, distinct, seed);
        check<int32_t>(Dtype::i32, 2, n, 128, keep, true, distinct, seed);
        check<uint16_t>(Dtype::u16, 2, n, 128, keep, false, distinct, seed);
        check<int16_t>(Dtype::i16, 2, n, 128, keep, true, distinct, seed);
      }
  const int64_t n = 8192, k = 128;
  const ApproxPlan plan = plan_approx(Dtype::f32, n, k, 0.95, ApproxMode::buckets);
  double mean = 0;
  const int draws = 40;
  for (int draw = 0; draw < draws; ++draw) mean += recall(n, k, plan, seed * 1000 + draw) / draws;
  std::printf("%ld %d %.6f %.6f\n", plan.buckets, plan.keep, plan.recall, mean);
}
