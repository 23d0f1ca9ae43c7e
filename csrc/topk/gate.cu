// topk_gate's launcher: 10 kernels, by the logits' type and, of gate_lanes.cuh, the lanes a row.
#include "common/launch.h"
#include "topk/gate_lanes.cuh"
#include "topk/gate_warp.cuh"

namespace gpuprims {
namespace {

template <class T>
cudaError_t start_lanes(GateArgs args, const GatePlan& plan, cudaStream_t stream) {
  constexpr int kVector = 16 / sizeof(T);
  args.aligned = reinterpret_cast<uintptr_t>(args.logits) % 16 == 0 && args.n % kVector == 0 &&
                 args.stride % kVector == 0;
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(t::kThreads)};
  switch (plan.lanes) {
    case 8:
      return launch(gate_lanes_kernel<T, 8>, shape, stream, args);
    case 16:
      return launch(gate_lanes_kernel<T, 16>, shape, stream, args);
    default:
      return launch(gate_lanes_kernel<T, 32>, shape, stream, args);
  }
}

template <class T>
cudaError_t start_warp(const GateArgs& args, const GatePlan& plan, cudaStream_t stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)),
                          dim3(static_cast<unsigned>(plan.threads)),
                          static_cast<size_t>(plan.smem)};
  return launch(gate_warp_kernel<T>, shape, stream, args, static_cast<int>(plan.warp_smem),
                plan.group_lanes, plan.grouped);
}

template <class T>
cudaError_t start(const GateArgs& args, const GatePlan& plan, cudaStream_t stream) {
  return plan.algo == GateAlgo::lanes ? start_lanes<T>(args, plan, stream)
                                      : start_warp<T>(args, plan, stream);
}

}  // namespace

cudaError_t launch_gate(const GateArgs& args, const GatePlan& plan, cudaStream_t stream) {
  switch (args.dtype) {
    case Dtype::f16:
      return start_warp<Half>(args, plan, stream);
    case Dtype::bf16:
      return start<Bfloat>(args, plan, stream);
    case Dtype::f32:
      return start<float>(args, plan, stream);
    default:
      return start_warp<double>(args, plan, stream);
  }
}

}  // namespace gpuprims
