// The one place that launches a kernel.
#pragma once
#include <cuda_runtime.h>

namespace gpuprims {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t smem = 0;  // dynamic shared memory, bytes
  bool dependent =
      false;  // programmatic dependent launch: starts while the kernel before it still runs
};

template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), const LaunchShape& shape, cudaStream_t stream, A... args) {
  if (shape.smem > 48 * 1024) {
    const auto code = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shape.smem));
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
