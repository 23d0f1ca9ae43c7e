// Seven ways to add up n numbers, each a small step from the one before; docs/reduce_ladder.md tells
// the story. They are here to be read and timed: the library's own reductions are in csrc/reduce.
//
// Steps 1 to 6 leave one value a block in out[blockIdx.x] and are launched again on those until one
// is left. Blocks have kThreads threads. All of them take any n: a thread without an element stays,
// because a thread that returns before __syncthreads leaves the others waiting for it (in the seed of
// this ladder: `if (tid >= n) return`, which besides compares a number within the block with n).
#pragma once
#include <cstdint>

namespace ladder {

constexpr int kThreads = 256;

// 1. Neighbours in global memory: thread t adds what is `stride` away, where t is a multiple of 2 stride.
// The active threads are spread over all warps, and the data is in the slowest memory. Destroys its input.
template <class T>
__global__ void neighboured(T* data, T* out, int64_t n) {
  const int t = threadIdx.x;
  const int64_t base = int64_t{blockIdx.x} * kThreads;
  T* const block = data + base;
  const int count = n - base < kThreads ? static_cast<int>(n - base) : kThreads;
  for (int stride = 1; stride < kThreads; stride *= 2) {
    if (t % (2 * stride) == 0 && t + stride < count) block[t] += block[t + stride];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = block[0];
}

// 2. Interleaved: the first half adds the second half. Active threads are neighbours, so whole warps
// fall idle, and a warp's accesses are coalesced. Destroys its input.
template <class T>
__global__ void interleaved(T* data, T* out, int64_t n) {
  const int t = threadIdx.x;
  const int64_t base = int64_t{blockIdx.x} * kThreads;
  T* const block = data + base;
  const int count = n - base < kThreads ? static_cast<int>(n - base) : kThreads;
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    if (t < stride && t + stride < count) block[t] += block[t + stride];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = block[0];
}

// 3. Shared memory: global memory is read once and not written.
template <class T>
__global__ void shared_memory(const T* data, T* out, int64_t n) {
  __shared__ T sum[kThreads];
  const int t = threadIdx.x;
  const int64_t at = int64_t{blockIdx.x} * kThreads + t;
  sum[t] = at < n ? data[at] : T(0);
  __syncthreads();
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    if (t < stride) sum[t] += sum[t + stride];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = sum[0];
}

// 4. Two loads a thread: half of the threads did nothing but load in step 3; the first addition costs
// no barrier, and twice as many bytes are on their way.
template <class T>
__device__ T two_loads(const T* data, int64_t n) {
  const int64_t at = int64_t{blockIdx.x} * 2 * kThreads + threadIdx.x;
  T sum = at < n ? data[at] : T(0);
  if (at + kThreads < n) sum += data[at + kThreads];
  return sum;
}

template <class T>
__global__ void shared_two_loads(const T* data, T* out, int64_t n) {
  __shared__ T sum[kThreads];
  const int t = threadIdx.x;
  sum[t] = two_loads(data, n);
  __syncthreads();
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    if (t < stride) sum[t] += sum[t + stride];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = sum[0];
}

// 5. The last warp unrolled: no barrier of the block where one warp works alone. Since Volta the lanes
// of a warp do not move in step by themselves, so that the seed's version (no barrier at all, and reads
// of what other lanes are writing) is a race: a __syncwarp() stands between every read and write.
template <class T>
__global__ void warp_unrolled(const T* data, T* out, int64_t n) {
  __shared__ T sum[kThreads];
  const int t = threadIdx.x;
  sum[t] = two_loads(data, n);
  __syncthreads();
  for (int stride = kThreads / 2; stride > 32; stride /= 2) {
    if (t < stride) sum[t] += sum[t + stride];
    __syncthreads();
  }
  if (t < 32) {
    T mine = sum[t];
#pragma unroll
    for (int stride = 32; stride > 0; stride /= 2) {
      mine += sum[t + stride];  // lanes beyond the half read values that nobody will use
      __syncwarp();
      sum[t] = mine;
      __syncwarp();
    }
    if (t == 0) out[blockIdx.x] = mine;
  }
}

template <class T>
__device__ T warp_sum(T sum) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) sum += __shfl_down_sync(~0u, sum, by);
  return sum;
}

// The sum of the block in thread 0. Every lane of the first warp takes part in its shuffles, with 0
// where there is no warp: the seed lets 8 lanes call a shuffle whose mask names 32.
template <class T>
__device__ T block_sum(T sum) {
  __shared__ T of_warp[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  sum = warp_sum(sum);
  if (lane == 0) of_warp[warp] = sum;
  __syncthreads();
  if (warp == 0) sum = warp_sum(lane < kThreads / 32 ? of_warp[lane] : T(0));
  return sum;
}

// 6. Shuffles: registers of other lanes instead of shared memory; one barrier a block.
template <class T>
__global__ void warp_shuffle(const T* data, T* out, int64_t n) {
  const T sum = block_sum(two_loads(data, n));
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

template <class T>
struct alignas(16) Four {
  T v[4];
};

// 7. Complete: as many blocks as fit, each walks through the data by 16-byte loads, four on their way;
// the block that finishes last adds up what the others left. One launch, and the memory is always busy.
// `ticket` is 0 before and after. data is aligned to 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads)
    complete(const T* data, T* partial, T* out, int64_t n, unsigned* ticket) {
  constexpr int kFlight = 4;
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto* const fours = reinterpret_cast<const Four<T>*>(data);
  T sum[4] = {};
  int64_t at = thread;
  for (; at + (kFlight - 1) * threads < n / 4; at += kFlight * threads) {
    Four<T> v[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; ++i) v[i] = fours[at + i * threads];
#pragma unroll
    for (int i = 0; i < kFlight; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) sum[k] += v[i].v[k];
  }
  for (; at < n / 4; at += threads)
    for (int k = 0; k < 4; ++k) sum[k] += fours[at].v[k];
  if (thread < n % 4) sum[0] += data[n / 4 * 4 + thread];
  T all = block_sum((sum[0] + sum[2]) + (sum[1] + sum[3]));
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = all;
    __threadfence();  // the value is there before the ticket is
    last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  all = T(0);
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kThreads) all += __ldcg(partial + i);
  all = block_sum(all);
  if (threadIdx.x == 0) *out = all;
}

}  // namespace ladder
