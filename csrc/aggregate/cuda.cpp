// Tensors -> plan -> launches.
#include "aggregate/boxed.h"
#include "aggregate/kernels.h"
#include "common/cuda_stable.h"

namespace gpuprims {
namespace {

uint64_t address(const Tensor& t) { return reinterpret_cast<uint64_t>(t.data_ptr()); }

// One load width serves every matrix of the call: rows, width and base must allow it.
int load_width(Dtype dtype, const Tensor& x) {
  const int64_t bytes = dtype_bytes(dtype);
  return pick_load_bytes(dtype, address(x), x.size(0) > 1 ? x.stride(0) * bytes : 0,
                         x.size(1) * bytes);
}

// The columns of arg are read as wide as those of x; its rows are dense, so only its base can be in
// the way.
int narrow_for(Dtype dtype, int width, const MaybeTensor& arg) {
  return arg && address(*arg) % 16 != 0 ? dtype_bytes(dtype) : width;
}

HubSpace space_at(char* base, const AggregatePlan& plan) {
  HubSpace space;
  space.flag = reinterpret_cast<int*>(base);
  space.count = reinterpret_cast<unsigned long long*>(base + 8);
  space.chunks = reinterpret_cast<HubChunk*>(base + plan.chunks_at);
  space.capacity = plan.capacity;
  space.partial = base + plan.partial_at;
  space.partial_position = reinterpret_cast<int32_t*>(base + plan.position_at);
  return space;
}

// GPUPRIMS_CHECK=1 waits for the device and raises; otherwise the flag stays there, for the kernels
// to read.
void prepare(const char* op, const Csr& csr, const HubSpace& space, cudaStream_t stream) {
  const bool raise = raise_on_bad_data();
  check_cuda(op, launch_prepare(csr, space, raise, stream));
  if (!raise) return;
  int flag = 0;
  check_cuda(op, cudaMemcpyAsync(&flag, space.flag, sizeof(flag), cudaMemcpyDeviceToHost, stream));
  check_cuda(op, cudaStreamSynchronize(stream));
  check_flag(op, flag, csr);
}

using Launcher = cudaError_t (*)(Dtype, const AggregatePlan&, const AggregateArgs&, cudaStream_t);

void run(const char* op, Launcher launcher, AggregateArgs& args, const Tensor& x, int width,
         bool positions, int64_t promises) {
  const int device = x.get_device_index();
  const Dtype dtype = dtype_of(op, x.scalar_type());
  const bool checked = (promises & kChecked) && !raise_on_bad_data();
  const AggregatePlan plan =
      plan_aggregate(dtype, width, args.csr.rows, args.csr.edges, args.features, checked,
                     promises & kNoHubs, positions, device_info(device).sms);
  const cudaStream_t stream = current_stream(device);
  std::optional<Tensor> space;
  if (plan.space_bytes > 0) {
    space = workspace(op, x, plan.space_bytes);
    args.space = space_at(static_cast<char*>(space->data_ptr()), plan);
    prepare(op, args.csr, args.space, stream);
  }
  if (args.csr.rows > 0 && args.features > 0) check_cuda(op, launcher(dtype, plan, args, stream));
}

}  // namespace

AggregateResult neighbor_aggregate_cuda(const AggregateCall& call) {
  constexpr auto op = "neighbor_aggregate";
  const int64_t reduce = call.reduce;
  check_aggregate(call.x, call.indptr, call.indices, call.edge_ids, call.edge_weight, call.t_indptr,
                  call.t_indices, call.t_edge_ids, reduce);
  const DeviceGuard guard(call.x.get_device_index());
  const Tensor x = dense_rows(call.x);
  const GraphTensors graph(call.indptr, call.indices, call.edge_ids, x.size(0));
  const MaybeTensor weight = dense(call.edge_weight);
  const bool extreme = reduce >= 2;
  const int64_t shape[2] = {graph.csr.rows, x.size(1)};
  AggregateResult result;
  result.out = allocate(op, place_of(x), x.scalar_type(), shape, 2);
  if (extreme && call.want_arg)
    result.arg = allocate(op, place_of(x), call.indptr.scalar_type(), shape, 2);
  AggregateArgs args{};
  args.csr = graph.csr;
  args.x = x.data_ptr();
  args.x_stride = x.stride(0);
  args.features = shape[1];
  args.edge_weight = pointer(weight);
  args.out = data_of(result.out);
  args.arg_out = result.arg ? data_of(result.arg) : nullptr;
  args.reduce = static_cast<Reduce>(reduce);
  run(op, extreme ? launch_extreme : launch_sum, args, x,
      load_width(dtype_of(op, x.scalar_type()), x), extreme, call.promises);
  return result;
}

Tensor neighbor_extreme_grad_cuda(const Tensor& grad_in, const Tensor& arg_in, const Tensor& indptr,
                                  const Tensor& indices, const MaybeTensor& edge_ids,
                                  const MaybeTensor& edge_weight, const MaybeTensor& t_indptr,
                                  const MaybeTensor& t_indices, const MaybeTensor& t_edge_ids,
                                  int64_t promises) {
  constexpr auto op = "neighbor_extreme_grad";
  check_extreme_grad(grad_in, arg_in, indptr, indices, edge_ids, edge_weight, t_indptr, t_indices,
                     t_edge_ids);
  const DeviceGuard guard(grad_in.get_device_index());
  const Tensor grad = dense_rows(grad_in), arg = dense(arg_in);
  const GraphTensors graph(indptr, indices, edge_ids, grad.size(0));
  const MaybeTensor weight = dense(edge_weight);
  Tensor out = empty(op, grad, grad.scalar_type(), {graph.csr.rows, grad.size(1)});
  AggregateArgs args{};
  args.csr = graph.csr;
  args.x = grad.data_ptr();
  args.x_stride = grad.stride(0);
  args.features = grad.size(1);
  args.edge_weight = pointer(weight);
  args.arg = arg.data_ptr();
  args.out = out.data_ptr();
  args.reduce = Reduce::sum;
  const Dtype dtype = dtype_of(op, grad.scalar_type());
  run(op, launch_extreme_grad, args, grad, narrow_for(dtype, load_width(dtype, grad), arg), false,
      promises);
  return out;
}

Tensor sddmm_cuda(const Tensor& a_in, const Tensor& b_in, const Tensor& indptr,
                  const Tensor& indices, const MaybeTensor& edge_ids, const MaybeTensor& arg_in,
                  const MaybeTensor& t_indptr, const MaybeTensor& t_indices,
                  const MaybeTensor& t_edge_ids, int64_t promises) {
  constexpr auto op = "sddmm";
  check_sddmm(a_in, b_in, indptr, indices, edge_ids, arg_in, t_indptr, t_indices, t_edge_ids);
  const int device = a_in.get_device_index();
  const DeviceGuard guard(device);
  const Tensor a = dense_rows(a_in), b = dense_rows(b_in);
  const GraphTensors graph(indptr, indices, edge_ids, b.size(0));
  const MaybeTensor arg = dense(arg_in);
  Tensor out = empty(op, a, a.scalar_type(), {graph.csr.edges});
  const Dtype dtype = dtype_of(op, a.scalar_type());
  const int width = narrow_for(dtype, std::min(load_width(dtype, a), load_width(dtype, b)), arg);
  const bool checked = (promises & kChecked) && !raise_on_bad_data();
  const SddmmPlan plan = plan_sddmm(width, graph.csr.edges, checked);
  const cudaStream_t stream = current_stream(device);
  SddmmArgs args{graph.csr, a.data_ptr(), b.data_ptr(),   a.stride(0), b.stride(0),
                 a.size(1), pointer(arg), out.data_ptr(), nullptr};
  std::optional<Tensor> space;
  if (plan.space_bytes > 0) {
    space = workspace(op, a, plan.space_bytes);
    HubSpace flags;
    flags.flag = static_cast<int*>(space->data_ptr());
    prepare(op, graph.csr, flags, stream);
    args.flag = flags.flag;
    // Ids that repeat leave some outputs unwritten.
    if (edge_ids)
      check_cuda(op,
                 cudaMemsetAsync(out.data_ptr(), 0, graph.csr.edges * dtype_bytes(dtype), stream));
  }
  if (graph.csr.edges > 0) check_cuda(op, launch_sddmm(dtype, plan, args, stream));
  return out;
}

}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("neighbor_aggregate", &gpuprims::boxed_aggregate<gpuprims::neighbor_aggregate_cuda>);
  m.impl("_neighbor_aggregate",
         &gpuprims::boxed_plain_aggregate<gpuprims::neighbor_aggregate_cuda>);
  m.impl("neighbor_extreme_grad", TORCH_BOX(&gpuprims::neighbor_extreme_grad_cuda));
  m.impl("sddmm", TORCH_BOX(&gpuprims::sddmm_cuda));
}
