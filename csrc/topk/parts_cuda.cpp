// Where the host time of a small topk goes: each part timed by itself, for `bench topk --host`.
#include <chrono>

#include "common/cuda_stable.h"
#include "topk/boxed.h"
#include "topk/kernels.h"
#include "topk/plan.h"

namespace gpuprims {

TopkKernel topk_cuda;  // cuda.cpp

namespace {

// Microseconds a call, the least of some batches; the stream is empty before each.
template <class Call>
double microseconds(int64_t calls, cudaStream_t stream, const Call& call) {
  using Clock = std::chrono::steady_clock;
  double least = 1e9;
  for (int batch = 0; batch < 10; ++batch) {
    check_cuda("topk", cudaStreamSynchronize(stream));
    const auto start = Clock::now();
    for (int64_t i = 0; i < calls; ++i) call();
    const std::chrono::duration<double, std::micro> spent = Clock::now() - start;
    least = std::min(least, spent.count() / static_cast<double>(calls));
  }
  return least;
}

// Of a dense, aligned float32 [rows, n] whose rows suit lanes: the handle of an argument, checks
// and plan, the two results made and freed, the stream's name, the launch, and all of it together.
TensorPtr topk_parts(TensorRef input, int64_t k, int64_t calls) {
  const TopkShape shape = check_topk(input, k, -1, std::nullopt, 64);
  const auto device = input.get_device_index();
  const DeviceGuard guard(device);
  const DeviceInfo& info = device_info(device);
  const cudaStream_t stream = current_stream(device);
  const auto plan = [&] {
    const TopkShape checked = check_topk(input, k, -1, std::nullopt, 64);
    TopkProblem problem{checked.dtype, checked.rows,        checked.n, k,
                        info.sms,      TopkAlgo::automatic, false,     info.smem};
    problem.vectors = true;
    return plan_topk(problem);
  };
  const TopkPlan planned = plan();
  check(shape.rank == 2 && planned.algo == TopkAlgo::lanes,
        "topk: its parts are timed for short rows alone");
  const TopkResult result = allocate_topk(input, shape, 64);
  TopkArgs args;
  args.input = input.const_data_ptr();
  args.values = data_of(result.values);
  args.indices = data_of(result.indices);
  args.rows = shape.rows, args.n = shape.n, args.k = k, args.dtype = shape.dtype;
  args.in = {shape.n, shape.n, 1};
  int64_t grids = 0;  // so that the plan is not optimised away
  const double times[] = {
      microseconds(calls, stream, [&] { (void)input.shared(); }),
      microseconds(calls, stream, [&] { grids += plan().grid; }),
      microseconds(calls, stream, [&] { (void)allocate_topk(input, shape, 64); }),
      microseconds(calls, stream, [&] { (void)current_stream(device); }),
      microseconds(calls, stream,
                   [&] { check_cuda("topk", launch_topk_lanes(args, planned, stream)); }),
      microseconds(calls, stream, [&] { (void)topk_cuda(input, k, -1, true, std::nullopt, 64); }),
  };
  check(grids > 0, "topk: no plan");
  const int64_t size = std::size(times);
  TensorPtr out = allocate("topk", {aoti_torch_device_type_cpu(), 0}, ScalarType::Double, &size, 1);
  std::copy(std::begin(times), std::end(times), static_cast<double*>(data_of(out)));
  return out;
}

void boxed_topk_parts(StableIValue* stack, uint64_t, uint64_t) {
  const TensorPtr input = take_tensor(stack, 0);
  give_result(stack, 0,
              topk_parts(TensorRef(input.get()), take_argument<int64_t>(stack, 1),
                         take_argument<int64_t>(stack, 2)));
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) { m.impl("_topk_parts", &gpuprims::boxed_topk_parts); }
