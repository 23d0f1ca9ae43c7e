// What the kernels that look at offsets cost where offsets are bad: rows overlap, and following
// each of them would take rows * edges steps. Silent when all is well.
#include "common/launch.h"

template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
void __stcs(T* at, T value) {
  *at = value;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }

#include <chrono>

#include "aggregate/prepare.cu"
#include "attention/prepare.cu"

using namespace gpuprims;

extern "C" cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  std::memset(at, value, bytes);
  return cudaSuccess;
}

namespace {

constexpr int64_t kRows = 8192, kEdges = int64_t(1) << 21;

template <class Run>
double seconds(Run run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double aggregate(const Csr& csr, bool bad) {
  const PlanLayout at = plan_layout(csr.rows, csr.edges);
  std::vector<int64_t> plan(at.size);
  alignas(16) int flag[4];
  const double took = seconds([&] { launch_prepare(csr, flag, plan.data(), false, nullptr); });
  if (flag[0] != (bad ? kBadOffsets : 0)) simt::fail("the flag of an aggregation is wrong");
  if (plan[0] > csr.edges / kHubDegree) simt::fail("more hubs than there may be");
  for (int64_t unit = at.starts; unit < at.hubs; ++unit)
    if (plan[unit] < 0 || plan[unit] > csr.rows) simt::fail("a start out of range");
  return took;
}

double attend(const Csr& csr, bool bad) {
  const auto plan =
      attention::plan_rows(Dtype::f32, true, csr.rows, csr.edges, 1, 8, 8, false, false, 132, true);
  std::vector<int64_t> space(plan.space_bytes / 8 + 1);
  char* const base = reinterpret_cast<char*>(space.data());
  const attention::Hubs hubs{reinterpret_cast<int*>(base),
                             reinterpret_cast<unsigned long long*>(base + 8),
                             reinterpret_cast<attention::Chunk*>(base + plan.chunks_at),
                             plan.capacity,
                             reinterpret_cast<int64_t*>(base + plan.starts_at),
                             plan.runs,
                             plan.run_work,
                             base + plan.partial_at,
                             base + 16};
  const double took = seconds([&] { attention::launch_prepare(csr, hubs, false, nullptr); });
  if (*hubs.flag != (bad ? kBadOffsets : 0)) simt::fail("the flag of an attention is wrong");
  return took;
}

}  // namespace

int main() {
  std::vector<int64_t> good(kRows + 1), alternating(kRows + 1), valid_hubs(kRows + 1, kEdges);
  for (int64_t row = 0; row <= kRows; ++row) {
    good[row] = row * (kEdges / kRows);
    alternating[row] = row % 2 ? kEdges : 0;  // 0, E, 0, E, ..
  }
  alternating[kRows] = kEdges;
  for (int64_t row = 0; row <= 512; ++row) valid_hubs[row] = row * (kEdges / 512);  // hubs alone
  const auto csr_of = [](const std::vector<int64_t>& indptr) {
    return Csr{indptr.data(), nullptr, nullptr, true, false, kRows, 1, kEdges};
  };
  for (double (*run)(const Csr&, bool) : {aggregate, attend}) {
    const double usual = run(csr_of(good), false);
    run(csr_of(valid_hubs), false);
    const double took = run(csr_of(alternating), true);
    if (took > 8 * usual + 0.1) simt::fail("bad offsets cost rows * edges");
  }
}
