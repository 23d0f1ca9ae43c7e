// The random bits of dropout: SplitMix64's output number `counter` of the stream `seed` (Steele,
// Lea and Flood, 2014). A function of both alone, so a backward pass finds the same bits again.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define GPUPRIMS_BOTH __host__ __device__ __forceinline__
#else
#define GPUPRIMS_BOTH inline
#endif

namespace gpuprims::attention {

GPUPRIMS_BOTH bool kept(uint64_t seed, uint64_t counter, uint64_t threshold) {
  uint64_t z = seed + (counter + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return ((z ^ (z >> 31)) >> 32) >= threshold;
}

}  // namespace gpuprims::attention
