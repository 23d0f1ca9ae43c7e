// The ladder's steps and CUB's sum as C functions, for ctypes: compiled by nvcc on first use.
#include <cub/cub.cuh>
#include <utility>

#include "steps.cuh"

namespace {

template <class T>
cudaError_t climb(int step, T* data, T* partial, int64_t n, int sms, cudaStream_t stream) {
  using namespace ladder;
  // Partial sums of two passes take turns; a pass leaves at most n / 256.
  T* const halves[2] = {partial, partial + n / kThreads + 1};
  if (step == 7) {
    auto* const ticket = reinterpret_cast<unsigned*>(halves[1]);  // zeroed by the caller, once
    complete<<<sms * 8, kThreads, 0, stream>>>(data, partial + 1, partial, n, ticket);
    return cudaGetLastError();
  }
  const int per_block = step <= 3 ? kThreads : 2 * kThreads;
  for (int pass = 0; pass == 0 || n > 1; ++pass) {
    const int64_t blocks = (n + per_block - 1) / per_block;
    T* const out = halves[pass % 2];
    const dim3 grid(static_cast<unsigned>(blocks));
    if (step == 1) neighboured<<<grid, kThreads, 0, stream>>>(data, out, n);
    if (step == 2) interleaved<<<grid, kThreads, 0, stream>>>(data, out, n);
    if (step == 3) shared_memory<<<grid, kThreads, 0, stream>>>(data, out, n);
    if (step == 4) shared_two_loads<<<grid, kThreads, 0, stream>>>(data, out, n);
    if (step == 5) warp_unrolled<<<grid, kThreads, 0, stream>>>(data, out, n);
    if (step == 6) warp_shuffle<<<grid, kThreads, 0, stream>>>(data, out, n);
    data = out;
    n = blocks;
  }
  return cudaGetLastError();
}

// Which half of the partial sums holds the result.
int passes(int step, int64_t n) {
  const int per_block = step <= 3 ? ladder::kThreads : 2 * ladder::kThreads;
  int count = 0;
  do {
    n = (n + per_block - 1) / per_block;
    ++count;
  } while (n > 1);
  return count;
}

}  // namespace

extern "C" {

int ladder_climb(int step, int floating, void* data, void* partial, long long n, int sms, void* stream) {
  const auto s = static_cast<cudaStream_t>(stream);
  return floating ? climb(step, static_cast<float*>(data), static_cast<float*>(partial), n, sms, s)
                  : climb(step, static_cast<int*>(data), static_cast<int*>(partial), n, sms, s);
}

// Where in `partial` the result is.
long long ladder_result_at(int step, long long n) {
  if (step == 7 || passes(step, n) % 2 == 1) return 0;
  return n / ladder::kThreads + 1;
}

int ladder_cub(void* memory, unsigned long long* bytes, int floating, const void* data, void* out, long long n,
               void* stream) {
  size_t size = *bytes;
  const auto s = static_cast<cudaStream_t>(stream);
  const auto code = floating ? cub::DeviceReduce::Sum(memory, size, static_cast<const float*>(data),
                                                      static_cast<float*>(out), n, s)
                             : cub::DeviceReduce::Sum(memory, size, static_cast<const int*>(data),
                                                      static_cast<int*>(out), n, s);
  *bytes = size;
  return code;
}

}  // extern "C"
