// Short rows of floats, largest first: 8, 16 or 32 lanes a row, 16 elements a lane in registers
// (float_lanes.cuh). Rows are whole, aligned vectors, without a mask and not strided.
#include "common/launch.h"
#include "topk/float_lanes.cuh"

namespace gpuprims {
namespace {

template <class T, int kLanes>
__global__ void __launch_bounds__(t::kThreads, sizeof(T) == 4 ? t::kResident : 9)
    topk_lanes(const __grid_constant__ TopkArgs args) {
  constexpr int kRows = t::kThreads / kLanes;  // of a block
  __shared__ GateRowMemory<kLanes> memories[kRows];
  const int lane = threadIdx.x % kLanes, shift = threadIdx.x % 32 / kLanes * kLanes;
  GateRowMemory<kLanes>& memory = memories[threadIdx.x / kLanes];
  const int k = static_cast<int>(args.k);
  for (int64_t first = blockIdx.x * int64_t{kRows}; first < args.rows;
       first += gridDim.x * int64_t{kRows}) {
    const int64_t row = first + threadIdx.x / kLanes;
    const bool active = row < args.rows;  // idle lanes walk along: ballots are a warp's
    const T* const source =
        static_cast<const T*>(args.input) + (active ? row : args.rows - 1) * args.in.outer;
    float x[t::kItems];
    GateItems<T, kLanes>::load(args, true, source, lane, x);
    float best = x[0];
#pragma unroll
    for (int e = 1; e < t::kItems; ++e) best = larger_nan(best, x[e]);
    const uint32_t bound = lanes_bound<kLanes>(memory, best, lane, shift, k);
    rank_reaching<T, kLanes>(memory, x, bound, source, lane, shift, k);
    const Narrow pair = memory.winners[lane < k ? lane : 0];
    if (active && lane < k) {
      const int64_t at = row * k + lane;
      const auto index = static_cast<uint32_t>(pair_index(pair));
      static_cast<T*>(args.values)[at] =
          winner_bits(static_cast<uint32_t>(pair >> 32), source + index);
      if (args.wide_index)
        static_cast<int64_t*>(args.indices)[at] = index;
      else
        static_cast<int32_t*>(args.indices)[at] = static_cast<int32_t>(index);
    }
    __syncwarp();
  }
}

template <class T>
cudaError_t start(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), dim3(t::kThreads)};
  switch (plan.lanes) {
    case 8:
      return launch(topk_lanes<T, 8>, shape, stream, args);
    case 16:
      return launch(topk_lanes<T, 16>, shape, stream, args);
    default:
      return launch(topk_lanes<T, 32>, shape, stream, args);
  }
}

}  // namespace

cudaError_t launch_topk_lanes(const TopkArgs& args, const TopkPlan& plan, cudaStream_t stream) {
  switch (args.dtype) {
    case Dtype::f16:
      return start<Half>(args, plan, stream);
    case Dtype::bf16:
      return start<Bfloat>(args, plan, stream);
    default:
      return start<float>(args, plan, stream);
  }
}

}  // namespace gpuprims
