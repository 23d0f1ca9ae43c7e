// Tensors -> plan -> launches.
#include "aggregate/boxed.h"
#include "aggregate/choose.h"
#include "aggregate/kernels.h"
#include "common/cuda_stable.h"

namespace gpuprims {
namespace {

int64_t element_bytes(const Tensor& t) { return dtype_bytes(dtype_of("", t.scalar_type())); }

AggregateTuning& tuning() {
  static AggregateTuning from_environment = read_aggregate_tuning();
  return from_environment;
}

uint64_t address(const Tensor& t) { return reinterpret_cast<uint64_t>(t.data_ptr()); }

// One load width serves every matrix of the call: rows, width and base must allow it.
int load_width(Dtype dtype, const Tensor& x) {
  const int64_t bytes = dtype_bytes(dtype);
  return pick_load_bytes(dtype, address(x), x.size(0) > 1 ? x.stride(0) * bytes : 0,
                         x.size(1) * bytes);
}

// What is read as wide as x; its rows are dense, so only its base can be in the way.
int narrow_for(Dtype dtype, int width, const MaybeTensor& other) {
  return other && address(*other) % 16 != 0 ? dtype_bytes(dtype) : width;
}

// GPUPRIMS_CHECK=1 waits for the device and raises; otherwise the flag stays there, for the kernels
// to read.
void prepare(const char* op, const Csr& csr, int* flag, int64_t* plan, cudaStream_t stream) {
  const bool raise = raise_on_bad_data();
  check_cuda(op, launch_prepare(csr, flag, plan, raise, stream));
  if (!raise) return;
  int raised = 0;
  check_cuda(op, cudaMemcpyAsync(&raised, flag, sizeof(raised), cudaMemcpyDeviceToHost, stream));
  check_cuda(op, cudaStreamSynchronize(stream));
  check_flag(op, raised, csr);
}

// A copy at an address that vectors can be loaded from, where `t` is at another.
std::optional<Tensor> realign(const char* op, const Tensor& t, cudaStream_t stream) {
  if (address(t) % 16 == 0) return {};
  Tensor copy = empty(op, t, t.scalar_type(), {t.size(0)});
  const size_t bytes = t.size(0) * (t.scalar_type() == ScalarType::Long ? 8 : 4);
  check_cuda(
      op, cudaMemcpyAsync(copy.data_ptr(), t.data_ptr(), bytes, cudaMemcpyDeviceToDevice, stream));
  return copy;
}

// Kernels multiply row numbers by a stride of 32 bits.
Tensor near_rows(const char* op, Tensor x, int64_t bytes) {
  if (x.size(0) > 1 && x.stride(0) * bytes >= kMostStride) x = torch::stable::contiguous(x);
  check(x.size(0) <= 1 || x.stride(0) * bytes < kMostStride, op,
        ": a row of features must be smaller than 2 GiB");
  return x;
}

// What a call's kernels read and write, from tensors that outlive it.
struct Call {
  const char* op;
  Tensor x;  // what is gathered
  GraphTensors graph;
  MaybeTensor weight;
  int64_t promises;
  bool positions;
};

void run(AggregateLauncher* launcher, AggregateArgs& args, const Call& call, int width) {
  const char* const op = call.op;
  const Tensor& x = call.x;
  const int device = x.get_device_index();
  const DeviceInfo& info = device_info(device);
  const Dtype dtype = dtype_of(op, x.scalar_type());
  const Csr& csr = args.csr;
  const PlanLayout layout = plan_layout(csr.rows, csr.edges);
  AggregateFacts facts;
  facts.sources = csr.columns;
  facts.checked = (call.promises & kChecked) && !raise_on_bad_data();
  facts.no_hubs = call.promises & kNoHubs;
  facts.no_long = facts.no_hubs && (call.promises & kNoLongRows);
  facts.planned = call.graph.plan.has_value();
  facts.scheduled = csr.order != nullptr;
  facts.positions = call.positions;
  facts.taken = launcher == launch_extreme_grad;
  facts.bits = facts.taken && !call.weight && takes_vectors(width, args);
  facts.ids = csr.edge_ids != nullptr;
  facts.most_warps = most_warps(launcher, width, args);
  facts.plain = (launcher == launch_sum || launcher == launch_affine) && takes_vectors(width, args);
  facts.may_deepen = facts.plain && launcher == launch_sum && takes_deep(dtype, args);
  facts.narrow = launcher == launch_sum && takes_narrow(dtype, width, args);
  facts.sms = info.sms;
  facts.cache_bytes = info.cache / 5 * 4;
  facts.tuning = tuning();
  const AggregatePlan plan =
      plan_aggregate(dtype, width, csr.rows, csr.edges, args.features, facts);
  const cudaStream_t stream = current_stream(device);
  std::optional<Tensor> space, no_rows;
  const int64_t* numbers = static_cast<const int64_t*>(pointer(call.graph.plan));
  if (plan.space_bytes > 0) {
    space = workspace(op, x, plan.space_bytes);
    char* const base = static_cast<char*>(space->data_ptr());
    if (plan.prepare) {
      int* const flag = reinterpret_cast<int*>(base);
      int64_t* const made = reinterpret_cast<int64_t*>(base + plan.plan_at);
      prepare(op, csr, flag, made, stream);
      numbers = made;
      args.flag = flag;
    }
    args.taken = reinterpret_cast<unsigned*>(base + plan.taken_at);
    args.marked = reinterpret_cast<unsigned*>(base + plan.marked_at);
    args.taken_words = plan.taken_words;
    if (plan.hubs) args.partial = base + plan.partial_at;
    if (plan.hubs && call.positions)
      args.partial_position = reinterpret_cast<int32_t*>(base + plan.position_at);
  }
  if (csr.rows == 0 || args.features == 0) return;
  args.starts = numbers + layout.starts;
  args.hub_count = numbers;
  args.hubs = numbers + layout.hubs;
  if (csr.columns == 0) {  // no index is good: kernels read, and ignore, a row of zeros
    const int64_t bytes = args.features * 8;  // of any dtype, and of stored edges
    no_rows = workspace(op, x, bytes);
    check_cuda(op, cudaMemsetAsync(no_rows->data_ptr(), 0, bytes, stream));
    args.x = no_rows->data_ptr();
    if (args.arg) args.arg = no_rows->data_ptr();
  }
  if (x.size(0) <= 1) args.x_stride = 0;
  const auto aligned = realign(op, call.graph.indices, stream);
  if (aligned) args.csr.indices = aligned->data_ptr();
  check_cuda(op, launcher(dtype, plan, args, stream));
}

}  // namespace

AggregateResult neighbor_aggregate_cuda(const AggregateCall& call) {
  constexpr auto op = "neighbor_aggregate";
  const int64_t reduce = call.reduce;
  check_aggregate(call.x, call.indptr, call.indices, call.edge_ids, call.edge_weight, call.t_indptr,
                  call.t_indices, call.t_edge_ids, reduce);
  check_plan(op, "plan", call.plan, call.indptr, call.indices, call.x, "x");
  const DeviceGuard guard(call.x.get_device_index());
  const Tensor x = near_rows(op, dense_rows(call.x), element_bytes(call.x));
  const bool extreme = reduce >= 2;
  const Call work{op,
                  x,
                  GraphTensors(call.indptr, call.indices, call.edge_ids, call.plan, x.size(0)),
                  dense(call.edge_weight),
                  call.promises,
                  extreme};
  const int64_t shape[2] = {work.graph.csr.rows, x.size(1)};
  AggregateResult result;
  result.out = allocate(op, place_of(x), x.scalar_type(), shape, 2);
  if (extreme && call.want_arg)
    result.arg = allocate(op, place_of(x), call.indptr.scalar_type(), shape, 2);
  AggregateArgs args{};
  args.csr = work.graph.csr;
  args.x = x.data_ptr();
  args.x_stride = x.stride(0);
  args.features = shape[1];
  args.edge_weight = pointer(work.weight);
  args.scale = pointer(call.scale);
  args.bias = pointer(call.bias);
  args.out = data_of(result.out);
  args.arg_out = result.arg ? data_of(result.arg) : nullptr;
  args.reduce = static_cast<Reduce>(reduce);
  AggregateLauncher* const launcher = extreme
                                          ? (work.weight ? launch_weighted_extreme : launch_extreme)
                                      : call.scale  ? launch_affine
                                      : work.weight ? launch_weighted_sum
                                                    : launch_sum;
  const Dtype dtype = dtype_of(op, x.scalar_type());
  run(launcher, args, work, narrow_for(dtype, load_width(dtype, x), call.bias));
  return result;
}

Tensor neighbor_extreme_grad_cuda(const Tensor& grad_in, const Tensor& arg_in, const Tensor& indptr,
                                  const Tensor& indices, const MaybeTensor& edge_ids,
                                  const MaybeTensor& edge_weight, const MaybeTensor& t_indptr,
                                  const MaybeTensor& t_indices, const MaybeTensor& t_edge_ids,
                                  int64_t promises, const MaybeTensor& plan,
                                  const MaybeTensor& t_plan) {
  constexpr auto op = "neighbor_extreme_grad";
  check_extreme_grad(grad_in, arg_in, indptr, indices, edge_ids, edge_weight, t_indptr, t_indices,
                     t_edge_ids);
  check_plan(op, "plan", plan, indptr, indices, grad_in, "grad");
  const DeviceGuard guard(grad_in.get_device_index());
  const Tensor grad = near_rows(op, dense_rows(grad_in), element_bytes(grad_in));
  const Tensor arg = dense(arg_in);
  const Call work{op,
                  grad,
                  GraphTensors(indptr, indices, edge_ids, plan, grad.size(0)),
                  dense(edge_weight),
                  promises,
                  false};
  Tensor out = empty(op, grad, grad.scalar_type(), {work.graph.csr.rows, grad.size(1)});
  AggregateArgs args{};
  args.csr = work.graph.csr;
  args.x = grad.data_ptr();
  args.x_stride = grad.stride(0);
  args.features = grad.size(1);
  args.edge_weight = pointer(work.weight);
  args.arg = arg.data_ptr();
  args.out = out.data_ptr();
  args.reduce = Reduce::sum;
  const Dtype dtype = dtype_of(op, grad.scalar_type());
  run(launch_extreme_grad, args, work, narrow_for(dtype, load_width(dtype, grad), arg));
  return out;
}

Tensor sddmm_cuda(const Tensor& a_in, const Tensor& b_in, const Tensor& indptr,
                  const Tensor& indices, const MaybeTensor& edge_ids, const MaybeTensor& arg_in,
                  const MaybeTensor& t_indptr, const MaybeTensor& t_indices,
                  const MaybeTensor& t_edge_ids, int64_t promises, const MaybeTensor& plan_in,
                  const MaybeTensor& t_plan) {
  constexpr auto op = "sddmm";
  check_sddmm(a_in, b_in, indptr, indices, edge_ids, arg_in, t_indptr, t_indices, t_edge_ids);
  check_plan(op, "plan", plan_in, indptr, indices, b_in, "b");
  const int device = a_in.get_device_index();
  const DeviceGuard guard(device);
  const Tensor a = dense_rows(a_in), b = dense_rows(b_in);
  const GraphTensors graph(indptr, indices, edge_ids, plan_in, b.size(0));
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
    int* const flag = static_cast<int*>(space->data_ptr());
    prepare(op, graph.csr, flag, nullptr, stream);
    args.flag = flag;
    // Ids that repeat, and orders that leave their range, leave some outputs unwritten.
    if (edge_ids || graph.csr.order)
      check_cuda(op,
                 cudaMemsetAsync(out.data_ptr(), 0, graph.csr.edges * dtype_bytes(dtype), stream));
  }
  if (graph.csr.edges > 0) check_cuda(op, launch_sddmm(dtype, plan, args, stream));
  return out;
}

Tensor aggregate_plan_cuda(const Tensor& indptr_in, int64_t edges) {
  constexpr auto op = "_aggregate_plan";
  check_vector(op, "indptr", indptr_in, indptr_in, "indptr");
  check(indptr_in.size(0) >= 1, op, ": indptr must have at least 1 element, got 0");
  check(edges >= 0, op, ": edges must not be negative, got ", edges);
  const int device = indptr_in.get_device_index();
  const DeviceGuard guard(device);
  const Tensor indptr = dense(indptr_in);
  Csr csr{};
  csr.indptr = indptr.data_ptr();
  csr.wide_offsets = indptr.scalar_type() == ScalarType::Long;
  csr.rows = indptr.size(0) - 1;
  csr.edges = edges;
  Tensor plan = empty(op, indptr, ScalarType::Long, {plan_layout(csr.rows, edges).size});
  const Tensor flag = workspace(op, indptr, kSpaceHeader);
  check_cuda(op,
             launch_prepare(csr, static_cast<int*>(flag.data_ptr()),
                            static_cast<int64_t*>(plan.data_ptr()), false, current_stream(device)));
  return plan;
}

}  // namespace gpuprims

// For bench/aggregate_variants.py, which times variants in one process; 0: the plan's own choice.
extern "C" __attribute__((visibility("default"))) void gpuprims_tune_aggregate(
    int64_t tile_bytes, int64_t group_units, int64_t warps, int chunk_runs, int small, int deep) {
  gpuprims::tuning() = {tile_bytes, group_units, warps, small, deep, chunk_runs};
}

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("neighbor_aggregate", &gpuprims::boxed_aggregate<gpuprims::neighbor_aggregate_cuda>);
  m.impl("_neighbor_aggregate",
         &gpuprims::boxed_plain_aggregate<gpuprims::neighbor_aggregate_cuda>);
  m.impl("_neighbor_affine", TORCH_BOX(&gpuprims::affine<gpuprims::neighbor_aggregate_cuda>));
  m.impl("neighbor_extreme_grad", TORCH_BOX(&gpuprims::neighbor_extreme_grad_cuda));
  m.impl("sddmm", TORCH_BOX(&gpuprims::sddmm_cuda));
  m.impl("_aggregate_plan", TORCH_BOX(&gpuprims::aggregate_plan_cuda));
}
