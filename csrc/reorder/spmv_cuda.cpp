// spmv and spmv_csr: tensors to launches.
#include "common/cuda_stable.h"
#include "reorder/checks.h"
#include "reorder/kernels.h"

namespace gpuprims::reorder {
namespace {

constexpr int64_t kLaneMean = 12;  // entries a row up to which a lane reads its own

int64_t accumulator_bytes(ScalarType t) { return t == ScalarType::Double ? 8 : 4; }

void raise_if_bad(const char* op, const int* flag, cudaStream_t stream) {
  if (!raise_on_bad_data()) return;
  int raised = 0;
  check_cuda(op, cudaMemcpyAsync(&raised, flag, sizeof raised, cudaMemcpyDeviceToHost, stream));
  check_cuda(op, cudaStreamSynchronize(stream));
  check_good(op, raised == 0);
}

SpmvArgs args_for(const char* op, const Tensor& values, const Tensor& indices, const Tensor& x,
                  const Tensor& out) {
  SpmvArgs args;
  args.dtype = dtype_of(op, values.scalar_type());
  args.values = values.const_data_ptr();
  args.indices = indices.const_data_ptr();
  args.wide_indices = indices.scalar_type() == ScalarType::Long;
  args.x = x.const_data_ptr();
  args.columns = x.size(0);
  args.m = features_of(x);
  args.out = out.mutable_data_ptr();
  return args;
}

// Columns of x beyond what a grid's second dimension counts.
void check_columns(const char* op, int64_t m) {
  check(m <= 65535, op, ": x must have at most 65535 columns, got ", m);
}

Tensor spmv_cuda(const Tensor& values_in, const Tensor& indices_in, const Tensor& indptr,
                 const MaybeTensor& slices, const MaybeTensor& order, const MaybeTensor& units,
                 const Tensor& x_in, const MaybeTensor& start_in, const MaybeTensor& t_indptr,
                 const MaybeTensor& t_indices, const MaybeTensor& t_ids, int64_t promises) {
  constexpr auto op = "spmv";
  check_spmv(values_in, indices_in, indptr, slices, order, units, x_in, start_in);
  check_columns(op, features_of(x_in));
  const int device = values_in.get_device_index();
  const DeviceGuard guard(device);
  const Tensor values = dense(values_in), indices = dense(indices_in), x = dense(x_in);
  const MaybeTensor start = dense(start_in);
  const PackingTensors p(indptr, slices, order, units, values.size(0), 0, promises);
  Tensor out = rows_like(op, x, p.at.rows);
  SpmvArgs args = args_for(op, values, indices, x, out);
  args.p = p.at;
  if (start) args.start = start->const_data_ptr();
  const cudaStream_t stream = current_stream(device);
  std::optional<Tensor> memory;
  if (!(promises & kChecked) || raise_on_bad_data()) {
    memory = workspace(op, x, 64);
    int* const flag = static_cast<int*>(memory->mutable_data_ptr());
    check_cuda(op, launch_check(p.at, false, {flag}, stream));
    raise_if_bad(op, flag, stream);
    args.flag = flag;
    if (order && out.numel() > 0)  // rows may repeat
      check_cuda(op,
                 cudaMemsetAsync(args.out, 0,
                                 static_cast<size_t>(out.numel() * element_bytes(x.scalar_type())),
                                 stream));
  } else if (p.at.units) {
    memory = workspace(op, x,
                       p.at.unit_count * kStrip * args.m * accumulator_bytes(values.scalar_type()));
    args.partial = memory->mutable_data_ptr();
  }
  if (out.numel() > 0) check_cuda(op, launch_spmv(args, stream));
  return out;
}

// Which kernel short rows take, whose bits are the same: GPUPRIMS_SPMV_CSR_ALGO forces one.
bool reads_by_lane(const SpmvArgs& args) {
  static const std::string forced = [] {
    const char* const text = std::getenv("GPUPRIMS_SPMV_CSR_ALGO");
    return std::string(text ? text : "");
  }();
  if (args.m != 1 || args.wide_indices || forced == "stream") return false;
  return forced == "lane" || args.p.entries <= kLaneMean * args.p.rows;
}

Tensor spmv_csr_cuda(const Tensor& indptr_in, const Tensor& indices_in, const Tensor& values_in,
                     const Tensor& x_in, int64_t promises) {
  constexpr auto op = "spmv_csr";
  check_spmv_csr(indptr_in, indices_in, values_in, x_in);
  check_columns(op, features_of(x_in));
  const int device = values_in.get_device_index();
  const DeviceGuard guard(device);
  const Tensor values = dense(values_in), indices = dense(indices_in), x = dense(x_in);
  PackingTensors p(indptr_in, {}, {}, {}, 0, values.size(0), promises);
  p.at.longest = values.size(0);
  Tensor out = rows_like(op, x, p.at.rows);
  SpmvArgs args = args_for(op, values, indices, x, out);
  args.p = p.at;
  args.by_lane = reads_by_lane(args);
  const cudaStream_t stream = current_stream(device);
  std::optional<Tensor> memory;
  LongRows rows;
  const bool look = !(promises & kChecked) || raise_on_bad_data();
  if (look || !(promises & kShortRows)) {
    rows.capacity = long_capacity(p.at.entries);
    const int64_t list = 64, sums = list + rows.capacity * static_cast<int64_t>(sizeof(LongUnit));
    memory =
        workspace(op, x, sums + rows.capacity * args.m * accumulator_bytes(values.scalar_type()));
    char* const at = static_cast<char*>(memory->mutable_data_ptr());
    rows.flag = reinterpret_cast<int*>(at);
    rows.count = rows.flag + 1;
    rows.list = reinterpret_cast<LongUnit*>(at + list);
    args.partial = at + sums;
    check_cuda(op, launch_check(p.at, true, rows, stream));
    raise_if_bad(op, rows.flag, stream);
    args.flag = rows.flag;
  }
  if (out.numel() > 0) check_cuda(op, launch_spmv_csr(args, rows, device_info(device).sms, stream));
  return out;
}

}  // namespace
}  // namespace gpuprims::reorder

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("spmv", TORCH_BOX(&gpuprims::reorder::spmv_cuda));
  m.impl("spmv_csr", TORCH_BOX(&gpuprims::reorder::spmv_csr_cuda));
}
