// What every call on the GPU begins with: a plan, a workspace, a look at the offsets.
#pragma once
#include "attention/checks.h"
#include "attention/kernels.h"
#include "common/cuda_stable.h"

namespace gpuprims::attention {

// Whether features may be read 16 bytes at a time, whatever the row.
inline bool aligned(const Tensor& x) {
  const int64_t bytes = dtype_bytes(dtype_of("neighbor_attention", x.scalar_type()));
  const uint64_t all = reinterpret_cast<uint64_t>(x.data_ptr()) |
                       static_cast<uint64_t>(x.size(0) > 1 ? x.stride(0) * bytes : 0) |
                       static_cast<uint64_t>(x.size(2) * bytes);
  return all % 16 == 0 && x.size(2) > 0;
}

// One walk over the rows of a graph: its plan, and the workspace that lives as long as it.
class Walk {
 public:
  Walk(const char* op, const Tensor& like, const Csr& csr, bool vector, int64_t heads,
       int64_t channels, int64_t partial, int64_t promises, bool runs = false)
      : stream(current_stream(like.get_device_index())),
        dtype(dtype_of(op, like.scalar_type())),
        checked_((promises & kChecked) && !raise_on_bad_data()) {
    const bool no_hubs = (promises & kNoLongRows) || channels == 0;
    plan = plan_rows(dtype, vector, csr.rows, csr.edges, heads, channels, partial, checked_,
                     no_hubs, device_info(like.get_device_index()).sms, runs);
    if (plan.space_bytes == 0) return;
    space_ = workspace(op, like, plan.space_bytes);
    char* const base = static_cast<char*>(space_->data_ptr());
    hubs = {reinterpret_cast<int*>(base),
            reinterpret_cast<unsigned long long*>(base + 8),
            reinterpret_cast<Chunk*>(base + plan.chunks_at),
            plan.capacity,
            runs ? reinterpret_cast<int64_t*>(base + plan.starts_at) : nullptr,
            plan.runs,
            plan.run_work,
            base + plan.partial_at,
            base + 16};
    const bool raise = raise_on_bad_data();
    check_cuda(op, launch_prepare(csr, hubs, raise, stream));
    if (!raise) return;
    int flag = 0;
    check_cuda(op, cudaMemcpyAsync(&flag, hubs.flag, sizeof flag, cudaMemcpyDeviceToHost, stream));
    check_cuda(op, cudaStreamSynchronize(stream));
    check_flag(op, flag, csr);
  }

  // Elements that a bad offset or a repeated id leaves unwritten are NaN: all bits set, in any
  // type.
  void fill(const char* op, const Tensor& out) const {
    if (checked_ || out.numel() == 0) return;
    const int64_t bytes = out.numel() * dtype_bytes(dtype_of(op, out.scalar_type()));
    check_cuda(op, cudaMemsetAsync(out.data_ptr(), 0xff, bytes, stream));
  }

  Plan plan;
  Hubs hubs;
  cudaStream_t stream;
  Dtype dtype;

 private:
  bool checked_;
  std::optional<Tensor> space_;
};

}  // namespace gpuprims::attention
