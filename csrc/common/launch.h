// The one place that launches a kernel.
#pragma once
#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <utility>

namespace gpuprims {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t smem = 0;  // dynamic shared memory, bytes
  bool dependent =
      false;  // programmatic dependent launch: starts while the kernel before it still runs
};

// Lets a kernel ask for more shared memory than the default's 48 KiB: once for each largest size on
// a device, as it takes longer than this search. Under a lock, because a smaller size that another
// thread sets later would take the larger one back.
inline cudaError_t allow_shared_memory(const void* kernel, int bytes) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> allowed;  // by kernel and device
  int device = 0;
  if (const auto code = cudaGetDevice(&device); code != cudaSuccess) return code;
  const std::lock_guard<std::mutex> lock(mutex);
  int& largest = allowed[{kernel, device}];
  if (bytes <= largest) return cudaSuccess;
  const auto code =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (code == cudaSuccess) largest = bytes;
  return code;
}

template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), const LaunchShape& shape, cudaStream_t stream, A... args) {
  if (shape.smem > 48 * 1024) {
    const auto code =
        allow_shared_memory(reinterpret_cast<const void*>(kernel), static_cast<int>(shape.smem));
    if (code != cudaSuccess) return code;
  }
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.smem;
  config.stream = stream;
  config.attrs = shape.dependent ? &attribute : nullptr;
  config.numAttrs = shape.dependent ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}

}  // namespace gpuprims
