// Runs topk's kernels on the host and compares with a stable sort: emulated_topk SEED. Silent when
// all is well.
#include <numeric>

#include "topk/kernels.h"

using namespace gpuprims;

namespace {

enum class Data { random, few, equal, sorted };

template <class T>
void check(Dtype dtype, int64_t rows, int64_t n, int64_t k, Data data, bool largest,
           unsigned seed) {
  std::mt19937 random(seed);
  simt::random.seed(seed);
  std::vector<T> storage(rows * n + 64);
  T* x = storage.data();
  while (reinterpret_cast<uintptr_t>(x) % 16) ++x;
  for (int64_t i = 0; i < rows * n; ++i) {
    const int drawn = static_cast<int>(random() % 20001) - 10000;
    x[i] = static_cast<T>(data == Data::random  ? drawn
                          : data == Data::few   ? drawn % 3
                          : data == Data::equal ? 1
                                                : i % n);
  }
  std::vector<T> values(rows * k);
  std::vector<int64_t> indices(rows * k, -7);
  const TopkPlan plan = plan_topk({dtype, rows, n, k, 132});
  std::vector<unsigned char> workspace(plan.workspace);
  TopkArgs args;
  args.input = x;
  args.values = values.data();
  args.indices = indices.data();
  args.rows = rows, args.n = n, args.k = k, args.dtype = dtype, args.largest = largest;
  args.in = {n, n, 1};
  if (plan.algo == TopkAlgo::warp_row)
    launch_topk_warp(args, plan, nullptr);
  else if (plan.algo == TopkAlgo::sort)
    launch_topk_sort(args, plan, workspace.data(), nullptr);
  else
    launch_topk_stream(args, plan, workspace.data(), nullptr);
  for (int64_t r = 0; r < rows; ++r) {
    const T* const row = x + r * n;
    std::vector<int64_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return largest ? row[a] > row[b] : row[a] < row[b];
    });
    for (int64_t i = 0; i < k; ++i) {
      if (indices[r * k + i] == order[i] && values[r * k + i] == row[order[i]]) continue;
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
  const int64_t shapes[][3] = {{3, 7, 3},       {5, 33, 8},     {9, 256, 8},    {4, 511, 24},
                               {1, 512, 200},   {1, 4097, 50},  {2, 4097, 50},  {2, 3001, 64},
                               {2, 3000, 3000}, {1, 40000, 20}, {1, 5000, 5000}};
  for (const auto& [rows, n, k] : shapes) {
    for (Data data : {Data::random, Data::few, Data::equal, Data::sorted}) {
      check<float>(Dtype::f32, rows, n, k, data, seed % 2, seed);
      if (n > 4000) continue;
      check<uint8_t>(Dtype::u8, rows, n, k, data, true, seed);
      check<int64_t>(Dtype::i64, rows, n, k, data, false, seed);
    }
  }
  check<float>(Dtype::f32, 530, 600, 20, Data::random, true, seed);  // small blocks
}
