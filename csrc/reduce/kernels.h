// The reductions' launchers: raw pointers and a stream, no PyTorch.
#pragma once
#include <cuda_runtime_api.h>

#include "reduce/args.h"

namespace gpuprims {

cudaError_t launch_additive(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream);
cudaError_t launch_extreme(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream);
cudaError_t launch_arg(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream);
cudaError_t launch_moments(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream);
cudaError_t launch_logsumexp(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream);
cudaError_t launch_stats(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream);
cudaError_t launch_placed_stats(const ReduceArgs& args, const ReducePlan& plan,
                                cudaStream_t stream);  // launch_stats calls it
cudaError_t launch_dot(const ReduceArgs& args, const ReducePlan& plan, cudaStream_t stream);

}  // namespace gpuprims
