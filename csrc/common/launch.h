// The one place that launches a kernel.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <type_traits>
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

// The driver's launch, found at run time as nothing links to it; null under
// GPUPRIMS_LAUNCH=runtime, which is there to compare.
using DriverLaunch = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                  unsigned, unsigned, CUstream, void**, void**);
inline DriverLaunch driver_launch() {
  static const auto found = [] {
    const char* const chosen = std::getenv("GPUPRIMS_LAUNCH");
    if (chosen && !std::strcmp(chosen, "runtime")) return DriverLaunch{};
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult state{};
    const auto code = cudaGetDriverEntryPointByVersion("cuLaunchKernel", &entry, 12000,
                                                       cudaEnableDefault, &state);
    const bool there = code == cudaSuccess && state == cudaDriverEntryPointSuccess;
    return there ? reinterpret_cast<DriverLaunch>(entry) : DriverLaunch{};
  }();
  return found;
}

// Launches a kernel that this thread has launched before without the runtime's look-ups (some
// 0.3 us a launch, which short calls notice). False where it could not: on a kernel's first launch
// from a thread or on another device, and where another context is current. Then the runtime does
// it, and says what is wrong if anything is.
inline bool launch_again(const void* kernel, const LaunchShape& shape, cudaStream_t stream,
                         void** args) {
  struct Known {
    const void* kernel = nullptr;
    int device = -1;
    CUfunction function = nullptr;
  };
  constexpr int kSlots = 64;
  thread_local Known table[kSlots];
  const auto driver = driver_launch();
  if (!driver) return false;
  Known& known = table[reinterpret_cast<uintptr_t>(kernel) / 16 % kSlots];
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  if (known.kernel != kernel || known.device != device) {
    cudaFunction_t function = nullptr;
    known = {};
    if (cudaGetFuncBySymbol(&function, kernel) == cudaSuccess)
      known = {kernel, device, reinterpret_cast<CUfunction>(function)};
    return false;
  }
  return driver(known.function, shape.grid.x, shape.grid.y, shape.grid.z, shape.block.x,
                shape.block.y, shape.block.z, static_cast<unsigned>(shape.smem), stream, args,
                nullptr) == CUDA_SUCCESS;
}

template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), const LaunchShape& shape, cudaStream_t stream, A... args) {
  if (shape.smem > 48 * 1024) {
    const auto code =
        allow_shared_memory(reinterpret_cast<const void*>(kernel), static_cast<int>(shape.smem));
    if (code != cudaSuccess) return code;
  }
  if (!shape.dependent && shape.smem <= 48 * 1024) {
    std::tuple<std::decay_t<P>...> values(static_cast<P>(args)...);
    const bool done = std::apply(
        [&](auto&... value) {
          void* pointers[] = {&value..., nullptr};
          return launch_again(reinterpret_cast<const void*>(kernel), shape, stream, pointers);
        },
        values);
    if (done) return cudaSuccess;
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
