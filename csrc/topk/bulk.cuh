// Runs of device memory to shared memory by the copy engine: one instruction a run, no registers in
// between, and runs arrive in the order in which they were asked for, so that what came first can
// be worked on while the rest is on its way. Before sm_90 the warp copies by itself.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace gpuprims {

// Counts the bytes of one run at a time; its phases alternate between 0 and 1.
using Arrival = uint64_t;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// By one lane, before the first run.
__device__ __forceinline__ void prepare_arrival(Arrival* arrival) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(
                   shared_address(arrival))
               : "memory");
#endif
}

// By a whole warp, which has read and written all that it will of what lies at `to`. Addresses and
// bytes are multiples of 16.
__device__ __forceinline__ void start_run(void* to, const void* from, uint32_t bytes,
                                          Arrival* arrival, int lane) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (lane != 0) return;
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(arrival)),
               "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(arrival))
      : "memory");
#else
  __syncwarp();
  for (uint32_t at = lane * 16; at < bytes; at += 32 * 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     shared_address(static_cast<unsigned char*>(to) + at)),
                 "l"(static_cast<const unsigned char*>(from) + at)
                 : "memory");
#endif
}

// By a whole warp: returns when the run that completes the phase has arrived.
__device__ __forceinline__ void await_run(Arrival* arrival, uint32_t phase) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(arrival)), "r"(phase)
        : "memory");
#else
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
#endif
}

}  // namespace gpuprims
