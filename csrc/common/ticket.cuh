// Who is last of several blocks: what the others wrote before they came is then seen. One atomic
// that releases and acquires, by one thread for its block, behind a barrier where other threads
// wrote: a fence on either side of a plain one (MEMBAR.SC, CCTL.IVALL) is waited for twice.
#pragma once
#include <cstdint>

namespace gpuprims {

__device__ __forceinline__ uint32_t inc_in_order(uint32_t* at, uint32_t most) {
#if defined(__CUDA_ARCH__)
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(at), "r"(most)
               : "memory");
  return before;
#else
  return atomicInc(at, most);
#endif
}

__device__ __forceinline__ unsigned long long add_in_order(unsigned long long* at,
                                                           unsigned long long value) {
#if defined(__CUDA_ARCH__)
  unsigned long long before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(at), "l"(value)
               : "memory");
  return before;
#else
  return atomicAdd(at, value);
#endif
}

// Whether the calling block is the last of `blocks` to come here. Ends with a barrier. The ticket
// is 0 again afterwards.
__device__ __forceinline__ bool is_last_block(uint32_t* ticket, uint32_t blocks) {
  __shared__ uint32_t before;
  if (threadIdx.x == 0) before = inc_in_order(ticket, blocks - 1);
  __syncthreads();
  return before == blocks - 1;
}

}  // namespace gpuprims
