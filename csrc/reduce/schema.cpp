#include "common/stable.h"

// op is a code of ReduceOp (reduce/ops.h), dtype one of Dtype (common/dtype.h) or -1; no dim, or an
// empty list, is all of them.
STABLE_TORCH_LIBRARY_FRAGMENT(gpuprims, m) {
  m.def(
      "reduce(Tensor input, int op, int[]? dim=None, bool keepdim=False, int dtype=-1, float "
      "correction=1.0) -> Tensor");
  // The common call, for calls that need no gradient: one dim, or all where it is all_dims().
  m.def("_reduce(Tensor input, int op, int dim) -> Tensor");
  m.def(
      "stats(Tensor input, int[]? dim=None, bool keepdim=False, float correction=1.0, bool "
      "indices=False) -> (Tensor min, Tensor max, Tensor mean, Tensor var, Tensor nan_count, "
      "Tensor argmin, Tensor argmax)");
  m.def("dot(Tensor input, Tensor other) -> Tensor");
}
