// Copies to shared memory that are under way while their threads work: loads that take no
// registers.
#pragma once
#include <cstdint>
#include <cstring>

namespace gpuprims::reorder {
namespace {

struct alignas(16) Word16 {
  uint64_t low, high;
};

// A word, seen by its thread after copies_left. 4 and 8 bytes through L1, 16 past it; others are
// not asynchronous.
template <class Word>
__device__ __forceinline__ void copy_word(Word* to, const Word* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Word) >= 4) {
    const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    if constexpr (sizeof(Word) == 16)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
    else
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from),
                   "n"(static_cast<int>(sizeof(Word)))
                   : "memory");
    return;
  }
#endif
  std::memcpy(to, from, sizeof(Word));
}

__device__ __forceinline__ void copies_end() {  // of a group
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all groups of the warp but its last `kLeft`.
template <int kLeft>
__device__ __forceinline__ void copies_left() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
  __syncwarp();
}

}  // namespace
}  // namespace gpuprims::reorder
