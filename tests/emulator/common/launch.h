// Stands in for csrc/common/launch.h: a launch runs its blocks at once, one after another.
#pragma once
#include "simt.h"

namespace gpuprims {

constexpr size_t kDynamicMemory = 256 * 1024;
inline constexpr unsigned char kUntouched = 0xAB;
alignas(64) inline unsigned char dynamic_memory[kDynamicMemory];

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t smem = 0;
  bool dependent = false;
};

template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), const LaunchShape& shape, cudaStream_t, A... args) {
  simt::grid_size = shape.grid;
  simt::block_size = shape.block;
  for (unsigned y = 0; y < shape.grid.y; ++y) {
    for (unsigned x = 0; x < shape.grid.x; ++x) {
      std::memset(dynamic_memory, kUntouched, kDynamicMemory);
      simt::block_index = {x, y, 0};
      simt::run_block(static_cast<int>(shape.block.x),
                      [&] { kernel(static_cast<std::decay_t<P>>(args)...); });
      for (size_t i = shape.smem; i < kDynamicMemory; ++i)
        if (dynamic_memory[i] != kUntouched) simt::fail("shared memory was written behind its end");
    }
  }
  return cudaSuccess;
}

}  // namespace gpuprims
