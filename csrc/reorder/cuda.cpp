// pack_rows, unpack_rows and gather_packed: launches.
#include "reorder/cuda_data.h"
#include "reorder/move_ops.h"

namespace gpuprims::reorder {
namespace {

struct Cuda {
  using Guard = DeviceGuard;

  static void move(const char* op, MoveArgs args, Tensor& out, int64_t promises) {
    const cudaStream_t stream = current_stream(out.get_device_index());
    const bool look = args.move != Move::gather && must_look(promises);
    std::optional<Tensor> memory;
    if (look) {
      memory = workspace(op, out, 64);
      int* const flag = static_cast<int*>(memory->mutable_data_ptr());
      look_at(op, args.p, true, {flag}, stream);
      args.flag = flag;
    }
    if (out.numel() == 0) return;
    if (look && args.move == Move::unpack && args.p.order) clear(op, out, stream);
    check_cuda(op, launch_move(args, stream));
  }
};

}  // namespace
}  // namespace gpuprims::reorder

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  gpuprims::reorder::register_moves<gpuprims::reorder::Cuda>(m);
}
