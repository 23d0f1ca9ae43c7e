// Consecutive rows from device memory to shared memory, by one warp, without registers in between.
#pragma once
#include <cuda_runtime.h>

#include "topk/bulk.cuh"
#include "topk/rows.cuh"

namespace gpuprims {

// Copies kBytes (4, 8 or 16) of aligned memory; seen after copies_done().
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16)  // past L1, which keeps nothing of what is read once
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(kBytes)
                 : "memory");
}
__device__ __forceinline__ void copies_done() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
}

// `bytes` bytes in whole units; returns how many bytes that was.
template <int kUnit>
__device__ __forceinline__ int copy_units(unsigned char* to, const unsigned char* from, int bytes,
                                          int lane) {
  const auto copy = [&](int at) {
    if constexpr (kUnit >= 4)
      copy_async<kUnit>(to + at, from + at);
    else
      *reinterpret_cast<uint16_t*>(to + at) = *reinterpret_cast<const uint16_t*>(from + at);
  };
  int at = lane * kUnit;
#pragma unroll 1
  for (; at + 97 * kUnit <= bytes; at += 128 * kUnit) {
#pragma unroll
    for (int i = 0; i < 4; ++i) copy(at + i * 32 * kUnit);
  }
#pragma unroll 1
  for (; at + kUnit <= bytes; at += 32 * kUnit) copy(at);
  return bytes / kUnit * kUnit;
}

// Bytes that follow each other, in the largest units that their addresses allow.
__device__ __forceinline__ void copy_run(unsigned char* to, const unsigned char* from, int bytes,
                                         int lane) {
  const auto offset = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to);
  int done = 0;
  if (offset % 16 == 0) done = copy_units<16>(to, from, bytes, lane);
  if (offset % 4 == 0)
    done += copy_units<4>(to + done, from + done, bytes - done, lane);
  else if (offset % 2 == 0)
    done = copy_units<2>(to, from, bytes, lane);
#pragma unroll 1
  for (int i = done + lane; i < bytes; i += 32) to[i] = from[i];
}

// Whether rows follow each other without gaps.
__device__ __forceinline__ bool rows_are_dense(const RowMap& map, const TopkArgs& args) {
  return map.step == 1 && map.outer == args.n * args.inner &&
         (args.inner == 1 || map.inner_stride == args.n);
}

// Rows `first` to first + count of n elements of `size` bytes, dense in `to`; rows that follow each
// other in memory as one run. Elements whose step is not 1 have one byte.
__device__ __forceinline__ void copy_rows(unsigned char* to, const unsigned char* from, int size,
                                          const RowMap& map, const TopkArgs& args, int64_t first,
                                          int count, int lane) {
  const int row_bytes = static_cast<int>(args.n) * size;
  const bool dense = rows_are_dense(map, args);
  int64_t mine = first * args.n;
  if (!dense) mine = RowPlace(first + (lane < count ? lane : count - 1), args.inner).start(map);
#pragma unroll 1
  for (int row = 0; row < (dense ? 1 : count); ++row) {
    const unsigned char* const source = from + __shfl_sync(~0u, mine, row) * size;
    unsigned char* const target = to + row * row_bytes;
    if (map.step == 1) {
      copy_run(target, source, dense ? count * row_bytes : row_bytes, lane);
      continue;
    }
#pragma unroll 1
    for (int i = lane; i < row_bytes; i += 32) target[i] = source[i * map.step];
  }
}

}  // namespace gpuprims
