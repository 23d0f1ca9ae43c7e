// A block's shared memory.
//
// Its dynamic part is laid out as BlockMemory, the buffer of pairs, a list of 16-bit positions as
// long as the buffer, scratch words, and a list of k positions. Functions find it by themselves:
// passed pointers would lose the address space, and big functions stay out of line to keep the
// streaming loop's registers.
#pragma once
#include "topk/rows.cuh"

namespace gpuprims {

template <class Pair>
struct BlockMemory {
  alignas(16) uint32_t bins[256];
  alignas(16) Pair bound;
  alignas(16) Pair groups[topk_tuning::kMaxGroups];
  uint32_t words[32][8];  // a warp's extremes, up to 4 words each; or its sum
  int digit;
  int rest;  // how many of the digit's pairs are still wanted
  int size;  // how many pairs have the digit
  int kept;  // how many pairs reach the bound found
  int holes;
  int movers;
  int count;  // pairs in the buffer, or more where some found no room
  int hits;   // vectors listed in the scratch words, or more where some found no room
  int last;   // this block is its row's last
};

extern __shared__ __align__(16) unsigned char dynamic_memory[];

template <class Pair>
__device__ __forceinline__ BlockMemory<Pair>& block() {
  return *reinterpret_cast<BlockMemory<Pair>*>(dynamic_memory);
}
template <class Pair>
constexpr size_t kBufferAt = (sizeof(BlockMemory<Pair>) + 15) / 16 * 16;
template <class Pair>
__device__ __forceinline__ Pair* buffer() {
  return reinterpret_cast<Pair*>(dynamic_memory + kBufferAt<Pair>);
}
template <class Pair>
__device__ __forceinline__ uint16_t* positions(int capacity) {
  return reinterpret_cast<uint16_t*>(buffer<Pair>() + capacity);
}
// 4 words a thread. Capacities are multiples of 8.
template <class Pair>
__device__ __forceinline__ uint32_t* scratch(int capacity) {
  return reinterpret_cast<uint32_t*>(positions<Pair>(capacity) + capacity);
}
template <class Pair, int kThreads>
__device__ __forceinline__ uint16_t* ranked(int capacity) {
  return reinterpret_cast<uint16_t*>(scratch<Pair>(capacity) + 4 * kThreads);
}

// atomicAdd where few lanes come: without the sum over the warp that nvcc puts before it.
__device__ __forceinline__ int shared_add(int* at, int value) {
  int old;
  asm volatile("atom.shared.add.s32 %0, [%1], %2;"
               : "=r"(old)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(at))), "r"(value)
               : "memory");
  return old;
}

}  // namespace gpuprims
