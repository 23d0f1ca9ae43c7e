// The shared memory of a cluster's other blocks, and the launch of clusters.
#pragma once
#include <cuda_runtime.h>

#include "common/launch.h"
#include "topk/rows.cuh"

namespace gpuprims {

// Before sm_90 there are no clusters, and the plan has none.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Every thread of the cluster; what was written to any block's shared memory before is seen after.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// The address, in the cluster's shared memory, of block `rank`'s copy of what is at `p` here.
__device__ __forceinline__ uint32_t remote(const void* p, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(p))), "r"(rank));
  return there;
}
__device__ __forceinline__ Narrow load_remote(uint32_t at) {
  Narrow value;
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(at) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_remote_word(uint32_t at) {
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return value;
}
__device__ __forceinline__ void store_remote(uint32_t at, Narrow value) {
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(at), "l"(value) : "memory");
}
__device__ __forceinline__ int add_remote(uint32_t at, int value) {
  int old;
  asm volatile("atom.shared::cluster.add.s32 %0, [%1], %2;"
               : "=r"(old)
               : "r"(at), "r"(value)
               : "memory");
  return old;
}

#else

__device__ __forceinline__ void cluster_sync() { __trap(); }
__device__ __forceinline__ uint32_t remote(const void*, int) { return 0; }
__device__ __forceinline__ Narrow load_remote(uint32_t) { return 0; }
__device__ __forceinline__ uint32_t load_remote_word(uint32_t) { return 0; }
__device__ __forceinline__ void store_remote(uint32_t, Narrow) {}
__device__ __forceinline__ int add_remote(uint32_t, int) { return 0; }

#endif

// `blocks` neighbouring blocks, at most 8, are a cluster.
template <class... P, class... A>
cudaError_t launch_clusters(void (*kernel)(P...), const LaunchShape& shape, int blocks,
                            cudaStream_t stream, A... args) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.smem;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}

}  // namespace gpuprims
