// From device to shared memory, past the registers: asked for in groups, which arrive in order.
#pragma once
#include <cstdint>
#include <cstring>

namespace gpuprims {

template <int Bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
#if defined(__CUDA_ARCH__)
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(Bytes)
                 : "memory");
#else
  memcpy(to, from, Bytes);
#endif
}

__device__ __forceinline__ void copy_commit() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until at most `Left` groups of the calling thread are on their way.
template <int Left>
__device__ __forceinline__ void copy_wait() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
#endif
}

}  // namespace gpuprims
