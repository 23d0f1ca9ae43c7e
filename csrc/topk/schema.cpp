#include "common/stable.h"

// index_bits is 64 or 32; a mask of false drops an element. Slots without an element hold index -1.
STABLE_TORCH_LIBRARY_FRAGMENT(gpuprims, m) {
  m.def(
      "topk(Tensor input, SymInt k, int dim=-1, bool largest=True, bool sorted=True, Tensor? "
      "mask=None, "
      "int index_bits=64) -> (Tensor values, Tensor indices)");
  // The common call, for calls that need no gradient: autograd falls through it
  // (torch_gpuprims/topk.py), and two arguments box faster than seven.
  m.def("_topk(Tensor input, SymInt k) -> (Tensor values, Tensor indices)");
  // Host times of _topk's parts in us, of `calls` calls a batch (parts_cuda.cpp).
  m.def("_topk_parts(Tensor input, int k, int calls) -> Tensor");
  // Of the last dimension. Expects to find recall_target of the k; ties in no particular order.
  m.def(
      "approx_topk(Tensor input, SymInt k, float recall_target=0.95, bool largest=True) -> (Tensor "
      "values, Tensor indices)");
}
