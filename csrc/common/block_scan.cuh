// Sums over the threads of a block.
#pragma once
#include <cstdint>

namespace gpuprims {

// Over the threads before this one. `words`: 32 of shared memory, which are free again behind the
// next barrier.
template <int kThreads>
__device__ __forceinline__ uint32_t sum_before(uint32_t mine, uint32_t* words) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto inclusive = [&](uint32_t sum) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    return sum;
  };
  const uint32_t sum = inclusive(mine);
  if (lane == 31) words[warp] = sum;
  __syncthreads();
  const uint32_t warps = inclusive(lane < kThreads / 32 ? words[lane] : 0);
  const uint32_t before = __shfl_sync(~0u, warps, warp == 0 ? 0 : warp - 1);
  return sum - mine + (warp == 0 ? 0 : before);
}

}  // namespace gpuprims
