// What cuda.cpp files need besides stable.h: device guard, current stream, errors of the CUDA
// runtime.
#pragma once
#include <cuda_runtime_api.h>

#include "common/stable.h"

namespace gpuprims {

inline void check_cuda(const char* op, cudaError_t code) {
  check(code == cudaSuccess, op, ": CUDA error: ", cudaGetErrorString(code));
}

// Makes the tensor's device current; free of cost where it is already.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
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

struct DeviceInfo {
  int sms = 0;     // multiprocessors
  int arch = 0;    // 90 for compute capability 9.0
  int smem = 0;    // most shared memory a block may ask for
  int64_t l2 = 0;  // bytes of L2
};

// Read once a device; reading is a few microseconds, so it is cached.
inline const DeviceInfo& device_info(int device) {
  static const auto table = [] {
    int count = 0;
    cudaGetDeviceCount(&count);
    std::vector<DeviceInfo> all(count);
    for (int d = 0; d < count; ++d) {
      int major = 0, minor = 0, l2 = 0;
      cudaDeviceGetAttribute(&all[d].sms, cudaDevAttrMultiProcessorCount, d);
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d);
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, d);
      cudaDeviceGetAttribute(&all[d].smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, d);
      cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, d);
      all[d].arch = major * 10 + minor;
      all[d].l2 = l2;
    }
    return all;
  }();
  check(device >= 0 && device < static_cast<int>(table.size()), "no CUDA device ", device);
  return table[device];
}

}  // namespace gpuprims
