// Counts of intervals: each block counts in its shared memory, several copies where there are few
// bins, and adds its counts to the result. Sums of integers are the same in any order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/launch.h"
#include "reduce/histogram_kernels.h"

namespace gpuprims {
namespace {

constexpr int kThreads = histogram_tuning::kThreads;
extern __shared__ __align__(16) unsigned char dynamic_memory[];

// Element types by their width; what 1, 2 and 8 bytes mean is decided at run time.
template <class T>
__device__ __forceinline__ double as_double(T x, Dtype dtype) {
  if constexpr (std::is_same_v<T, uint8_t>) {
    return dtype == Dtype::i8 ? static_cast<int8_t>(x) : static_cast<int>(x);
  } else if constexpr (std::is_same_v<T, uint16_t>) {
    if (dtype == Dtype::f16) return __half2float(__ushort_as_half(x));
    if (dtype == Dtype::bf16) return __uint_as_float(static_cast<unsigned>(x) << 16);
    return dtype == Dtype::i16 ? static_cast<int16_t>(x) : static_cast<int>(x);
  } else if constexpr (std::is_same_v<T, uint32_t>) {
    return dtype == Dtype::i32 ? static_cast<double>(static_cast<int32_t>(x))
                               : static_cast<double>(x);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    if (dtype == Dtype::f64) {
      double value;
      memcpy(&value, &x, sizeof value);
      return value;
    }
    return dtype == Dtype::i64 ? static_cast<double>(static_cast<int64_t>(x))
                               : static_cast<double>(x);
  } else {
    return x;
  }
}

template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T v[N];
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    histogram(const __grid_constant__ HistogramArgs args, const int copies) {
  constexpr int kVec = 16 / sizeof(T);
  auto* const counts = reinterpret_cast<unsigned*>(dynamic_memory);
  const int t = threadIdx.x;
  const int64_t held = static_cast<int64_t>(copies) * args.bins;
  for (int64_t i = t; i < held; i += kThreads) counts[i] = 0;
  const auto bins = args.range
                        ? HistogramBins::make(args.range[0], args.range[1], args.bins, args.closed)
                        : HistogramBins::make(args.lo, args.hi, args.bins, args.closed);
  unsigned* const mine = counts + (copies > 0 ? t / 32 % copies * args.bins : 0);
  const auto count = [&](T x) {
    const int64_t bin = bins.of(as_double(x, args.dtype));
    if (bin < 0) return;
    if (copies > 0)
      atomicAdd(mine + bin, 1u);
    else
      atomicAdd(args.counts + bin, 1ull);
  };
  __syncthreads();
  const T* const input = static_cast<const T*>(args.input);
  // Vectors of 16 bytes, and single elements before and behind them.
  const auto address = reinterpret_cast<uintptr_t>(input);
  const auto lead = static_cast<int64_t>((16 - address % 16) % 16 / sizeof(T));
  const int64_t head = lead < args.n ? lead : args.n;
  const int64_t vectors = (args.n - head) / kVec;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + t;
  const auto* const body = reinterpret_cast<const Vector<T, kVec>*>(input + head);
  constexpr int kFlight = 4;
  int64_t at = thread;
  for (; at + (kFlight - 1) * threads < vectors; at += kFlight * threads) {
    Vector<T, kVec> v[kFlight];
#pragma unroll
    for (int k = 0; k < kFlight; ++k) v[k] = body[at + k * threads];
#pragma unroll
    for (int k = 0; k < kFlight; ++k)
#pragma unroll
      for (int e = 0; e < kVec; ++e) count(v[k].v[e]);
  }
  for (; at < vectors; at += threads) {
    const Vector<T, kVec> v = body[at];
#pragma unroll
    for (int e = 0; e < kVec; ++e) count(v.v[e]);
  }
  const int64_t tail = head + vectors * kVec;
  if (thread < head) count(input[thread]);
  if (thread < args.n - tail) count(input[tail + thread]);
  if (copies == 0) return;
  __syncthreads();
  for (int64_t bin = t; bin < args.bins; bin += kThreads) {
    unsigned long long sum = 0;
    for (int copy = 0; copy < copies; ++copy) sum += counts[copy * args.bins + bin];
    if (sum) atomicAdd(args.counts + bin, sum);
  }
}

template <class T>
cudaError_t start(const HistogramArgs& args, const HistogramPlan& plan, cudaStream_t stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.blocks)), dim3(kThreads), plan.smem};
  return launch(histogram<T>, shape, stream, args, plan.copies);
}

}  // namespace

cudaError_t launch_histogram(const HistogramArgs& args, const HistogramPlan& plan,
                             cudaStream_t stream) {
  const auto code = cudaMemsetAsync(args.counts, 0, args.bins * 8, stream);
  if (code != cudaSuccess || args.n == 0) return code;
  if (args.dtype == Dtype::f32) return start<float>(args, plan, stream);
  switch (dtype_bytes(args.dtype)) {
    case 1:
      return start<uint8_t>(args, plan, stream);
    case 2:
      return start<uint16_t>(args, plan, stream);
    case 4:
      return start<uint32_t>(args, plan, stream);
    default:
      return start<uint64_t>(args, plan, stream);
  }
}

}  // namespace gpuprims
