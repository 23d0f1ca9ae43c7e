// From device to shared memory, past the registers: asked for in groups, which arrive in order.
#pragma once
#include <cstdint>
#include <cstring>

namespace gpuprims {

// A place in shared memory, as its instructions want it.
#if defined(__CUDA_ARCH__)
using SharedAt = uint32_t;
#else
using SharedAt = unsigned char*;
#endif

// Opaque, or else it would be made anew at each use, from a register that takes long to be read.
__device__ __forceinline__ SharedAt shared_at(unsigned char* place) {
#if defined(__CUDA_ARCH__)
  uint32_t at;
  asm volatile("mov.b32 %0, %1;"
               : "=r"(at)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(place))));
  return at;
#else
  return place;
#endif
}

__device__ __forceinline__ float load_shared(SharedAt at) {
  float value;
#if defined(__CUDA_ARCH__)
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
#else
  memcpy(&value, at, sizeof value);
#endif
  return value;
}

template <int Bytes>
__device__ __forceinline__ void copy_async(SharedAt at, const void* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(Bytes)
                 : "memory");
#else
  memcpy(at, from, Bytes);
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
