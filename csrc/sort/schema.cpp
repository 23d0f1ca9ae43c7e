#include "common/stable.h"

// index_bits is 64 or 32; bits [begin_bit, end_bit) of the ordered key count, all where end_bit is
// -1.
STABLE_TORCH_LIBRARY_FRAGMENT(gpuprims, m) {
  m.def(
      "sort(Tensor input, int dim=-1, bool descending=False, int index_bits=64) -> (Tensor values, "
      "Tensor indices)");
  m.def(
      "argsort(Tensor input, int dim=-1, bool descending=False, int index_bits=64, int "
      "begin_bit=0, "
      "int end_bit=-1) -> Tensor");
  m.def("sort_keys(Tensor input, int dim=-1, bool descending=False) -> Tensor");
  // In place, along the last dimension of a contiguous tensor. No result: one that aliased the
  // input could not be compiled.
  m.def("_sort_keys_(Tensor(a!) input, bool descending=False) -> ()");
  m.def(
      "segment_sort(Tensor keys, Tensor indptr, bool descending=False, int index_bits=64) -> "
      "(Tensor "
      "values, Tensor indices)");
}
