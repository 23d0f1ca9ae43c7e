// spmv and spmv_csr: workspace and launches.
#include "reorder/cuda_data.h"
#include "reorder/spmv_ops.h"

namespace gpuprims::reorder {
namespace {

constexpr int64_t kLaneMean = 8;    // entries a row up to which a lane reads its own
constexpr int64_t kAheadMean = 16;  // slots a row up to which loading ahead pays: else x binds

int64_t accumulator_bytes(const SpmvArgs& args) { return args.dtype == Dtype::f64 ? 8 : 4; }

std::string environment(const char* name) {
  const char* const text = std::getenv(name);
  return text ? text : "";
}

// Which kernel short rows take, whose bits are the same: GPUPRIMS_SPMV_CSR_ALGO forces one.
bool reads_by_lane(const SpmvArgs& args) {
  static const std::string forced = environment("GPUPRIMS_SPMV_CSR_ALGO");
  if (args.m != 1 || args.wide_indices || forced == "stream") return false;
  return forced == "lane" || args.p.entries <= kLaneMean * args.p.rows;
}

// The same for packed rows.
bool wants_ahead(const SpmvArgs& args) {
  static const std::string forced = environment("GPUPRIMS_SPMV_ALGO");
  if (!loads_ahead(args) || forced == "unit") return false;
  return forced == "ahead" || args.p.slots <= kAheadMean * args.p.rows;
}

struct Cuda {
  using Guard = DeviceGuard;
  static constexpr int64_t kMostColumns = 65535;  // what a grid's second dimension counts

  static void spmv(const char* op, SpmvArgs args, Tensor& out, int64_t promises) {
    const int device = out.get_device_index();
    const cudaStream_t stream = current_stream(device);
    args.ahead = wants_ahead(args);
    std::optional<Tensor> memory;
    if (must_look(promises)) {
      memory = workspace(op, out, 64);
      int* const flag = static_cast<int*>(memory->mutable_data_ptr());
      look_at(op, args.p, false, {flag}, stream);
      args.flag = flag;
      if (args.p.order && out.numel() > 0) clear(op, out, stream);
    } else if (args.p.units) {
      memory = workspace(op, out, args.p.unit_count * kStrip * args.m * accumulator_bytes(args));
      args.partial = memory->mutable_data_ptr();
    }
    if (out.numel() > 0) check_cuda(op, launch_spmv(args, device_info(device).sms, stream));
  }

  static void spmv_csr(const char* op, SpmvArgs args, Tensor& out, int64_t promises) {
    const int device = out.get_device_index();
    const cudaStream_t stream = current_stream(device);
    args.by_lane = reads_by_lane(args);
    std::optional<Tensor> memory;
    LongRows rows;
    if (must_look(promises) || !(promises & kShortRows)) {
      rows.capacity = long_capacity(args.p.entries);
      const int64_t list = 64, sums = list + rows.capacity * static_cast<int64_t>(sizeof(LongUnit));
      memory = workspace(op, out, sums + rows.capacity * args.m * accumulator_bytes(args));
      char* const at = static_cast<char*>(memory->mutable_data_ptr());
      rows.flag = reinterpret_cast<int*>(at);
      rows.count = rows.flag + 1;
      rows.list = reinterpret_cast<LongUnit*>(at + list);
      args.partial = at + sums;
      look_at(op, args.p, true, rows, stream);
      args.flag = rows.flag;
    }
    if (out.numel() > 0)
      check_cuda(op, launch_spmv_csr(args, rows, device_info(device).sms, stream));
  }
};

}  // namespace
}  // namespace gpuprims::reorder

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  gpuprims::reorder::register_products<gpuprims::reorder::Cuda>(m);
}
