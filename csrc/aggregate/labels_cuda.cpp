// Tensors -> launches of label propagation.
#include "aggregate/labels_checks.h"
#include "aggregate/labels_kernels.h"
#include "common/cuda_stable.h"

namespace gpuprims {

Tensor graph_labels_cuda(const Tensor& indptr, const Tensor& indices, int64_t method,
                         int64_t rounds, int64_t spacing) {
  constexpr auto op = "_graph_labels";
  check_labels(indptr, indices, method, rounds, spacing);
  const int device = indices.get_device_index();
  const DeviceGuard guard(device);
  LabelTensors labels(indptr, indices);
  if (labels.rows == 0) return labels.first;
  const cudaStream_t stream = current_stream(device);
  const auto kind = static_cast<Labels>(method);
  check_cuda(op, launch_first_labels(kind, static_cast<int32_t*>(labels.first.data_ptr()),
                                     labels.rows, spacing, stream));
  for (int64_t round = 0; round < rounds; ++round) {
    check_cuda(op, launch_labels(kind, labels.args, stream));
    labels.turn();
  }
  return labels.first;
}

}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CUDA, m) {
  m.impl("_graph_labels", TORCH_BOX(&gpuprims::graph_labels_cuda));
}
