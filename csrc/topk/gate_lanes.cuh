// topk_gate without bias and groups: 8, 16 or 32 lanes a row, 16 logits a lane in registers. The
// logits order the experts as their scores do, so scores are computed of the selected alone; a
// softmax that is not renormalised needs its denominator besides.
#pragma once
#include "topk/float_lanes.cuh"

namespace gpuprims {

template <class T, int kLanes>
__global__ void __launch_bounds__(t::kThreads, t::kResident)
    gate_lanes_kernel(const __grid_constant__ GateArgs args) {
  using Items = GateItems<T, kLanes>;
  constexpr int kRows = t::kThreads / kLanes;  // of a block
  __shared__ GateRowMemory<kLanes> memories[kRows];
  const int lane = threadIdx.x % kLanes, shift = threadIdx.x % 32 / kLanes * kLanes;
  GateRowMemory<kLanes>& memory = memories[threadIdx.x / kLanes];
  const int k = args.k;

  for (int64_t first = blockIdx.x * int64_t{kRows}; first < args.rows;
       first += gridDim.x * int64_t{kRows}) {
    const int64_t row = first + threadIdx.x / kLanes;
    const bool active = row < args.rows;  // idle lanes walk along: ballots are a warp's
    float x[t::kItems];
    const T* const logits =
        static_cast<const T*>(args.logits) + (active ? row : args.rows - 1) * args.stride;
    Items::load(args, args.aligned, logits, lane, x);
    float best = x[0];
#pragma unroll
    for (int e = 1; e < t::kItems; ++e) best = larger_nan(best, x[e]);
    const uint32_t bound = lanes_bound<kLanes>(memory, best, lane, shift, k);
    float total = 1;
    if (!args.sigmoid && !args.renormalize) {
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2)
        best = larger_nan(best, __shfl_xor_sync(~0u, best, step));
      total = 0;
#pragma unroll
      for (int e = 0; e < t::kItems; ++e) total += denominator_term(x[e] - best);
      total = lanes_sum<kLanes>(total);
    }
    rank_reaching<T, kLanes>(memory, x, bound, logits, lane, shift, k);
    // A lane a winner: k is below the number of lanes.
    const Narrow pair = memory.winners[lane < k ? lane : 0];
    const float logit = order_value(static_cast<uint32_t>(pair >> 32));
    const float top = order_value(static_cast<uint32_t>(memory.winners[0] >> 32));
    float score = args.sigmoid ? sigmoid(logit) : exponential(logit - top);
    if (lane >= k) score = 0;
    if (args.renormalize) total = lanes_sum<kLanes>(score);
    if (active && lane < k)
      write_slot(args, row * k + lane, score, total, static_cast<int64_t>(pair_index(pair)));
    __syncwarp();
  }
}

}  // namespace gpuprims
