#include "common/stable.h"

// Segment s is values[indptr[s] .. indptr[s + 1]). k is the width of the result, counts[s] (if
// given) how many of segment s are wanted. Indices are positions in values, -1 in slots without an
// element.
//   promises: 1 the offsets were validated, 2 no segment is longer than 65,536, 4 none than 128.
STABLE_TORCH_LIBRARY_FRAGMENT(gpuprims, m) {
  m.def(
      "segment_topk(Tensor values, Tensor indptr, SymInt k, Tensor? counts=None, bool "
      "largest=True, "
      "int index_bits=64, int promises=0) -> (Tensor values, Tensor indices)");
}
