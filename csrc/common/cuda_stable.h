// What cuda.cpp files need besides stable.h: device guard, current stream, errors of the CUDA
// runtime.
#pragma once
#include <cuda_runtime_api.h>

#include <vector>

#include "common/stable.h"

namespace gpuprims {

inline void check_cuda(const char* op, cudaError_t code) {
  check(code == cudaSuccess, op, ": CUDA error: ", cudaGetErrorString(code));
}

struct DeviceInfo {
  int sms = 0;    // multiprocessors
  int smem = 0;   // most shared memory a block may ask for
  int cache = 0;  // bytes of L2
};

// Of every device, read once: reading takes microseconds.
inline const std::vector<DeviceInfo>& device_table() {
  static const auto table = [] {
    int count = 0;
    cudaGetDeviceCount(&count);
    std::vector<DeviceInfo> all(count);
    for (int d = 0; d < count; ++d) {
      cudaDeviceGetAttribute(&all[d].sms, cudaDevAttrMultiProcessorCount, d);
      cudaDeviceGetAttribute(&all[d].cache, cudaDevAttrL2CacheSize, d);
      cudaDeviceGetAttribute(&all[d].smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, d);
    }
    return all;
  }();
  return table;
}

inline const DeviceInfo& device_info(int device) {
  const auto& table = device_table();
  check(device >= 0 && device < static_cast<int>(table.size()), "no CUDA device ", device);
  return table[device];
}

// Makes the tensor's device current; free of cost where there is one alone.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    if (device_table().size() == 1) return;
    cudaGetDevice(&previous_);
    if (previous_ != device) cudaSetDevice(device), changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

inline cudaStream_t current_stream(int device) {
  void* stream = nullptr;
  check_call(aoti_torch_get_current_cuda_stream(device, &stream),
             "aoti_torch_get_current_cuda_stream");
  return static_cast<cudaStream_t>(stream);
}

}  // namespace gpuprims
