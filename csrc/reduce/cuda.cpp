// Tensors -> plan -> launch.
#include <cstdlib>
#include <map>
#include <mutex>

#include "common/cuda_stable.h"
#include "reduce/boxed.h"
#include "reduce/kernels.h"

namespace gpuprims {
namespace {

// GPUPRIMS_REDUCE_CHUNKS: at most so many chunks a block. Other grids, the same bits.
int forced_chunks() {
  static const int chunks = [] {
    const char* text = std::getenv("GPUPRIMS_REDUCE_CHUNKS");
    const int value = text ? std::atoi(text) : 0;
    return value == 1 || value == 2 || value == 4 || value == 8 ? value : 0;
  }();
  return chunks;
}

bool captures(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess)
    return status != cudaStreamCaptureStatusNone;
  cudaGetLastError();  // the legacy stream, while another one captures
  return true;
}

// Zeros that a kernel leaves as zeros: cleared once for each stream, whose kernels take turns. A
// graph may be replayed beside the stream that captured it, so it has its own, and clears them.
uint32_t* take_tickets(const char* op, const Tensor& input, int64_t count, int device,
                       cudaStream_t stream, std::optional<Tensor>& own) {
  constexpr int64_t kMost = reduce_tuning::kMostTickets;
  const auto cleared = [&](int64_t tickets) {
    Tensor memory = workspace(op, input, tickets * 4);
    check_cuda(op, cudaMemsetAsync(memory.mutable_data_ptr(), 0, tickets * 4, stream));
    return memory;
  };
  if (count > kMost || stream == cudaStreamPerThread || captures(stream)) {
    own = cleared(count);
    return static_cast<uint32_t*>(own->mutable_data_ptr());
  }
  static std::mutex mutex;
  static auto* const kept = new std::map<std::pair<int, cudaStream_t>, Tensor>;  // to the end
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = kept->find({device, stream});
  if (found == kept->end()) found = kept->emplace(std::pair(device, stream), cleared(kMost)).first;
  return static_cast<uint32_t*>(found->second.mutable_data_ptr());
}

using Launcher = cudaError_t(const ReduceArgs&, const ReducePlan&, cudaStream_t);

Launcher* launcher_of(ReduceFamily family) {
  switch (family) {
    case ReduceFamily::additive:
      return launch_additive;
    case ReduceFamily::extreme:
      return launch_extreme;
    case ReduceFamily::arg:
      return launch_arg;
    case ReduceFamily::moments:
      return launch_moments;
    case ReduceFamily::logsumexp:
      return launch_logsumexp;
    case ReduceFamily::stats:
      return launch_stats;
    default:
      return launch_dot;
  }
}

void run(const char* op, ReduceArgs& args, ReduceFamily family, const Tensor& input, int device) {
  ReduceProblem problem = problem_for(args, family, device_info(device).sms);
  problem.forced_chunks = forced_chunks();
  const ReducePlan plan = family == ReduceFamily::dot ? plan_dot(problem) : plan_reduce(problem);
  if (plan.grid == 0) return;
  // long_rows numbers rows in 32 bits: 64 would cost it registers, and where they are few spills.
  const bool numbered = plan.algo != ReduceAlgo::long_rows || args.layout.columns < UINT32_MAX - 32;
  check(plan.grid <= INT32_MAX && numbered, op, ": too many results for one launch");
  fit_decode(args, plan, family);
  const cudaStream_t stream = current_stream(device);
  std::optional<Tensor> scratch, own;
  if (plan.parts > 1) {
    scratch = workspace(op, input, plan.workspace);
    args.partials = scratch->mutable_data_ptr();
    args.tickets = take_tickets(op, input, plan.tickets, device, stream, own);
  }
  check_cuda(op, launcher_of(family)(args, plan, stream));
}

TensorPtr reduce_cuda(const Tensor& input, int64_t op, const MaybeDims& dims, bool keepdim,
                      int64_t dtype, double correction) {
  const ReduceShape shape = check_reduce(input, op, dims, keepdim, dtype);
  const Dtype as = reduced_as(shape.op, shape.dtype, shape.out_dtype);
  if (as != shape.dtype) [[unlikely]]
    return reduce_cuda(torch::stable::to(input, scalar_type_of(as)), op, dims, keepdim,
                       static_cast<int64_t>(shape.out_dtype), correction);
  const int device = input.get_device_index();
  const DeviceGuard guard(device);
  TensorPtr out = allocate("reduce", place_of(input), scalar_type_of(shape.out_dtype), shape.output,
                           shape.out_rank);
  ReduceArgs args = args_for(shape.op, shape.dtype, shape.out_dtype, correction);
  const ReduceFamily family = family_of(shape.op);
  std::optional<Tensor> copy;
  attach(args, input, shape, family, is_arg(shape.op), copy);
  args.out[0] = data_of(out);
  run("reduce", args, family, input, device);
  return out;
}

StatsResult stats_cuda(const Tensor& input, const MaybeDims& dims, bool keepdim, double correction,
                       bool indices) {
  ReduceShape shape = check_stats(input, dims, keepdim, indices);
  const int device = input.get_device_index();
  const DeviceGuard guard(device);
  StatsResult result = allocate_stats(input, shape, indices);
  shape.op = ReduceOp::var;
  ReduceArgs args = args_for(shape.op, shape.dtype, shape.out_dtype, correction);
  args.indices = indices;
  std::optional<Tensor> copy;
  attach(args, input, shape, ReduceFamily::stats, indices, copy);
  for (int i = 0; i < 7; ++i) args.out[i] = data_of(result[i]);
  run("stats", args, ReduceFamily::stats, input, device);
  return result;
}

TensorPtr dot_cuda(const Tensor& input, const Tensor& other) {
  const Dtype dtype = check_dot(input, other);
  const int device = input.get_device_index();
  const DeviceGuard guard(device);
  TensorPtr out = allocate("dot", place_of(input), input.scalar_type(), nullptr, 0);
  const Tensor x = torch::stable::contiguous(input), y = torch::stable::contiguous(other);
  ReduceShape shape;
  shape.dtype = shape.out_dtype = dtype;
  shape.rank = 1;
  shape.reduced[0] = true;
  ReduceArgs args = args_for(shape.op, shape.dtype, shape.out_dtype, 1.0);
  std::optional<Tensor> copy;
  attach(args, x, shape, ReduceFamily::dot, false, copy);
  args.other = y.const_data_ptr();
  args.out[0] = data_of(out);
  run("dot", args, ReduceFamily::dot, input, device);
  return out;
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("reduce", &gpuprims::boxed_reduce<gpuprims::reduce_cuda>);
  m.impl("_reduce", &gpuprims::boxed_plain_reduce<gpuprims::reduce_cuda>);
  m.impl("stats", &gpuprims::boxed_stats<gpuprims::stats_cuda>);
  m.impl("dot", &gpuprims::boxed_dot<gpuprims::dot_cuda>);
}
