// What this file was built for, as JSON; read through ctypes by _native.py (no PyTorch call, no
// Python).
#if defined(GPUPRIMS_CUDA_ARCHS)
#include <cuda_runtime_api.h>
#define EXPORT_NAME gpuprims_cuda_build_info
#else
#define EXPORT_NAME gpuprims_build_info
#define GPUPRIMS_CUDA_ARCHS ""
#define CUDART_VERSION 0
#endif
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

extern "C" __attribute__((visibility("default"))) const char* EXPORT_NAME() {
  return "{\"version\": \"" GPUPRIMS_VERSION
         "\", \"built_with_torch\": \"" GPUPRIMS_BUILT_WITH_TORCH
         "\", \"cudart\": " TEXT(CUDART_VERSION) ", \"archs\": \"" GPUPRIMS_CUDA_ARCHS "\"}";
}

#if CUDART_VERSION
// The newest CUDA that the driver serves (13000 for 13.0); 0 where there is no driver.
extern "C" __attribute__((visibility("default"))) void gpuprims_driver_version(int* version) {
  if (cudaDriverGetVersion(version) != cudaSuccess) *version = 0;
}
#endif
